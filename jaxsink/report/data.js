"use strict";
// The numbers behind the player: decoding, averaging over layers and heads, and the rule for sinks.

const study = JSON.parse(document.getElementById("study").textContent);
const EPSILON = study.eps; // a sink exceeds the mean of the others by more than this

function halfTable() {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    table[bits] = exponent === 0 ? sign * fraction * 2 ** -24
      : exponent === 31 ? NaN : sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return table;
}

function codeTable(top) {
  return Float32Array.from({ length: 256 }, (_, code) => Math.expm1(code / 255 * Math.log1p(top)));
}

let halves = null;

class Generation {
  constructor(about, index) {
    Object.assign(this, about);
    this.index = index;
    [this.frames, this.layers, this.heads, this.size] = about.shape;
    this.decoded = {};
    this.views = new Map();
  }

  // Whether attention was also recorded by the kind of the query.
  get isSplit() {
    return "masked" in this.parts;
  }

  has(part) {
    return part === "scores" || this.isSplit;
  }

  get label() {
    return this.condition ? `${this.model}, ${this.condition}` : this.model;
  }

  // [frame, layer, head, token] as codes, with the table that turns them into scores.
  decode(part) {
    if (!this.decoded[part]) {
      const text = atob(document.getElementById(`generation-${this.index}-${part}`).textContent);
      const bytes = new Uint8Array(text.length);
      for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
      if (this.bits === 16) {
        const codes = new Uint16Array(bytes.length / 2);
        for (let i = 0; i < codes.length; i++) codes[i] = bytes[2 * i] | (bytes[2 * i + 1] << 8);
        halves ??= halfTable();
        this.decoded[part] = { codes, table: halves };
      } else {
        this.decoded[part] = { codes: bytes, table: codeTable(this.parts[part].top) };
      }
    }
    return this.decoded[part];
  }

  // Scores [frame, token] of one layer and head, -1 for the average over them; {values, top}.
  view(part, layer, head) {
    const key = `${part} ${layer} ${head}`;
    if (!this.views.has(key)) this.views.set(key, part === "unmasked" ? this.rest(layer, head) : this.average(part, layer, head));
    return this.views.get(key);
  }

  // What queries that are not masked contribute.
  rest(layer, head) {
    const [all, masked] = ["scores", "masked"].map((part) => this.view(part, layer, head).values);
    return withTop(all.map((value, i) => Math.max(0, value - masked[i])));
  }

  average(part, layer, head) {
    const { codes, table } = this.decode(part), { frames, layers, heads, size } = this;
    const values = new Float32Array(frames * size);
    const someLayers = layer < 0 ? [...Array(layers).keys()] : [layer];
    const someHeads = head < 0 ? [...Array(heads).keys()] : [head];
    const share = 1 / (someLayers.length * someHeads.length);
    for (let t = 0; t < frames; t++) {
      for (const l of someLayers) for (const h of someHeads) {
        const start = ((t * layers + l) * heads + h) * size;
        for (let s = 0; s < size; s++) values[t * size + s] += share * table[codes[start + s]];
      }
    }
    return withTop(values);
  }

  // Which of the frames with guesses is shown at a frame: the last one.
  lensFrame(frame) {
    let at = 0;
    while (at + 1 < this.lens.frames.length && this.lens.frames[at + 1] <= frame) at++;
    return at;
  }

  // What the lens reads: word, share and whether it is what stands there in the end; for each of its layers the best guesses.
  guesses(token, at, row) {
    const { shape: [, layers, size, best], place } = this.lens, slot = (place[at] ?? place[0]).indexOf(token);
    if (slot < 0) return [];
    this.lens.codes ??= this.decodeLens();
    const { words, shares } = this.lens.codes, first = ((at * layers + row) * size + slot) * best;
    return Array.from({ length: best }, (_, i) => first + i).filter((at) => words[at] !== 0xffff)
      .map((at) => ({ word: this.lens.words[words[at]], share: shares[at] / 255, isFinal: words[at] === this.lens.final[token] }));
  }

  decodeLens() {
    const text = atob(document.getElementById(`generation-${this.index}-lens`).textContent), bytes = Uint8Array.from(text, (char) => char.charCodeAt(0));
    const count = bytes.length / 3, words = Uint16Array.from({ length: count }, (_, i) => bytes[2 * i] | (bytes[2 * i + 1] << 8));
    return { words, shares: bytes.subarray(2 * count) };
  }

  // The frame that was last recorded at a step.
  frameAt(step) {
    let frame = 0;
    while (frame + 1 < this.frames && this.steps[frame + 1] <= step) frame++;
    return frame;
  }

  // The first frame that shows what a token became.
  bornAt(token) {
    const frame = this.steps.findIndex((step) => step >= this.committedAt[token]);
    return frame < 0 ? this.frames - 1 : frame;
  }

  // prompt, done, fresh (became known with this frame), masked, or absent (not written yet).
  state(token, frame) {
    if (this.committedAt[token] < 0) return "prompt";
    const born = this.bornAt(token);
    return frame > born ? "done" : frame === born ? "fresh" : this.kind === "arm" ? "absent" : "masked";
  }

  // Whether a token was there for the pass of a frame.
  exists(token, frame) {
    return this.kind === "dlm" || this.committedAt[token] < this.steps[frame];
  }

  // Whether a key was hidden from a head: then it receives nothing at all. One head only; an average tells nothing.
  isHidden(view, token, frame, layer, head) {
    return Boolean(this.condition) && this.bits === 16 && layer >= 0 && head >= 0 && frame > 0
      && this.exists(token, frame) && view.values[frame * this.size + token] === 0;
  }

  sinks(view, frame) {
    const found = new Set(), start = frame * this.size;
    let total = 0, count = 0;
    for (let s = 0; s < this.size; s++) if (this.exists(s, frame)) { total += view.values[start + s]; count++; }
    for (let s = 0; s < this.size && count > 1; s++) {
      const score = view.values[start + s];
      if (this.exists(s, frame) && score > (total - score) / (count - 1) + EPSILON) found.add(s);
    }
    return found;
  }
}

function withTop(values) {
  let top = 0;
  for (const value of values) if (value > top) top = value;
  return { values, top };
}

const generations = study.generations.map((about, index) => new Generation(about, index));

function showToken(text) {
  const signs = { "\n": "↵", "\t": "⇥", "\r": "␍" };
  return text.replace(/[\n\t\r]/g, (char) => signs[char]) || "∅";
}

function showNumber(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}
