// One of the two panes: a generation, its layer and head, its tokens, its map and the trajectory of the chosen token.

const NAMES = { scores: "all tokens", masked: "masked tokens", unmasked: "unmasked tokens" };

class Pane {
  constructor(player, { generation, layer, head }) {
    this.player = player;
    this.node = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    for (const node of this.node.querySelectorAll("[data-part]")) this[node.dataset.part.replace("-", "")] = node;
    this.chart = new MapChart(this.map);
    this.generation.addEventListener("change", () => { this.open(generations[+this.generation.value]); player.changed(); });
    for (const select of [this.layer, this.head]) select.addEventListener("change", () => this.chooseHead(this.layer.value, this.head.value));
    this.moving.addEventListener("click", () => this.chooseHead(...this.shown.moving));
    this.grid.addEventListener("click", (event) => this.pickHead(event.target.closest("button")));
    this.tokens.addEventListener("click", (event) => this.pick(this.tokenOf(event)));
    this.tokens.addEventListener("pointermove", (event) => this.point(event, this.tokenOf(event), this.frame));
    this.map.addEventListener("pointermove", (event) => this.point(event, ...this.chart.under(event)));
    this.map.addEventListener("click", (event) => this.goTo(...this.chart.under(event)));
    this.line.addEventListener("pointermove", (event) => this.point(event, this.chosen, frameUnder(event, this.line, this.shown)));
    this.line.addEventListener("click", (event) => this.goTo(this.chosen, frameUnder(event, this.line, this.shown)));
    for (const part of [this.tokens, this.map, this.line]) part.addEventListener("pointerleave", hideTip);
    this.node.addEventListener("pointerdown", () => { player.active = this; });
    this.open(generations[generation], layer, head);
  }

  // Show a generation; its layer and head stay where they are, as far as it has them.
  open(generation, layer = this.layer.value, head = this.head.value) {
    this.shown = generation;
    const same = generations.filter((other) => other.problem === generation.problem);
    this.generation.replaceChildren(...same.map((other) => new Option(other.label, other.index)));
    this.generation.value = generation.index;
    this.chosen = -1;
    fill(this.layer, generation.layers, layer);
    fill(this.head, generation.heads, head);
    drawGrid(this.grid, generation);
    this.spans = generation.tokens.map((text, position) => {
      const span = document.createElement("span");
      span.dataset.position = position;
      return span;
    });
    this.breaks = generation.tokens.map((text) => (text.includes("\n") ? document.createElement("br") : null));
    this.tokens.replaceChildren(...this.spans.flatMap((span, position) => [span, this.breaks[position]].filter(Boolean)));
    this.tokens.style.minHeight = "";
  }

  get place() {
    return { generation: this.shown, layer: +this.layer.value, head: +this.head.value };
  }

