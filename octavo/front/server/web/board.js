// The live board: what /metrics says, every two seconds, as figures and pictures.
import * as api from "./api.js";
import {bars, lines} from "./charts.js";
import {make} from "./render.js";

const $ = (id) => document.getElementById(id);
const EVERY = 2000, ROOM = 91, SPAN = 60; // ms between looks; looks on a picture; looks that "recent" spans
const LATENCIES = [
  ["vllm:time_to_first_token_seconds", "Time to first token"],
  ["vllm:inter_token_latency_seconds", "Between tokens"],
  ["vllm:e2e_request_latency_seconds", "Whole request"],
  ["vllm:request_queue_time_seconds", "In the queue"],
];
const looks = []; // {at, read}, the oldest first
let timer = null;

export function initBoard() {
  $("span").addEventListener("change", draw);
  document.addEventListener("visibilitychange", pace);
  pace();
}

/** The board looks only while somebody looks at it. */
export function pace() {
  const watched = !$("board").hidden && !document.hidden;
  if (watched && timer === null) {
    timer = setInterval(look, EVERY);
    look();
  } else if (!watched && timer !== null) {
    clearInterval(timer);
    timer = null;
  }
}

async function look() {
  let text;
  try {
    text = await (await api.call("metrics", {quiet: true, signal: AbortSignal.timeout(EVERY * 5)})).text();
  } catch (error) {
    note(error);
    return;
  }
  $("board-note").hidden = true;
  looks.push({at: performance.now() / 1000, read: read(api.samples(text))});
  if (looks.length > ROOM) looks.shift();
  draw();
}

function note(error) {
  const node = $("board-note");
  node.hidden = false;
  if (error.status === 401) {
    if (node.querySelector("button")) return;
    node.replaceChildren("The server wants a key. ", make("button", {class: "link", onclick: async () => { if (await api.changeKey(false)) look(); }}, "Enter it"));
  } else {
    node.replaceChildren(error instanceof api.Refused ? error.message : "The server does not answer; still trying.");
  }
}

function read(found) {
  const sum = (name) => (found.get(name) ?? []).reduce((total, one) => total + one.value, 0);
  const histograms = {};
  for (const [name] of LATENCIES) {
    const counts = new Map();
    for (const {labels, value} of found.get(name + "_bucket") ?? []) {
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      counts.set(bound, (counts.get(bound) ?? 0) + value);
    }
    histograms[name] = [...counts].sort((a, b) => a[0] - b[0]);
  }
  const engines = Math.max(1, (found.get("vllm:kv_cache_usage_perc") ?? []).length);
  return {
    running: sum("vllm:num_requests_running"), waiting: sum("vllm:num_requests_waiting"),
    kv: sum("vllm:kv_cache_usage_perc") / engines, made: sum("vllm:generation_tokens_total"),
    prompt: sum("vllm:prompt_tokens_total"), queries: sum("vllm:prefix_cache_queries_total"),
    hits: sum("vllm:prefix_cache_hits_total"), ended: sum("vllm:request_success_total"),
    preempted: sum("vllm:num_preemptions_total"), histograms,
  };
}

/** A counter's growth a second, look by look; null where there is none before. A restart is a gap. */
function rates(name) {
  return looks.map((look, at) => {
    const before = looks[at - 1];
    if (!before || look.read[name] < before.read[name]) return null;
    return (look.read[name] - before.read[name]) / (look.at - before.at);
  });
}

const now = (values) => values.at(-1) ?? 0;
const count = (value) => value >= 100_000 ? `${(value / 1000).toFixed(0)}k` : value >= 1000 ? Math.round(value).toLocaleString("en")
  : value >= 10 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
const percent = (value) => `${(value * 100).toFixed(value < 0.1 && value > 0 ? 1 : 0)}%`;

function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  return value < 0.001 ? `${(value * 1e6).toFixed(0)} µs` : value < 1 ? `${+(value * 1000).toPrecision(3)} ms` : `${+value.toPrecision(3)} s`;
}

