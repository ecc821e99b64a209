// The conversation: what is said, what is asked of the server, what comes back.
import * as api from "./api.js";
import {MessageView} from "./message.js";
import {make} from "./render.js";
import {asked, systemPrompt} from "./settings.js";
import {loadTalks, saveTalks, TALKS} from "./store.js";

const $ = (id) => document.getElementById(id);
const TITLE = 60;
let talks = loadTalks();
let talk = blank();
let views = [];
let running = null; // the AbortController of the answer on its way

export function initChat() {
  const input = $("input");
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  input.addEventListener("input", grow);
  $("stop").addEventListener("click", stop);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running && !document.querySelector("dialog[open]")) stop();
  });
  $("new").addEventListener("click", () => open(blank()));
  $("forget").addEventListener("click", () => {
    if (!talks.length || !confirm("Delete every conversation kept in this browser?")) return;
    talks = [];
    saveTalks(talks);
    open(blank());
  });
  addEventListener("storage", reload);
  open(talk);
}

/** Another tab changed what is kept: take it, with the conversation that is open here as it is here. */
function reload(event) {
  if (event.key !== TALKS) return;
  talks = loadTalks().map((one) => one.id === talk.id ? talk : one);
  list();
}

function blank() {
  return {id: `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`, title: "", messages: []};
}

function open(one) {
  stop();
  talk = one;
  views = [];
  $("log").replaceChildren();
  if (!talk.messages.length) $("log").append(make("p", {class: "empty"}, "Ask the model something."));
  for (const message of talk.messages) show(message);
  refresh();
  list();
  bottom(true);
  document.dispatchEvent(new Event("octavo:opened"));
  $("input").focus();
}

function list() {
  $("talks").replaceChildren(...talks.map((one) => make("li", {class: one === talk ? "here" : ""},
    make("button", {class: "quiet title", "aria-current": one === talk ? "true" : null, onclick: () => open(one)}, one.title || "Untitled"),
    make("button", {class: "quiet icon", "aria-label": `Delete ${one.title || "Untitled"}`, onclick: () => remove(one)}, "×"))));
}

function remove(one) {
  talks = talks.filter((other) => other !== one);
  saveTalks(talks);
  if (one === talk) open(blank());
  else list();
}

function show(message) {
  $("log").querySelector(".empty")?.remove();
  const view = new MessageView(message, {edit, again, results});
  views.push(view);
  $("log").append(view.node);
  return view;
}

function refresh(live = false) {
  views.forEach((view, at) => view.update(live && at === views.length - 1, at === views.length - 1));
}

function cut(message) {
  const at = talk.messages.indexOf(message);
  talk.messages.splice(at);
  for (const view of views.splice(at)) view.node.remove();
}

function keep() {
  if (!talk.messages.length) return;
  talk.title ||= (talk.messages[0].content.trim().split("\n")[0] || "Untitled").slice(0, TITLE);
  talks = [talk, ...talks.filter((one) => one !== talk)].slice(0, 100);
  saveTalks(talks);
  list();
}

function send() {
  const text = $("input").value.trim();
  if (!text || running) return;
  $("input").value = "";
  grow();
  say(text);
}

function say(text) {
  talk.messages.push({role: "user", content: text});
  show(talk.messages.at(-1));
  answer();
}

function edit(message, text) {
  stop();
  cut(message);
  say(text);
  $("input").focus();
}

function again(message) {
  cut(message);
  answer();
  $("input").focus();
}

function results(message, texts) {
  message.tool_calls.forEach((call, at) => {
    talk.messages.push({role: "tool", tool_call_id: call.id, content: texts[at]});
    show(talk.messages.at(-1));
  });
  answer();
  $("input").focus();
}

function stop() {
  running?.abort();
}

/** The messages as the API wants them: without what was thought, and without answers that failed before a word. */
function history() {
  const system = systemPrompt();
  const said = talk.messages.filter((one) => one.role !== "assistant" || one.content || one.tool_calls?.length);
  return [...system ? [{role: "system", content: system}] : [], ...said.map((one) => one.role !== "assistant"
    ? {role: one.role, content: one.content, ...one.tool_call_id ? {tool_call_id: one.tool_call_id} : {}}
    : {role: "assistant", content: one.content || null, ...one.tool_calls?.length ? {tool_calls: one.tool_calls} : {}})];
}

async function answer() {
  const here = talk, messages = history();
  const reply = {role: "assistant", content: "", reasoning: "", tool_calls: []};
  here.messages.push(reply);
  const view = show(reply);
  const control = running = new AbortController();
  busy(true);
  refresh(true);
  bottom(true);
  keep();
  const clock = {start: performance.now(), first: null, last: null, pieces: 0};
  let drawn = false;
  const draw = () => {
    if (drawn) return;
    drawn = true;
    requestAnimationFrame(() => {
      drawn = false;
      if (running !== control) return;
      const stick = atBottom();
      view.update(true, true);
      if (stick) bottom();
    });
  };
  try {
    const body = {model: $("model").value || undefined, messages, stream: true, stream_options: {include_usage: true}, ...asked()};
    for await (const event of api.events(await api.post("v1/chat/completions", body, control.signal))) {
      if (event.error) throw new Error(event.error.message);
      if (event.usage) usage(reply, event.usage, clock);
      const choice = event.choices?.[0];
      if (!choice) continue;
      if (take(reply, choice.delta ?? {})) {
        clock.last = performance.now();
        clock.first ??= clock.last;
        clock.pieces++;
      }
      if (choice.finish_reason) reply.finish = choice.finish_reason;
      draw();
    }
    if (!reply.finish) throw new Error("The answer broke off.");
  } catch (error) {
    if (control.signal.aborted) reply.stopped = true;
    else reply.error = error instanceof TypeError ? "The server cannot be reached." : error.message;
  }
  reply.stats ??= speeds(clock.pieces, clock);
  if (running === control) {
    running = null;
    busy(false);
  }
  if (talks.includes(here)) saveTalks(talks);
  if (here !== talk) return;
  const stick = atBottom();
  refresh(running !== null); // where the question was edited meanwhile, the next answer is on its way
  if (stick) bottom();
}

/** Add a delta to the answer; whether it brought anything. */
function take(reply, delta) {
  const thought = delta.reasoning ?? delta.reasoning_content;
  if (thought) reply.reasoning += thought;
  if (delta.content) reply.content += delta.content;
  for (const piece of delta.tool_calls ?? []) {
    const call = reply.tool_calls[piece.index ?? 0] ??= {id: "", type: "function", function: {name: "", arguments: ""}};
    if (piece.id) call.id = piece.id;
    if (piece.function?.name) call.function.name = piece.function.name;
    call.function.arguments += piece.function?.arguments ?? "";
  }
  return Boolean(thought || delta.content || delta.tool_calls?.length);
}

function usage(reply, told, clock) {
  reply.stats = {...speeds(told.completion_tokens, clock), prompt: told.prompt_tokens,
    cached: told.prompt_tokens_details?.cached_tokens ?? 0};
}

function speeds(tokens, {start, first, last}) {
  const seconds = (last - first) / 1000;
  return {tokens, first: first === null ? 0 : first - start, speed: tokens > 1 && seconds > 0.02 ? (tokens - 1) / seconds : 0};
}

function busy(yes) {
  $("send").hidden = yes;
  $("stop").hidden = !yes;
}

function grow() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight + 2, window.innerHeight / 3)}px`;
}

const atBottom = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 80;

function bottom(always = false) {
  if (always || !$("log").hidden) $("log").scrollTop = $("log").scrollHeight;
}