  // [[view, ramp]] for the choice of queries; all queries where a generation was recorded without the split.
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
    this.resize();
  }

  resize() {
    this.chart.draw(this.shown, this.picture);
    this.tokens.style.minHeight = "";
  }

  // The token that receives most over the whole generation.
  strongest() {
    const { values } = this.view("scores"), sums = new Float64Array(this.shown.size);
    values.forEach((value, index) => { sums[index % sums.length] += value; });
    return sums.indexOf(Math.max(...sums));
  }

  draw(step) {
    const generation = this.shown, frame = generation.frameAt(step), views = this.views;
    this.frame = frame;
    const sinks = generation.sinks(views[0][0], frame);
    if (views[1]) for (const sink of generation.sinks(views[1][0], frame)) sinks.add(sink);
    this.tokens.classList.toggle("split", views.length > 1);
    this.spans.forEach((span, position) => this.paintToken(span, position, frame, views, sinks));
    this.tokens.style.minHeight = `${this.tokens.offsetHeight}px`; // what is below does not jump while tokens appear
    const known = generation.tokens.filter((_, position) => !this.isSecret(position, frame)).length;
    const missing = views.length === 1 && this.player.queries !== views[0][1] ? " · recorded without the split" : "";
    const found = sinks.size === 1 ? "1 sink" : `${sinks.size} sinks`;
    this.status.textContent = `step ${generation.steps[frame]} · ${known} of ${generation.size} tokens known · ${found}${missing}`;
    this.chart.move(frame, this.chosen);
    this.map.setAttribute("aria-label", `Attention received by ${generation.size} positions (down) at ${generation.frames} steps (to the right)`);
    this.drawTrajectory(frame);
  }

  // Whether a token is still to come; then nothing may show what it will be, not even how long it is.
  isSecret(position, frame) {
    return ["masked", "absent"].includes(this.shown.state(position, frame));
  }

  paintToken(span, position, frame, views, sinks) {
    const generation = this.shown, state = generation.state(position, frame), secret = this.isSecret(position, frame);
    const shares = views.map(([view]) => strength(view.values[frame * generation.size + position], this.limit, this.scale));
    const colours = views.map(([, ramp], i) => colour(shares[i], ramp));
    const text = secret ? "" : showToken(generation.tokens[position]);
    if (span.textContent !== text) span.textContent = text;
    if (this.breaks[position]) this.breaks[position].hidden = secret;
    span.className = `token ${state}`;
    span.classList.toggle("sink", sinks.has(position));
    span.classList.toggle("chosen", position === this.chosen);
    span.classList.toggle("hidden", generation.isHidden(this.view("scores"), position, frame, +this.layer.value, +this.head.value));
    span.style.setProperty("--from", `rgb(${colours[0]})`);
    span.style.setProperty("--to", `rgb(${colours.at(-1)})`);
    span.style.setProperty("--glow", Math.max(...shares).toFixed(3));
    span.style.setProperty("--token-ink", inkOn(colours[0]));
  }

  drawTrajectory(frame) {
    const generation = this.shown, token = this.chosen;
    const over = (part) => Float32Array.from({ length: generation.frames }, (_, t) => this.view(part).values[t * generation.size + token]);
    const lines = [["all", "all", over("scores")]];
    if (generation.isSplit) for (const part of ["masked", "unmasked"]) lines.push([`from-${part}`, part, over(part)]);
    this.linetitle.textContent = `Position ${token}, ${this.textOf(token, frame)}, ${this.since(token)}: attention received from`;
    this.line.setAttribute("aria-label", this.linetitle.textContent);
    drawLine(this.line, generation, lines, token, frame);
    this.readabletitle.hidden = this.readable.hidden = !generation.lens;
    if (!generation.lens) return;
    this.readabletitle.textContent = `Position ${token}: where the lens reads what stands there in the end${generation.lens.note ? ` (${generation.lens.note})` : ""}`;
    this.readable.setAttribute("aria-label", this.readabletitle.textContent);
    drawReadable(this.readable, generation, token, frame);
  }

  textOf(token, frame) {
    return this.isSecret(token, frame) ? "still to come" : `“${showToken(this.shown.tokens[token]).trim() || "␣"}”`;
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

  goTo(token, frame) {
    if (token < 0 || frame < 0) return;
    this.pick(token);
    this.player.goToStep(this.shown.steps[frame]);
  }

  chooseHead(layer, head) {
    this.layer.value = layer;
    this.head.value = head;
    this.player.follow(this);
    this.player.changed();
  }

  // A head of the grid; the same one again gives the average.
  pickHead(button) {
    if (!button) return;
    const { layer, head } = button.dataset, again = this.layer.value === layer && this.head.value === head;
    this.chooseHead(again ? -1 : layer, again ? -1 : head);
  }

  tokenOf(event) {
    const span = event.target.closest(".token");
    return span ? +span.dataset.position : -1;
  }

  point(event, token, frame) {
    if (token < 0 || frame < 0) return hideTip();
    const generation = this.shown, lines = [this.textOf(token, frame), `position ${token}, ${this.since(token)}`];
    lines.push(generation.exists(token, frame) ? `at step ${generation.steps[frame]} it receives` : `not there yet at step ${generation.steps[frame]}`);
    if (generation.exists(token, frame)) for (const part of ["scores", "masked", "unmasked"]) {
      if (generation.has(part)) lines.push(`from ${NAMES[part]}: ${showNumber(this.view(part).values[frame * generation.size + token])}`);
    }
    if (generation.isHidden(this.view("scores"), token, frame, +this.layer.value, +this.head.value)) lines.push("hidden from this head");
    if (this.isSecret(token, frame)) lines.push(...readings(generation, token, frame));
    showTip(event, lines.join("\n"));
  }
}

function fill(select, count, value) {
  select.replaceChildren(new Option("mean", -1), ...Array.from({ length: count }, (_, i) => new Option(i, i)));
  select.value = +value < count ? value : -1;
}
