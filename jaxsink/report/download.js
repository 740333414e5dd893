// The current view as a file: one drawing of the panes' titles, tokens, maps and trajectories; as SVG, or painted as PNG.

const KEPT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size"];
const PADDING = 16, TITLE = 26;

function viewDrawing(player) {
  const outer = document.getElementById("panes").getBoundingClientRect();
  const charts = player.used.flatMap((pane) => [pane.map, pane.line]);
  const bottom = Math.max(...charts.map((chart) => chart.getBoundingClientRect().bottom));
  const [width, height] = [outer.width + 2 * PADDING, bottom - outer.top + 2 * PADDING].map(Math.ceil);
  const drawing = element("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
  element("rect", { width, height, fill: style("--card") }, drawing);
  const place = (node) => {
    const box = node.getBoundingClientRect();
    return { x: box.left - outer.left + PADDING, y: box.top - outer.top + PADDING, width: box.width, height: box.height };
  };
  for (const pane of player.used) {
    const { generation, layer, head } = pane.place, { x, y } = place(pane.node);
    const where = `${layer < 0 ? "all layers" : `layer ${layer}`}, ${head < 0 ? "all heads" : `head ${head}`}`;
    const title = { x, y: y + TITLE / 2, "font-family": "sans-serif", "font-size": 14, fill: style("--ink") };
    element("text", title, drawing, `${generation.label} · ${where} · step ${generation.steps[pane.frame]}`);
    pane.views.forEach(([, ramp], index) => drawScale(drawing, ramp, pane.limit, x + 230 * index, y + TITLE));
    for (const span of pane.spans) drawToken(drawing, span, place(span));
    const { x: left, y: under } = place(pane.linetitle);
    element("text", { ...title, x: left, y: under + 14, "font-size": 12 }, drawing, pane.linetitle.textContent);
    for (const chart of [pane.map, pane.line]) drawing.append(chartCopy(chart, place(chart)));
  }
  return { drawing, width, height };
}

// The colours from 0 to the largest score.
function drawScale(drawing, ramp, limit, x, y) {
  const look = { y: y + 10, "font-family": "sans-serif", "font-size": 12, fill: style("--dim") };
  const label = element("text", { ...look, x }, drawing, `${ramp === "scores" ? "received" : `from ${ramp}`} 0`);
  const left = x + 7 * label.textContent.length, stops = 24, width = 96;
  for (let i = 0; i < stops; i++) {
    const part = { x: left + i * width / stops, y, width: width / stops + 0.5, height: 12 };
    element("rect", { ...part, fill: `rgb(${colour(i / (stops - 1), ramp)})` }, drawing);
  }
  element("text", { ...look, x: left + width + 6 }, drawing, showNumber(limit));
}

function drawToken(drawing, span, box) {
  if (!box.width) return;
  const look = getComputedStyle(span), { x, y, width, height } = box;
  const edge = span.matches(".sink, .fresh") ? { stroke: look.outlineColor, "stroke-width": 2 } : {};
  if (span.matches(".fresh:not(.sink)")) edge["stroke-dasharray"] = "2 2";
  element("rect", { x, y, width, height, rx: 3, fill: look.backgroundColor, ...edge }, drawing);
  if (span.matches(".masked")) element("rect", { x: x + 2, y: y + height / 2 - 1, width: width - 4, height: 2, fill: style("--dim") }, drawing);
  if (span.matches(".hidden")) element("rect", { x, y, width, height: 3, fill: style("--bad") }, drawing);
  const text = { x: x + width / 2, y: y + height * 0.68, "text-anchor": "middle", "font-family": "monospace", "font-size": 13, fill: look.color };
  element("text", { ...text, "xml:space": "preserve" }, drawing, span.textContent.trim());
}

// A chart with its looks written into it, as a file has no style sheet.
function chartCopy(chart, { x, y, width, height }) {
  const copy = chart.cloneNode(true), [from, to] = [chart, copy].map((node) => node.querySelectorAll("*"));
  from.forEach((node, index) => {
    const look = getComputedStyle(node);
    for (const name of KEPT) to[index].setAttribute(name, look.getPropertyValue(name));
    to[index].removeAttribute("class");
  });
  for (const [name, value] of Object.entries({ x, y, width, height })) copy.setAttribute(name, value);
  for (const name of ["class", "data-part", "role", "aria-label"]) copy.removeAttribute(name);
  return copy;
}

function save(url, name) {
  const link = document.createElement("a");
  [link.href, link.download] = [url, name];
  link.click();
}

function downloadSvg(player) {
  const text = new XMLSerializer().serializeToString(viewDrawing(player).drawing);
  save(URL.createObjectURL(new Blob([text], { type: "image/svg+xml" })), `${fileName(player)}.svg`);
}

function downloadPng(player) {
  const { drawing, width, height } = viewDrawing(player), image = new Image(), dots = 2;
  image.addEventListener("load", () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [dots * width, dots * height];
    const pen = canvas.getContext("2d");
    pen.scale(dots, dots);
    pen.drawImage(image, 0, 0, width, height);
    canvas.toBlob((blob) => save(URL.createObjectURL(blob), `${fileName(player)}.png`));
  });
  image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(drawing))}`;
}

function fileName(player) {
  const { generation, layer, head } = player.panes[0].place, part = (name, value) => (value < 0 ? "" : `-${name}${value}`);
  return `${generation.name}${part("layer", layer)}${part("head", head)}-step${player.step}`;
}
