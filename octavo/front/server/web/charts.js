// Pictures in SVG: a line over time and a histogram. They take their colours from the style sheet.
const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const WIDTH = 300, HEIGHT = 80;

function picture(label) {
  return svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label, class: "picture"});
}

/** Lines over time. `series`: lists of numbers of one length at most `room`, null for a gap; the newest is at the right. */
export function lines(series, room, label, least = 1) {
  const root = picture(label);
  const top = niceTop(Math.max(least, ...series.flat().filter((one) => one !== null)));
  for (const part of [0.5, 1]) {
    root.append(svg("line", {x1: 0, x2: WIDTH, y1: HEIGHT * (1 - part) + (part === 1 ? 1 : 0), y2: HEIGHT * (1 - part) + (part === 1 ? 1 : 0), class: "rule"}));
  }
  root.append(svg("line", {x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5, class: "rule base"}));
  series.forEach((values, at) => {
    const points = [];
    values.forEach((value, index) => {
      if (value === null) return;
      const x = WIDTH * (1 - (values.length - 1 - index) / (room - 1)), y = (HEIGHT - 2) * (1 - value / top) + 1;
      points.push([x.toFixed(1), y.toFixed(1)]);
    });
    if (points.length < 2) return;
    const path = points.map((point) => point.join(",")).join(" ");
    if (at === 0) root.append(svg("polygon", {points: `${points[0][0]},${HEIGHT} ${path} ${points.at(-1)[0]},${HEIGHT}`, class: "area"}));
    root.append(svg("polyline", {points: path, class: `series s${at}`}));
  });
  return {node: root, top};
}

/** Bars of `counts`, with a title each. `marks`: [{at, name}], places from 0 to counts.length. */
export function bars(counts, titles, marks, label) {
  const root = picture(label);
  const top = Math.max(1, ...counts), step = WIDTH / Math.max(1, counts.length);
  counts.forEach((count, at) => {
    const height = count ? Math.max(1.5, (HEIGHT - 4) * count / top) : 0;
    const bar = svg("rect", {x: (at * step + step * 0.02).toFixed(2), width: (step * 0.96).toFixed(2),
      y: (HEIGHT - height).toFixed(2), height: height.toFixed(2), class: "hist"});
    const title = svg("title");
    title.textContent = titles[at];
    bar.append(title);
    root.append(bar);
  });
  root.append(svg("line", {x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5, class: "rule base"}));
  for (const mark of marks) {
    const x = (mark.at * step).toFixed(1);
    root.append(svg("line", {x1: x, x2: x, y1: 0, y2: HEIGHT, class: `mark ${mark.name}`}));
  }
  return root;
}

/** The least of 1, 2, 5 times a power of ten that is not under `value`. */
export function niceTop(value) {
  const scale = 10 ** Math.floor(Math.log10(value));
  return scale * [1, 2, 5, 10].find((one) => one * scale >= value * 0.9999);
}
