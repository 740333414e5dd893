// What the charts share (steps run to the right everywhere), and the trajectory of one token.

const MARGIN = { left: 50, right: 10, top: 6, bottom: 32 };
const SVG = "http" + "://www.w3.org/2000/svg"; // a name, not an address

function element(name, attributes, parent, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent?.append(node);
  return node;
}

// A few round numbers from 0 to top.
function ticks(top, count) {
  const raw = Math.max(top, 1e-6) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, i) => i * step);
}

// The axis of steps, below; x: frame → middle of its column.
function stepAxis(svg, generation, x, width, height) {
  for (const t of ticks(generation.frames - 1, 6)) {
    if (Number.isInteger(t)) element("text", { x: x(t), y: height - 18, "text-anchor": "middle" }, svg, generation.steps[t]);
  }
  element("text", { x: (MARGIN.left + width - MARGIN.right) / 2, y: height - 4, "text-anchor": "middle" }, svg, "step");
}

// The title of the axis that runs down.
function downTitle(svg, text, height) {
  const y = (height - MARGIN.bottom) / 2;
  element("text", { x: 11, y, "text-anchor": "middle", transform: `rotate(-90 11 ${y})` }, svg, text);
}

// The frame under a pointer; -1 beside the chart.
function frameUnder(event, svg, generation) {
  const box = svg.getBoundingClientRect();
  const across = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
  return across < 0 || across >= 1 ? -1 : Math.floor(across * generation.frames);
}

// lines: [class, label, scores over frames]
function drawLine(svg, generation, lines, token, frame) {
  const width = svg.clientWidth, height = svg.clientHeight;
  svg.replaceChildren();
  if (!width || token < 0) return;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const w = width - MARGIN.left - MARGIN.right, legend = 18, h = height - legend - MARGIN.top - MARGIN.bottom;
  const top = Math.max(1, ...lines.flatMap(([, , scores]) => [...scores])) * 1.05;
  const x = (t) => MARGIN.left + (t + 0.5) / generation.frames * w, y = (score) => legend + MARGIN.top + (1 - score / top) * h;
  for (const score of ticks(top, 3)) {
    element("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(score), y2: y(score) }, svg);
    element("text", { x: MARGIN.left - 6, y: y(score) + 4, "text-anchor": "end" }, svg, String(+score.toPrecision(3)));
  }
  stepAxis(svg, generation, x, width, height);
  downTitle(svg, "received", height + legend);
  if (generation.committedAt[token] >= 0) {
    const born = x(generation.bornAt(token));
    element("line", { class: "born", x1: born, x2: born, y1: y(top), y2: y(0) }, svg);
  }
  let place = MARGIN.left;
  for (const [kind, label, scores] of lines) {
    const points = [...scores].map((score, t) => (generation.exists(token, t) ? `${x(t).toFixed(1)},${y(score).toFixed(1)}` : null));
    element("polyline", { class: `line ${kind}`, points: points.filter(Boolean).join(" ") }, svg);
    element("line", { class: `line ${kind}`, x1: place, x2: place + 20, y1: 9, y2: 9 }, svg);
    const text = `${label} ${showNumber(scores[frame])}`;
    place += 34 + element("text", { x: place + 23, y: 13 }, svg, text).getComputedTextLength();
  }
  element("line", { class: "now", x1: x(frame), x2: x(frame), y1: y(top), y2: y(0) }, svg);
}
