// What the page asks of its server: JSON, event streams, metrics. Nothing goes to any other origin.
const KEY = "octavo.key";
const BASE = new URL(".", document.baseURI);
let asked = null; // the one open question for a key, shared by all who wait for it
let ask = async () => null;

/** A refusal of the server, in its words. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** `question(wrong)` resolves to a key, or null where the user gives none. */
export function onKeyNeeded(question) {
  ask = question;
}

export async function changeKey(wrong) {
  asked ??= ask(wrong).finally(() => { asked = null; });
  const key = await asked;
  if (key) sessionStorage.setItem(KEY, key);
  return key;
}

/** A fetch with the key; asks for one on 401 unless `quiet`. Throws Refused for every status but 2xx. */
export async function call(path, {quiet = false, ...options} = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = {...options.headers};
    if (key) headers.authorization = bearer(key);
    const answer = await fetch(new URL(path, BASE), {...options, headers, cache: "no-store"});
    if (answer.ok) return answer;
    if (answer.status === 401 && !quiet) {
      if (sessionStorage.getItem(KEY) !== key) continue; // somebody else got another key meanwhile
      if (await changeKey(Boolean(key))) continue;
    }
    throw new Refused(answer.status, await reason(answer));
  }
}

/** UTF-8 in a header, whose characters are bytes. */
const bearer = (key) => "Bearer " + String.fromCharCode(...new TextEncoder().encode(key));

export function post(path, body, signal) {
  return call(path, {method: "POST", body: JSON.stringify(body), signal, headers: {"content-type": "application/json"}});
}

async function reason(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `The server answered ${answer.status} ${answer.statusText}`.trim();
  }
}

/** The data of each server-sent event, until the end or [DONE]. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim());
        if (data.length === 0) continue;
        if (data[0] === "[DONE]") return;
        yield JSON.parse(data.join("\n"));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)$/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** Prometheus' text as name -> [{labels, value}]. */
export function samples(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = line.startsWith("#") ? null : SAMPLE.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) labels[name] = value;
    if (!found.has(match[1])) found.set(match[1], []);
    found.get(match[1]).push({labels, value: Number(match[3])});
  }
  return found;
}
