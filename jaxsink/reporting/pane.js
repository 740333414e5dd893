// One of the two panes: a run, its layer and head, its tokens, its map and the trajectory of the chosen token.

const NAMES = { scores: "all tokens", masked: "masked tokens", unmasked: "unmasked tokens" };

class Pane {
  constructor(player, runIndex) {
    this.player = player;
    this.node = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    for (const node of this.node.querySelectorAll("[data-part]")) this[node.dataset.part.replace("-", "")] = node;
    runs.forEach((run, index) => this.run.append(new Option(run.label, index)));
    this.run.addEventListener("change", () => { this.open(+this.run.value); player.changed(); });
    for (const select of [this.layer, this.head]) select.addEventListener("change", () => player.changed());
    this.grid.addEventListener("click", (event) => this.pickHead(event.target.closest("button")));
    this.tokens.addEventListener("click", (event) => this.pick(this.tokenOf(event)));
    this.tokens.addEventListener("pointermove", (event) => this.point(event, this.tokenOf(event), this.frame));
    this.map.addEventListener("pointermove", (event) => this.point(event, ...this.placeOf(event)));
    this.map.addEventListener("click", (event) => {
      const [token, frame] = this.placeOf(event);
      if (token < 0) return;
      this.pick(token);
      player.goToStep(this.shown.steps[frame]);
    });
    for (const part of [this.tokens, this.map]) part.addEventListener("pointerleave", () => player.hideTip());
    this.node.addEventListener("pointerdown", () => { player.active = this; });
    this.open(runIndex);
  }

  open(index) {
    const run = runs[index];
    const [layer, head] = this.shown ? [this.layer.value, this.head.value] : ["-1", "-1"];
    this.shown = run;
    this.run.value = index;
    this.chosen = -1;
    fill(this.layer, run.layers, layer);
    fill(this.head, run.heads, head);
    drawGrid(this.grid, run);
    this.spans = run.tokens.map((text, position) => {
      const span = document.createElement("span");
      span.textContent = showToken(text);
      span.dataset.position = position;
      return span;
    });
    this.tokens.replaceChildren();
    run.tokens.forEach((text, position) => {
      this.spans[position].className = "token";
      this.tokens.append(this.spans[position]);
      if (text.includes("\n")) this.tokens.append(document.createElement("br"));
    });
    this.settled = false;
  }

  // Widths stay those of the final text, so that nothing jumps while tokens appear.
  settle() {
    if (this.settled || !this.tokens.clientWidth) return;
    const widths = this.spans.map((span) => span.getBoundingClientRect().width);
    this.spans.forEach((span, position) => { span.style.width = `${Math.ceil(widths[position])}px`; });
    this.settled = true;
  }

  // [[view, ramp]] for the choice of queries; all queries where a run was recorded without the split.
  get views() {
    const { queries } = this.player, wanted = queries === "split" ? ["masked", "unmasked"] : [queries];
    const parts = wanted.every((part) => this.shown.has(part)) ? wanted : ["scores"];
    return parts.map((part) => [this.view(part), part]);
  }

  view(part) {
    return this.shown.view(part, +this.layer.value, +this.head.value);
  }

  get top() {
    return Math.max(...this.views.map(([view]) => view.top));
  }

  repaint(limit, scale) {
    this.limit = limit;
    this.scale = scale;
    this.picture = paintMap(this.shown, this.views, limit, scale);
    if (this.chosen < 0) this.chosen = this.strongest();
    markGrid(this.grid, +this.layer.value, +this.head.value);
  }

  // The token that receives most over the whole run.
  strongest() {
    const { values } = this.view("scores"), sums = new Float64Array(this.shown.size);
    values.forEach((value, index) => { sums[index % sums.length] += value; });
    return sums.indexOf(Math.max(...sums));
  }

  draw(step) {
    const run = this.shown, frame = run.frameAt(step), views = this.views;
    this.frame = frame;
    this.settle();
    const sinks = run.sinks(views[0][0], frame);
    if (views[1]) for (const sink of run.sinks(views[1][0], frame)) sinks.add(sink);
    this.spans.forEach((span, position) => this.paintToken(span, position, frame, views, sinks));
    const done = run.tokens.filter((_, position) => !["masked", "absent"].includes(run.state(position, frame))).length;
    const missing = views.length === 1 && this.player.queries !== views[0][1] ? " · recorded without the split" : "";
    const found = sinks.size === 1 ? "1 sink" : `${sinks.size} sinks`;
    this.status.textContent = `step ${run.steps[frame]} · ${done} of ${run.size} tokens known · ${found}${missing}`;
    drawMap(this.map, run, this.picture, frame, this.chosen);
    this.map.setAttribute("aria-label", `Attention received by ${run.size} tokens (down) at ${run.frames} steps (across)`);
    this.drawTrajectory(frame);
  }

