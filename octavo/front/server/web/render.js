// A little Markdown, as DOM nodes. Text of a model reaches the page through textContent only, so none of it is ever
// read as HTML; a link must be http or https.

const LONGEST_INLINE = 20_000; // a longer paragraph is shown as it is: finding pairs in it would take too long
const DEEPEST = 5;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_LINE = /^\s*\|?(\s*:?-+:?\s*\|)+\s*(:?-+:?\s*)?$/;
const INLINE = new RegExp([
  "(`+)(.+?)\\1(?!`)", "\\*\\*(?=\\S)(.+?)\\*\\*", "\\*(?=[^\\s*])(.+?)\\*", "~~(?=\\S)(.+?)~~",
  "\\[([^\\[\\]]+)\\]\\((https?://[^\\s()]+)\\)", "(https?://[^\\s<>()\"'`]+[^\\s<>()\"'`.,;:!?])",
].join("|"), "gs");

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** A text that grows: only blocks that changed are made anew. */
export class Rendered {
  constructor(root) {
    this.root = root;
    this.sources = [];
  }

  update(text) {
    const next = blocks(text);
    let same = 0;
    while (same < next.length && this.sources[same] === next[same].source) same++;
    while (this.root.childNodes.length > same) this.root.lastChild.remove();
    for (const block of next.slice(same)) this.root.append(build(block));
    this.sources = next.map((block) => block.source);
  }
}

/** Pieces of a text, each {kind, source, ...}; `source` says everything about it. */
export function blocks(text) {
  const lines = text.split("\n"), found = [];
  for (let at = 0; at < lines.length;) {
    const start = at, line = lines[at++];
    const add = (kind, more = {}) => found.push({kind, source: kind + "\n" + lines.slice(start, at).join("\n"), ...more});
    let match;
    if (!line.trim()) continue;
    if ((match = FENCE.exec(line))) {
      const body = at;
      while (at < lines.length && !(lines[at].trim().startsWith(match[1]) && !lines[at].trim().replaceAll(match[1][0], ""))) at++;
      const code = lines.slice(body, at).join("\n");
      at = Math.min(at + 1, lines.length);
      add("code", {language: match[2].trim().split(/\s/)[0], code});
    } else if ((match = HEADING.exec(line))) {
      add("heading", {level: match[1].length, text: match[2]});
    } else if (RULE.test(line)) {
      add("rule");
    } else if (line.includes("|") && at < lines.length && TABLE_LINE.test(lines[at])) {
      const rows = [cells(line)];
      for (at++; at < lines.length && lines[at].includes("|"); at++) rows.push(cells(lines[at]));
      add("table", {rows});
    } else if (line.startsWith(">")) {
      while (at < lines.length && lines[at].startsWith(">")) at++;
      add("quote", {text: lines.slice(start, at).map((one) => one.replace(/^> ?/, "")).join("\n")});
    } else if (ITEM.test(line)) {
      while (at < lines.length && (ITEM.test(lines[at]) || /^\s{2,}\S/.test(lines[at])
        || (!lines[at].trim() && at + 1 < lines.length && /^(\s{2,}\S|\s*([-*+]|\d{1,9}[.)])\s)/.test(lines[at + 1])))) at++;
      add("list", {lines: lines.slice(start, at)});
    } else {
      while (at < lines.length && lines[at].trim() && ![FENCE, HEADING, RULE, ITEM].some((one) => one.test(lines[at]))
        && !lines[at].startsWith(">")) at++;
      add("paragraph", {text: lines.slice(start, at).join("\n")});
    }
  }
  return found;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((one) => one.trim());

function build(block, depth = 0) {
  switch (block.kind) {
    case "code": return codeBlock(block.code, block.language);
    case "heading": return inline(make("h" + Math.min(6, block.level + 2)), block.text);
    case "rule": return make("hr");
    case "table": {
      const [head, ...body] = block.rows;
      const row = (tag) => (texts) => make("tr", {}, ...texts.map((one) => inline(make(tag), one)));
      return make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Table"}, make("table", {},
        make("thead", {}, row("th")(head)), make("tbody", {}, ...body.map(row("td")))));
    }
    case "quote": return nested(make("blockquote"), block.text, depth);
    case "list": return list(block.lines, depth);
    default: return inline(make("p"), block.text);
  }
}

function nested(parent, text, depth) {
  if (depth >= DEEPEST) parent.append(text);
  else parent.append(...blocks(text).map((one) => build(one, depth + 1)));
  return parent;
}

function list(lines, depth) {
  const [, first, mark] = ITEM.exec(lines[0]);
  const root = make(/\d/.test(mark) ? "ol" : "ul", /\d/.test(mark) ? {start: parseInt(mark, 10)} : {});
  let item = null;
  for (const line of lines) {
    const match = ITEM.exec(line);
    if (match && match[1].length <= first.length + 1) {
      item = {text: match[3], rest: []};
      root.append(Object.assign(make("li"), {item}));
    } else {
      item.rest.push(line);
    }
  }
  for (const node of root.children) {
    const {text, rest} = node.item;
    delete node.item;
    inline(node, text);
    if (rest.length === 0) continue;
    const indent = Math.min(...rest.filter((one) => one.trim()).map((one) => one.search(/\S/)));
    nested(node, rest.map((one) => one.slice(indent)).join("\n"), depth);
  }
  return root;
}

/** Code with its language and a button that copies it. */
export function codeBlock(code, language = "") {
  const copy = make("button", {class: "link", type: "button", onclick: () => copied(copy, code)}, "Copy");
  return make("figure", {class: "code"}, make("figcaption", {}, make("span", {}, language || "text"), copy),
    make("pre", {tabindex: "0"}, make("code", {}, code)));
}

export async function copied(button, text) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Cannot copy"; // a page without https has no clipboard
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}

function inline(parent, text, depth = 0) {
  if (text.length > LONGEST_INLINE || depth >= DEEPEST) {
    parent.append(text);
    return parent;
  }
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, , code, bold, italic, struck, label, address, bare] = match;
    parent.append(text.slice(at, match.index));
    at = match.index + whole.length;
    if (code !== undefined) parent.append(make("code", {}, code));
    else if (bold !== undefined) parent.append(inline(make("strong"), bold, depth + 1));
    else if (italic !== undefined) parent.append(inline(make("em"), italic, depth + 1));
    else if (struck !== undefined) parent.append(inline(make("s"), struck, depth + 1));
    else parent.append(make("a", {href: address ?? bare, target: "_blank", rel: "noopener noreferrer"}, label ?? bare));
  }
  parent.append(text.slice(at));
  return parent;
}
