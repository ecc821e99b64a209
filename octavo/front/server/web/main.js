// Puts the page together: views, drawers, the key, the model's name.
import * as api from "./api.js";
import {initBoard, pace} from "./board.js";
import {initChat} from "./chat.js";
import {initSettings} from "./settings.js";

const $ = (id) => document.getElementById(id);

function view() {
  const board = location.hash === "#board";
  $("board").hidden = !board;
  $("chat").hidden = board;
  document.body.classList.toggle("on-board", board);
  for (const [id, here] of [["tab-chat", !board], ["tab-board", board]]) {
    if (here) $(id).setAttribute("aria-current", "page");
    else $(id).removeAttribute("aria-current");
  }
  document.title = board ? "Board · octavo" : "octavo";
  pace();
}

function drawer(button, panel, onOpen) {
  const set = (open) => {
    panel.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    if (open) onOpen?.();
  };
  button.addEventListener("click", () => set(panel.hidden));
  panel.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    set(false);
    button.focus();
  });
  return set;
}

/** A promise of a key; null where the dialog is left without one. */
function askKey(wrong) {
  const dialog = $("key"), input = $("key-input");
  $("key-wrong").hidden = !wrong;
  input.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "use" ? input.value.trim() || null : null), {once: true});
  });
}

async function loadModels() {
  const select = $("model");
  try {
    const {data} = await (await api.call("v1/models")).json();
    select.replaceChildren(...data.map(({id}) => new Option(id, id)));
    select.title = `${data[0].id}: up to ${data[0].max_model_len} tokens`;
  } catch (error) {
    select.replaceChildren(new Option(error.status === 401 ? "no key" : "no server", ""));
  }
}

api.onKeyNeeded(askKey);
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  $("key").close("use");
});
$("key-cancel").addEventListener("click", () => $("key").close(""));
initSettings();
const narrow = matchMedia("(max-width: 60rem)");
const side = drawer($("menu"), $("side"), () => { if (narrow.matches) $("new").focus(); });
const settings = drawer($("tune"), $("settings"), () => $("set-system").focus());
const fit = () => side(!narrow.matches);
narrow.addEventListener("change", fit);
fit();
document.addEventListener("octavo:opened", () => { if (narrow.matches) side(false); });
$("tune-close").addEventListener("click", () => {
  settings(false);
  $("tune").focus();
});
$("set-key").addEventListener("click", async () => { if (await api.changeKey(false)) loadModels(); });
addEventListener("hashchange", view);
initChat();
initBoard();
view();
loadModels();
