// One message on the page, and how it shows what is known of it.
import {codeBlock, copied, make, Rendered} from "./render.js";

const button = (label, onclick, options = {}) => make("button", {type: "button", class: "link", onclick, ...options}, label);

/** `does`: {edit(message, text), again(message), results(message, texts)}, what the buttons do. */
export class MessageView {
  constructor(message, does) {
    this.message = message;
    this.does = does;
    this.node = make("article", {class: `message ${message.role}`, "aria-label": NAMES[message.role] ?? message.role});
    this.drawn = -1;
    if (message.role === "user") this.user();
    else if (message.role === "tool") this.tool();
    else this.assistant();
  }

  user() {
    const {message, does} = this;
    this.node.replaceChildren(
      make("div", {class: "body plain"}, message.content),
      make("div", {class: "actions"}, button("Copy", (event) => copied(event.target, message.content)),
        button("Edit", () => this.edit())));
  }

  edit() {
    const input = make("textarea", {"aria-label": "Edit the message", rows: "3"});
    input.value = this.message.content;
    const send = () => input.value.trim() && this.does.edit(this.message, input.value.trim());
    const back = () => {
      this.user();
      this.node.querySelector(".actions button:last-child").focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        back();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    this.node.replaceChildren(make("div", {class: "body editing"}, input),
      make("div", {class: "actions"}, button("Cancel", back), button("Send", send)));
    input.focus();
  }

  tool() {
    this.node.append(make("p", {class: "fine"}, "Result of a call"), codeBlock(this.message.content, "result"));
  }

  assistant() {
    this.summary = make("summary", {}, "Reasoning");
    this.thought = make("div", {class: "body md"});
    this.reasoning = make("details", {class: "reasoning", hidden: true}, this.summary, this.thought);
    this.thoughts = new Rendered(this.thought);
    this.body = make("div", {class: "body md"});
    this.text = new Rendered(this.body);
    this.calls = make("div", {class: "calls"});
    this.error = make("p", {class: "error", role: "alert", hidden: true});
    this.foot = make("div", {class: "actions"});
    this.node.append(this.reasoning, this.body, this.calls, this.error, this.foot);
  }

  /** Show the state of the message; `live`: more comes; `last`: it is the last one of its conversation. */
  update(live, last) {
    if (this.message.role !== "assistant") return;
    const {message} = this;
    this.reasoning.hidden = !message.reasoning;
    if (message.reasoning) this.thoughts.update(message.reasoning);
    this.summary.textContent = live && !message.content && !message.tool_calls?.length ? "Reasoning…" : "Reasoning";
    this.text.update(message.content);
    this.node.classList.toggle("live", live);
    this.node.classList.toggle("waiting", live && !message.content && !message.reasoning && !message.tool_calls?.length);
    this.node.setAttribute("aria-busy", String(live));
    this.showCalls(live, last);
    this.error.hidden = !message.error;
    this.error.textContent = message.error ?? "";
    const again = last && !live ? [button(message.error ? "Try again" : "Regenerate", () => this.does.again(message))] : [];
    this.foot.replaceChildren(...live ? [] : [button("Copy", (event) => copied(event.target, message.content)), ...again,
      make("span", {class: "fine stats"}, statsLine(message))]);
  }

  showCalls(live, last) {
    const calls = this.message.tool_calls ?? [];
    const state = JSON.stringify([calls, live, last]);
    if (state === this.drawn) return;
    this.drawn = state;
    const inputs = [];
    this.calls.replaceChildren(...calls.map((call) => {
      const box = make("div", {class: "call"}, make("p", {}, "Calls ", make("code", {}, call.function.name)),
        codeBlock(pretty(call.function.arguments), "arguments"));
      if (last && !live) {
        inputs.push(make("textarea", {rows: "2", "aria-label": `Result of ${call.function.name}`, placeholder: "Result of the call"}));
        box.append(inputs.at(-1));
      }
      return box;
    }));
    if (inputs.length) {
      this.calls.append(button("Send results", () => this.does.results(this.message, inputs.map((one) => one.value)), {class: ""}));
    }
  }
}

const NAMES = {user: "You", assistant: "Answer", tool: "Result of a call"};

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function statsLine({stats = {}, finish, stopped}) {
  const parts = [];
  if (stats.tokens) parts.push(`${stats.tokens} tokens`);
  if (stats.speed) parts.push(`${stats.speed.toFixed(stats.speed < 100 ? 1 : 0)} tok/s`);
  if (stats.first) parts.push(`first after ${stats.first < 1000 ? `${Math.round(stats.first)} ms` : `${(stats.first / 1000).toFixed(1)} s`}`);
  if (stats.cached) parts.push(`${stats.cached} of ${stats.prompt} prompt tokens cached`);
  if (stopped) parts.push("stopped");
  else if (finish === "length") parts.push("cut at the longest length");
  return parts.join(" · ");
}
