// What this browser keeps: conversations and settings. A broken or full storage costs history, never the page.
export const TALKS = "octavo.talks";
const SETTINGS = "octavo.settings";
const MOST = 100;

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

const isMessage = (one) => one && ["user", "assistant", "tool"].includes(one.role) && typeof one.content === "string";

/** [{id, title, messages}], the newest first. */
export function loadTalks() {
  const found = read(TALKS, []);
  return !Array.isArray(found) ? [] : found.filter((talk) => talk && typeof talk.id === "string"
    && typeof talk.title === "string" && Array.isArray(talk.messages) && talk.messages.every(isMessage)).slice(0, MOST);
}

/** Keeps as many of the newest as there is room for. */
export function saveTalks(talks) {
  for (let count = Math.min(talks.length, MOST); count >= 0; count = Math.floor(count / 2)) {
    try {
      localStorage.setItem(TALKS, JSON.stringify(talks.slice(0, count)));
      return;
    } catch {
      if (count === 0) return;
    }
  }
}

export function loadSettings() {
  const found = read(SETTINGS, {});
  return found && typeof found === "object" && !Array.isArray(found) ? found : {};
}

export function saveSettings(settings) {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
  } catch {
    // they last as long as the page then
  }
}
