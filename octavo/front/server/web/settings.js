// The drawer of sampling values, and what of them goes into a request.
import {loadSettings, saveSettings} from "./store.js";

const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "min_p", "seed", "presence_penalty",
  "frequency_penalty", "repetition_penalty"];
const NAMES = [...NUMBERS, "system", "thinking", "stop", "tools"];
const field = (name) => document.getElementById("set-" + name);

export function initSettings() {
  const saved = loadSettings();
  for (const name of NAMES) {
    if (typeof saved[name] === "string") field(name).value = saved[name];
    field(name).addEventListener("input", save);
  }
  document.getElementById("set-reset").addEventListener("click", () => {
    for (const name of NAMES) field(name).value = "";
    save();
  });
  check();
}

function save() {
  saveSettings(Object.fromEntries(NAMES.map((name) => [name, field(name).value])));
  check();
}

function check() {
  const note = document.getElementById("set-error");
  try {
    asked();
    note.hidden = true;
  } catch (error) {
    note.textContent = error.message;
    note.hidden = false;
  }
}

export const systemPrompt = () => field("system").value.trim();

/** The fields of a request that the user set. Throws an Error with a sentence where one is not well-formed. */
export function asked() {
  const body = {};
  for (const name of NUMBERS) {
    const input = field(name);
    if (!input.validity.valid) throw new Error(`${input.labels[0].firstChild.textContent.trim()}: ${input.validationMessage}`);
    if (input.value !== "") body[name] = Number(input.value);
  }
  const stop = field("stop").value.split("\n").filter(Boolean);
  if (stop.length) body.stop = stop;
  if (field("thinking").value) body.chat_template_kwargs = {enable_thinking: field("thinking").value === "on"};
  if (field("tools").value.trim()) {
    let tools;
    try {
      tools = JSON.parse(field("tools").value);
    } catch (error) {
      throw new Error(`Tools are not valid JSON: ${error.message}`);
    }
    if (!Array.isArray(tools)) throw new Error("Tools must be a JSON list");
    if (tools.length) body.tools = tools;
  }
  return body;
}
