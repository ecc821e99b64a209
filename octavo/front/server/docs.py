"""/docs: a page over /openapi.json that loads nothing from outside, so that it works behind any wall."""

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>octavo API</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
  details { border: 1px solid #ddd; border-radius: 6px; margin: .5rem 0; padding: .5rem .8rem; }
  summary { cursor: pointer; } b.verb { display: inline-block; width: 4rem; color: #06c; }
  table { border-collapse: collapse; width: 100%; margin: .5rem 0; font-size: 14px; }
  td, th { text-align: left; padding: .15rem .6rem .15rem 0; vertical-align: top; border-bottom: 1px solid #eee; }
  textarea { width: 100%; height: 8rem; font: 13px monospace; }
  pre { background: #f6f6f6; padding: .6rem; overflow: auto; }
  code { font: 13px monospace; } input { font: 13px monospace; width: 20rem; }
  @media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd; } pre { background: #222; }
    details { border-color: #444; } td, th { border-color: #333; } b.verb { color: #6af; } }
</style>
<h1>octavo API</h1>
<p>From <a href="openapi.json">openapi.json</a>. Key, if the server wants one: <input id="key" autocomplete="off"></p>
<div id="routes">loading</div>
<script>
function make(tag, text, parent) {
  const e = document.createElement(tag);
  e.textContent = text;
  parent?.append(e);
  return e;
}
function headers() {
  const key = document.getElementById("key").value;
  return key ? {authorization: "Bearer " + key} : {};
}
const typeName = (s) => !s ? "" : s.$ref ? s.$ref.split("/").pop() : s.anyOf ? s.anyOf.map(typeName).join(" | ")
  : s.type === "array" ? "[" + typeName(s.items) + "]" : s.const ? JSON.stringify(s.const)
  : s.enum ? s.enum.map((v) => JSON.stringify(v)).join(" | ") : s.type || "any";
function fields(schema, api, parent) {
  for (const part of schema.anyOf || [schema]) {
    const found = part.$ref ? api.components.schemas[part.$ref.split("/").pop()] : part;
    if (!found.properties) continue;
    make("p", found.description || found.title || "", parent);
    const table = make("table", "", parent);
    for (const [name, field] of Object.entries(found.properties)) {
      const row = make("tr", "", table);
      make("code", name + ((found.required || []).includes(name) ? " *" : ""), make("td", "", row));
      make("td", typeName(field), row);
      make("td", field.description || (field.default != null ? "default " + JSON.stringify(field.default) : ""), row);
    }
  }
}
function trial(verb, path, body, parent) {
  const input = body && make("textarea", JSON.stringify(body.example ?? {}), parent);
  const button = make("button", "send", parent), output = make("pre", "", parent);
  button.onclick = async () => {
    output.textContent = "...";
    const answer = await fetch(path.slice(1), {method: verb, body: input?.value,
      headers: {...headers(), ...(input ? {"content-type": "application/json"} : {})}});
    output.textContent = answer.status + "\\n";
    const reader = answer.body.getReader(), decoder = new TextDecoder();
    for (let r = await reader.read(); !r.done; r = await reader.read())
      output.textContent += decoder.decode(r.value, {stream: true});
  };
}
async function show() {
  const root = document.getElementById("routes");
  const answer = await fetch("openapi.json", {headers: headers()});
  if (!answer.ok) { root.textContent = "openapi.json: status " + answer.status; return; }
  const api = await answer.json();
  root.textContent = "";
  for (const [path, verbs] of Object.entries(api.paths)) for (const [verb, route] of Object.entries(verbs)) {
    const box = make("details", "", root), line = make("summary", "", box);
    make("b", verb.toUpperCase(), line).className = "verb";
    make("code", path, line);
    line.append(" " + (route.description || "").replaceAll("``", ""));
    const body = route.requestBody?.content["application/json"];
    if (body) { make("h4", "body", box); fields(body.schema, api, box); }
    const good = route.responses["200"]?.content;
    if (good?.["application/json"]) { make("h4", "answer", box); fields(good["application/json"].schema, api, box); }
    const told = good?.["text/event-stream"]?.itemSchema.properties.data;
    if (told) { make("h4", "events", box); fields((told.anyOf?.[0] ?? told).contentSchema, api, box); }
    if (!path.includes("{")) trial(verb.toUpperCase(), path, body, box);
  }
}
document.getElementById("key").onchange = show;
show();
</script>
</html>
"""
