// The map: every position (down) at every step (to the right).

// The colours only, one pixel per score; views: one or two (masked above unmasked), each [view, ramp]. An address of data.
function paintMap(generation, views, limit, scale) {
  const image = new ImageData(generation.frames, generation.size * views.length);
  views.forEach(([view, ramp], offset) => {
    const table = Array.from({ length: 256 }, (_, i) => colour(i / 255, ramp));
    for (let t = 0; t < generation.frames; t++) for (let s = 0; s < generation.size; s++) {
      const rgb = table[Math.round(255 * strength(view.values[t * generation.size + s], limit, scale))];
      const at = 4 * ((s * views.length + offset) * generation.frames + t);
      image.data.set([rgb[0], rgb[1], rgb[2], generation.exists(s, t) ? 255 : 0], at);
    }
  });
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas.toDataURL();
}

class MapChart {
  constructor(svg) {
    this.svg = svg;
  }

  // Everything that does not depend on the step.
  draw(generation, picture) {
    const { svg } = this, width = svg.clientWidth, height = svg.clientHeight;
    svg.replaceChildren();
    this.drawn = width > 0;
    if (!width) return;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    Object.assign(this, { generation, w: width - MARGIN.left - MARGIN.right, h: height - MARGIN.top - MARGIN.bottom });
    const inside = { x: MARGIN.left, y: MARGIN.top, width: this.w, height: this.h };
    element("rect", { class: "paper", ...inside }, svg);
    element("image", { ...inside, href: picture, preserveAspectRatio: "none", style: "image-rendering: pixelated" }, svg);
    this.later = element("rect", { class: "later", ...inside }, svg);
    const dots = element("g", { class: "dots" }, svg), dot = Math.max(1.5, Math.min(3, this.h / generation.size - 1));
    for (let s = 0; s < generation.size; s++) {
      if (generation.committedAt[s] < 0) continue;
      const [x, y] = [this.x(generation.bornAt(s) + 0.5) - dot / 2, this.y(s + 0.5) - dot / 2];
      element("rect", { x: x.toFixed(1), y: y.toFixed(1), width: dot, height: dot }, dots);
    }
    const edge = this.y(generation.promptLength);
    element("line", { class: "response", x1: MARGIN.left, x2: MARGIN.left + this.w, y1: edge, y2: edge }, svg);
    element("rect", { class: "frame", ...inside }, svg);
    this.now = element("rect", { class: "step", y: MARGIN.top, height: this.h }, svg);
    this.arrow = element("path", { class: "arrow" }, svg);
    for (const s of ticks(generation.size - 1, 5)) {
      if (Number.isInteger(s)) element("text", { x: MARGIN.left - 11, y: this.y(s + 0.5) + 4, "text-anchor": "end" }, svg, s);
    }
    downTitle(svg, "position", height);
    stepAxis(svg, generation, (t) => this.x(t + 0.5), width, height);
  }

  x(frame) {
    return MARGIN.left + frame / this.generation.frames * this.w;
  }

  y(position) {
    return MARGIN.top + position / this.generation.size * this.h;
  }

  // The step that is shown; what is still to come stays pale. An arrow points at the chosen token.
  move(frame, chosen) {
    if (!this.drawn) return;
    const [from, to] = [this.x(frame), this.x(frame + 1)];
    this.later.setAttribute("x", to);
    this.later.setAttribute("width", Math.max(0, MARGIN.left + this.w - to));
    this.now.setAttribute("x", from);
    this.now.setAttribute("width", Math.max(2, to - from));
    const y = this.y(chosen + 0.5);
    this.arrow.setAttribute("d", chosen < 0 ? "" : `M${MARGIN.left - 2} ${y}l-7 -4v8z`);
  }

  // [token, frame] under the pointer; token -1 beside the map
  under(event) {
    const box = this.svg.getBoundingClientRect(), frame = frameUnder(event, this.svg, this.generation);
    const down = (event.clientY - box.top - MARGIN.top) / (box.height - MARGIN.top - MARGIN.bottom);
    return frame < 0 || down < 0 || down >= 1 ? [-1, 0] : [Math.floor(down * this.generation.size), frame];
  }
}
