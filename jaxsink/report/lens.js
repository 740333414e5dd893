// The lens: what each layer would write at a position, and at which layers and steps that is what stands there in the end.

const FEW = 12, MOST = 24; // lines of the tip from which on only best guesses are told apart, and of which there are no more

// Lines for the tip, the last layer first; layers that read the same are one line, with the range of their shares.
function readings(generation, token, frame) {
  const { lens } = generation;
  if (!lens) return [];
  const at = generation.lensFrame(frame);
  const rows = lens.layers.map((layer, row) => ({ from: layer, to: layer, guesses: generation.guesses(token, at, row) }))
    .filter(({ guesses }) => guesses.length).reverse();
  let lines = merged(rows, Infinity);
  if (lines.length > FEW) lines = merged(rows, 1);
  if (!lines.length) return [];
  const title = lens.frames[at] === frame ? "each layer would write" : `each layer would write, in step ${generation.steps[lens.frames[at]]}`;
  const rest = lines.slice(MOST), more = rest.length ? [`and other things below layer ${rest[0].to + 1}`] : [];
  return [title, ...lines.slice(0, MOST).map(reading), ...more, ...(lens.note ? [`shown: ${lens.note}`] : [])];
}

// Rows with the same words, of their first `best` guesses, as one.
function merged(rows, best) {
  const lines = [];
  for (const { from, to, guesses } of rows) {
    const own = guesses.slice(0, best), last = lines.at(-1);
    if (last && last.guesses.length === own.length && last.guesses.every(({ word }, i) => word === own[i].word)) {
      last.from = from;
      own.forEach(({ share }, i) => Object.assign(last.guesses[i], { low: Math.min(last.guesses[i].low, share), high: Math.max(last.guesses[i].high, share) }));
    } else lines.push({ from, to, guesses: own.map(({ word, share }) => ({ word, low: share, high: share })) });
  }
  return lines;
}

function reading({ from, to, guesses }) {
  const shares = ({ low, high }) => [...new Set([low, high].map((share) => Math.round(100 * share)))].join("–");
  const layers = from === to ? `layer ${to}` : `layers ${from}–${to}`;
  return `${layers}: ${guesses.map((guess) => `${showToken(guess.word)} ${shares(guess)} %`).join(", ")}`;
}

// Layers up, steps to the right (those in between steps that are shown are like the one before): filled where the best guess is what stands there in the end.
function drawReadable(svg, generation, token, frame) {
  const width = svg.clientWidth, height = svg.clientHeight, { frames, lens } = generation, layers = lens.layers.length;
  svg.replaceChildren();
  if (!width) return;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const w = width - MARGIN.left - MARGIN.right, h = height - MARGIN.top - MARGIN.bottom;
  const x = (t) => MARGIN.left + t / frames * w, y = (layer) => MARGIN.top + (1 - layer / layers) * h;
  element("rect", { class: "paper", x: MARGIN.left, y: MARGIN.top, width: w, height: h }, svg);
  for (let at = 0; at < lens.frames.length; at++) for (let row = 0; row < layers; row++) {
    const [best] = generation.guesses(token, at, row), begin = lens.frames[at], end = lens.frames[at + 1] ?? frames;
    if (!best?.isFinal) continue;
    const share = 0.25 + 0.75 * best.share;
    element("rect", { class: "read", x: x(begin), y: y(row + 1), width: x(end) - x(begin), height: h / layers, "fill-opacity": share.toFixed(2) }, svg);
  }
  element("rect", { class: "frame", x: MARGIN.left, y: MARGIN.top, width: w, height: h }, svg);
  element("rect", { class: "step", x: x(frame), y: MARGIN.top, width: Math.max(2, w / frames), height: h }, svg);
  for (const row of ticks(layers - 1, 4)) {
    if (Number.isInteger(row)) element("text", { x: MARGIN.left - 6, y: y(row + 0.5) + 4, "text-anchor": "end" }, svg, lens.layers[row]);
  }
  downTitle(svg, "layer", height);
  stepAxis(svg, generation, (t) => x(t + 0.5), width, height);
}
