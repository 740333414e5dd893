// Colours, the map of all tokens at all steps (canvas), and the trajectory of one token (SVG).

const RAMPS = { // from nothing to the largest score; lightness changes in one direction, so all eyes can follow
  light: {
    scores: [[251, 251, 250], [254, 232, 170], [253, 184, 76], [236, 104, 33], [176, 24, 50], [84, 0, 58]],
    masked: [[251, 251, 250], [198, 219, 239], [66, 146, 198], [8, 48, 107]],
    unmasked: [[251, 251, 250], [253, 208, 162], [230, 97, 15], [110, 34, 3]],
  },
  dark: {
    scores: [[20, 22, 27], [66, 20, 102], [147, 38, 103], [226, 92, 52], [251, 178, 60], [252, 255, 190]],
    masked: [[20, 22, 27], [12, 56, 120], [50, 140, 220], [200, 230, 255]],
    unmasked: [[20, 22, 27], [110, 45, 4], [240, 124, 24], [255, 226, 180]],
  },
};
const POWER = 1.7;
const MARGIN = { left: 34, right: 10, top: 6, bottom: 20 };
const SVG = "http" + "://www.w3.org/2000/svg"; // a name, not an address

function theme() {
  return document.documentElement.dataset.theme;
}

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// 0…1 of a score, given the largest one; the power keeps ordinary tokens, with scores about 1, pale.
function strength(value, limit, scale) {
  if (!(limit > 0)) return 0;
  return Math.min(1, scale === "log" ? (Math.log1p(value) / Math.log1p(limit)) ** POWER : value / limit);
}

// The score in the middle of the colours.
function middle(limit, scale) {
  return scale === "log" ? Math.expm1(0.5 ** (1 / POWER) * Math.log1p(limit)) : limit / 2;
}

function colour(share, ramp) {
  const stops = RAMPS[theme()][ramp], place = share * (stops.length - 1);
  const index = Math.min(Math.floor(place), stops.length - 2), rest = place - index;
  return stops[index].map((value, i) => Math.round(value + (stops[index + 1][i] - value) * rest));
}

function inkOn(rgb) {
  return (0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]) > 140 ? "#16171a" : "#ffffff";
}

function gradient(ramp) {
  return `linear-gradient(90deg, ${RAMPS[theme()][ramp].map((rgb) => `rgb(${rgb})`).join(", ")})`;
}

// A few round numbers from 0 to top.
function ticks(top, count) {
  const raw = Math.max(top, 1e-6) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, i) => i * step);
}