  paintToken(span, position, frame, views, sinks) {
    const run = this.shown, state = run.state(position, frame), hidden = state === "masked";
    const shares = views.map(([view]) => strength(view.values[frame * run.size + position], this.limit, this.scale));
    const colours = views.map(([, ramp], i) => colour(shares[i], ramp));
    const text = hidden ? (run.maskText.length <= 2 ? run.maskText : "") : showToken(run.tokens[position]);
    if (span.textContent !== text) span.textContent = text;
    span.className = `token ${state}`;
    span.classList.toggle("sink", sinks.has(position));
    span.classList.toggle("chosen", position === this.chosen);
    span.style.setProperty("--from", `rgb(${colours[0]})`);
    span.style.setProperty("--to", `rgb(${colours.at(-1)})`);
    span.style.setProperty("--glow", Math.max(...shares).toFixed(3));
    span.style.setProperty("--token-ink", inkOn(colours[0].map((value, i) => (value + colours.at(-1)[i]) / 2)));
  }

  drawTrajectory(frame) {
    const run = this.shown, token = this.chosen;
    const over = (part) => Float32Array.from({ length: run.frames }, (_, t) => this.view(part).values[t * run.size + token]);
    const lines = [["all", "all", over("scores")]];
    for (const part of ["masked", "unmasked"]) if (run.has(part)) lines.push([`from-${part}`, part, over(part)]);
    this.linetitle.textContent = `Token ${token}, “${showToken(run.tokens[token]).trim() || "␣"}”, ${this.since(token)}: attention received from`;
    this.line.setAttribute("aria-label", this.linetitle.textContent);
    drawLine(this.line, run, lines, token, frame);
  }

  since(token) {
    const step = this.shown.committedAt[token];
    return step < 0 ? "prompt" : `${this.shown.kind === "arm" ? "written" : "unmasked"} at step ${step}`;
  }

  pick(token) {
    if (token < 0) return;
    this.chosen = token;
    this.player.active = this;
    this.player.draw();
  }

  // A head of the grid; the same one again gives the average.
  pickHead(button) {
    if (!button) return;
    const { layer, head } = button.dataset, again = this.layer.value === layer && this.head.value === head;
    this.layer.value = again ? -1 : layer;
    this.head.value = again ? -1 : head;
    this.player.changed();
  }

  tokenOf(event) {
    const span = event.target.closest(".token");
    return span ? +span.dataset.position : -1;
  }

  // [token, frame] under the pointer on the map
  placeOf(event) {
    const box = this.map.getBoundingClientRect(), run = this.shown;
    const across = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    const down = (event.clientY - box.top - MARGIN.top) / (box.height - MARGIN.top - MARGIN.bottom);
    if (across < 0 || across >= 1 || down < 0 || down >= 1) return [-1, 0];
    return [Math.floor(down * run.size), Math.floor(across * run.frames)];
  }

  point(event, token, frame) {
    if (token < 0) return this.player.hideTip();
    const run = this.shown, state = run.state(token, frame), hidden = state === "masked";
    const lines = [hidden ? `${run.maskText} (will be “${showToken(run.tokens[token])}”)` : `“${showToken(run.tokens[token])}”`];
    lines.push(`position ${token}, ${this.since(token)}`);
    lines.push(run.exists(token, frame) ? `at step ${run.steps[frame]} it receives` : `not there yet at step ${run.steps[frame]}`);
    if (run.exists(token, frame)) for (const part of ["scores", "masked", "unmasked"]) {
      if (run.has(part)) lines.push(`from ${NAMES[part]}: ${showNumber(this.view(part).values[frame * run.size + token])}`);
    }
    this.player.showTip(event, lines.join("\n"));
  }
}

function fill(select, count, value) {
  select.replaceChildren(new Option("average", -1), ...Array.from({ length: count }, (_, i) => new Option(i, i)));
  select.value = +value < count ? value : -1;
}