function draw() {
  if (!looks.length) return;
  const last = looks.at(-1).read, recent = looks[Math.max(0, looks.length - 1 - SPAN)].read;
  const made = rates("made"), prompt = rates("prompt");
  const asked = last.queries - recent.queries, all = last.queries;
  const hit = asked > 0 ? (last.hits - recent.hits) / asked : all > 0 ? last.hits / all : null;
  $("figures").replaceChildren(
    figure("Running", count(last.running), "requests"),
    figure("Waiting", count(last.waiting), "requests"),
    figure("Output", count(now(made)), "tokens/s"),
    figure("Prompt", count(now(prompt)), "tokens/s"),
    figure("KV cache", percent(last.kv), "in use", last.kv),
    figure("Cache hits", hit === null ? "–" : percent(hit), "of prompts", hit ?? 0),
    figure("Answered", count(last.ended), "requests"),
    figure("Preempted", count(last.preempted), "requests"),
  );
  const of = (name) => looks.map((look) => look.read[name]);
  $("lines").replaceChildren(
    panel("Requests", [["running", of("running")], ["waiting", of("waiting")]], count, 4),
    panel("Tokens/s", [["output", made], ["prompt", prompt]], count, 10),
    panel("KV cache in use", [["KV cache", of("kv")]], percent, 0.1),
  );
  const since = $("span").value === "all" ? null : recent;
  $("latencies").replaceChildren(...LATENCIES.map(([name, title]) => histogram(title, last.histograms[name], since?.histograms[name])));
}

function figure(title, value, unit, share = null) {
  const node = make("div", {class: "figure"}, make("span", {class: "name"}, title), make("strong", {}, value), make("span", {class: "fine"}, unit));
  if (share !== null) node.append(bar(share));
  return node;
}

function bar(share) {
  const inner = make("div");
  inner.style.width = `${100 * Math.min(1, share)}%`;
  return make("div", {class: "share", "aria-hidden": "true"}, inner);
}

function panel(title, series, words, least) {
  const told = series.map(([name, values]) => `${name} ${words(now(values))}`).join(", ");
  const {node, top} = lines(series.map(([, values]) => values), ROOM, `${title}: now ${told}`, least);
  const legend = series.length < 2 ? [] : series.map(([name], at) => make("span", {class: `key s${at}`}, name));
  return make("figure", {class: "panel"}, make("figcaption", {}, make("h3", {}, title), ...legend, make("span", {class: "fine top"}, `top ${words(top)}`)),
    node, make("div", {class: "axis fine"}, make("span", {}, "3 min ago"), make("span", {}, "now")));
}

/** What fell into each bucket since `before`. */
function fallen(buckets, before) {
  const earlier = new Map(before);
  let under = 0;
  return buckets.map(([bound, total]) => {
    const grown = Math.max(0, total - (earlier.get(bound) ?? 0)), own = Math.max(0, grown - under);
    under = grown;
    return own;
  });
}

/** A panel; where nothing fell since `before`, it shows all there is. */
function histogram(title, buckets = [], before = []) {
  let counts = fallen(buckets, before), when = before.length ? "recent" : "in all";
  if (!counts.some(Boolean)) [counts, when] = [fallen(buckets, []), "in all"];
  const total = counts.reduce((sum, one) => sum + one, 0);
  const caption = (text) => make("figcaption", {}, make("h3", {}, title), make("span", {class: "fine top"}, text));
  if (!total) return make("figure", {class: "panel"}, caption("nothing yet"), make("div", {class: "none"}));
  let from = counts.findIndex(Boolean), to = counts.length - 1;
  while (!counts[to]) to--;
  [from, to] = [Math.max(0, from - 2), Math.min(counts.length - 1, to + 2)];
  const bound = (at) => at < 0 ? 0 : buckets[at][0];
  const shown = counts.slice(from, to + 1);
  const titles = shown.map((one, at) => `${seconds(bound(from + at - 1))} to ${Number.isFinite(bound(from + at)) ? seconds(bound(from + at)) : "more"}: ${one}`);
  const marks = [], told = [];
  for (const [name, part] of [["p50", 0.5], ["p90", 0.9], ["p99", 0.99]]) {
    const {at, value} = quantile(counts, bound, part * total);
    marks.push({at: at - from, name});
    told.push([name, seconds(value)]);
  }
  const label = `${title}: ${told.map((one) => one.join(" ")).join(", ")} of ${total}`;
  return make("figure", {class: "panel"}, caption(`${count(total)} ${when}`), bars(shown, titles, marks, label),
    make("div", {class: "axis fine"}, make("span", {}, seconds(bound(from - 1))), make("span", {}, Number.isFinite(bound(to)) ? seconds(bound(to)) : "more")),
    make("dl", {class: "quantiles"}, ...told.map(([name, value]) => make("div", {class: name}, make("dt", {}, name), make("dd", {}, value)))));
}

/** Where the rank lies, in buckets and as a value, taken as evenly spread within its bucket. */
function quantile(counts, bound, rank) {
  let under = 0;
  for (let at = 0; at < counts.length; at++) {
    if (!counts[at] || under + counts[at] < rank) {
      under += counts[at];
      continue;
    }
    const part = (rank - under) / counts[at], low = bound(at - 1), high = bound(at);
    return {at: at + part, value: Number.isFinite(high) ? low + (high - low) * part : low};
  }
  return {at: counts.length, value: NaN};
}