// The map's colours only; views: one or two (masked above unmasked), each [view, ramp]. Kept until they change.
function paintMap(run, views, limit, scale) {
  const image = new ImageData(run.frames, run.size * views.length);
  views.forEach(([view, ramp], offset) => {
    const table = Array.from({ length: 256 }, (_, i) => colour(i / 255, ramp));
    for (let t = 0; t < run.frames; t++) for (let s = 0; s < run.size; s++) {
      const rgb = table[Math.round(255 * strength(view.values[t * run.size + s], limit, scale))];
      const at = 4 * ((s * views.length + offset) * run.frames + t);
      image.data.set([rgb[0], rgb[1], rgb[2], run.exists(s, t) ? 255 : 0], at);
    }
  });
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function drawMap(canvas, run, picture, frame, chosen) {
  const width = canvas.clientWidth, height = canvas.clientHeight, dots = window.devicePixelRatio || 1;
  if (!width) return;
  [canvas.width, canvas.height] = [Math.round(width * dots), Math.round(height * dots)];
  const pen = canvas.getContext("2d");
  pen.scale(dots, dots);
  const w = width - MARGIN.left - MARGIN.right, h = height - MARGIN.top - MARGIN.bottom;
  const x = (t) => MARGIN.left + t / run.frames * w, y = (s) => MARGIN.top + s / run.size * h;
  pen.imageSmoothingEnabled = false;
  pen.globalAlpha = 0.22; // what is still to come
  pen.drawImage(picture, MARGIN.left, MARGIN.top, w, h);
  pen.globalAlpha = 1;
  pen.fillStyle = style("--page");
  pen.fillRect(x(0), y(0), x(frame + 1) - x(0), h);
  pen.drawImage(picture, 0, 0, frame + 1, picture.height, x(0), y(0), x(frame + 1) - x(0), h);
  pen.fillStyle = style("--accent"); // where each token became known
  for (let s = 0; s < run.size; s++) {
    if (run.committedAt[s] < 0) continue;
    const size = Math.max(1.5, Math.min(3, h / run.size - 1));
    pen.fillRect(x(run.bornAt(s) + 0.5) - size / 2, y(s + 0.5) - size / 2, size, size);
  }
  pen.strokeStyle = style("--line");
  pen.strokeRect(x(0), y(0), w, h);
  pen.strokeStyle = pen.fillStyle = style("--ink");
  pen.lineWidth = 1.5;
  pen.strokeRect(x(frame), y(0), Math.max(2, x(frame + 1) - x(frame)), h);
  if (chosen >= 0) {
    pen.beginPath();
    pen.moveTo(MARGIN.left - 2, y(chosen + 0.5));
    for (const side of [-4, 4]) pen.lineTo(MARGIN.left - 9, y(chosen + 0.5) + side);
    pen.fill();
  }
  pen.fillStyle = style("--dim");
  pen.font = `11px ${style("--sans")}`;
  pen.textAlign = "center";
  for (const t of ticks(run.frames - 1, 6)) if (Number.isInteger(t)) pen.fillText(run.steps[t], x(t + 0.5), height - 6);
  pen.textAlign = "right";
  for (const s of ticks(run.size - 1, 5)) if (Number.isInteger(s)) pen.fillText(s, MARGIN.left - 11, y(s + 0.5) + 4);
}

function element(name, attributes, parent, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

// lines: [class, label, scores over frames]
function drawLine(svg, run, lines, token, frame) {
  const width = svg.clientWidth, height = svg.clientHeight;
  svg.replaceChildren();
  if (!width || token < 0) return;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const w = width - MARGIN.left - MARGIN.right, legend = 18, h = height - legend - MARGIN.top - MARGIN.bottom;
  const top = Math.max(1, ...lines.flatMap(([, , scores]) => [...scores])) * 1.05;
  const x = (t) => MARGIN.left + (t + 0.5) / run.frames * w, y = (score) => legend + MARGIN.top + (1 - score / top) * h;
  for (const score of ticks(top, 3)) {
    element("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(score), y2: y(score) }, svg);
    element("text", { x: MARGIN.left - 6, y: y(score) + 4, "text-anchor": "end" }, svg, String(+score.toPrecision(3)));
  }
  for (const t of ticks(run.frames - 1, 6)) {
    if (Number.isInteger(t)) element("text", { x: x(t), y: height - 6, "text-anchor": "middle" }, svg, run.steps[t]);
  }
  if (run.committedAt[token] >= 0) {
    const born = x(run.bornAt(token));
    element("line", { class: "born", x1: born, x2: born, y1: y(top), y2: y(0) }, svg);
  }
  let place = MARGIN.left;
  for (const [kind, label, scores] of lines) {
    const points = [...scores].map((score, t) => (run.exists(token, t) ? `${x(t).toFixed(1)},${y(score).toFixed(1)}` : null));
    element("polyline", { class: `line ${kind}`, points: points.filter(Boolean).join(" ") }, svg);
    element("line", { class: `line ${kind}`, x1: place, x2: place + 20, y1: 9, y2: 9 }, svg);
    const text = `${label} ${showNumber(scores[frame])}`;
    place += 34 + element("text", { x: place + 23, y: 13 }, svg, text).getComputedTextLength();
  }
  element("line", { class: "now", x1: x(frame), x2: x(frame), y1: y(top), y2: y(0) }, svg);
}
