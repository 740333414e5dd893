// The player: two panes that share the problem, the step, the choice of queries and the colours; buttons, slider and keys.

const PAUSE = 220; // milliseconds between two steps at speed 1

class Player {
  constructor(root) {
    this.root = root;
    const find = (id) => document.getElementById(id);
    [this.playButton, this.slider, this.output, this.legend] = ["play", "step", "step-text", "legend"].map(find);
    [this.speed, this.scale, this.problem, this.beside] = ["speed", "scale", "problem", "beside"].map(find);
    this.timer = null;
    this.panes = [0, 1].map((i) => new Pane(this, study.show[i] ?? study.show[0]));
    this.active = this.panes[0];
    this.isPair = study.show.length > 1;
    find("panes").append(...this.panes.map((pane) => pane.node));
    fillProblems(this.problem);
    this.playButton.addEventListener("click", () => this.toggle());
    this.slider.addEventListener("input", () => { this.pause(); this.draw(); });
    this.slider.addEventListener("change", () => this.onChange());
    this.problem.addEventListener("change", () => this.openProblem(this.problem.value));
    this.beside.addEventListener("change", () => this.openBeside(+this.beside.value));
    for (const node of [this.scale, find("queries")]) node.addEventListener("change", () => this.changed());
    document.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => { for (const pane of this.used) pane.resize(); this.draw(); }).observe(find("panes"));
    this.onChange = () => {};
    this.changed();
  }

  get queries() {
    return this.root.querySelector("input[name=queries]:checked").value;
  }

  get kind() {
    return this.scale.value === "linear" ? "linear" : "log";
  }

  get used() {
    return this.isPair ? this.panes : this.panes.slice(0, 1);
  }

  get step() {
    return this.steps[+this.slider.value];
  }

  // Another problem, with the same models and conditions as far as it has them.
  openProblem(problem) {
    for (const pane of this.panes) {
      const { model, condition } = pane.shown, others = generations.filter((generation) => generation.problem === problem);
      const alike = others.find((generation) => generation.model === model && generation.condition === condition);
      pane.open(alike ?? others.find((generation) => generation.model === model) ?? others[0]);
    }
    this.changed();
  }

  openBeside(index) {
    this.isPair = index >= 0;
    if (this.isPair) this.panes[1].open(generations[index], ...this.headFor(generations[index]));
    this.changed();
  }

  // [layer, head] to compare with: the same for the same model, else the generation's own that moves most.
  headFor(generation) {
    const first = this.panes[0];
    return generation.model === first.shown.model ? [first.layer.value, first.head.value] : generation.moving;
  }

  // Two generations of one model show the same head.
  follow(pane) {
    const other = this.panes.find((one) => one !== pane);
    if (other?.shown.model !== pane.shown.model) return;
    [other.layer.value, other.head.value] = [pane.layer.value, pane.head.value];
  }

  // Another generation, layer, head, kind of query, colour scale or theme: everything that changes more than the step.
  changed() {
    this.panes[1].node.hidden = !this.isPair;
    this.problem.value = this.panes[0].shown.problem;
    this.fillBeside();
    const before = this.steps ? this.step : 0;
    this.steps = [...new Set(this.used.flatMap((pane) => pane.shown.steps))].sort((a, b) => a - b);
    this.slider.max = this.steps.length - 1;
    const tops = this.used.map((pane) => pane.top), own = this.scale.value === "own";
    this.limits = own ? tops : tops.map(() => Math.max(...tops));
    this.used.forEach((pane, index) => pane.repaint(this.limits[index], this.kind));
    document.getElementById("hidden-sign").hidden = !this.used.some((pane) => pane.shown.condition);
    this.drawLegend();
    this.goToStep(before);
  }

  fillBeside() {
    const { shown } = this.panes[0], same = generations.filter((generation) => generation.problem === shown.problem && generation !== shown);
    const own = (generation) => (generation.model === shown.model ? generation.condition || "nothing hidden" : generation.label);
    this.beside.replaceChildren(new Option("nothing", -1), ...same.map((generation) => new Option(own(generation), generation.index)));
    const now = this.isPair ? this.panes[1].shown : null;
    this.beside.value = now && same.includes(now) ? now.index : -1;
    this.beside.parentElement.hidden = !same.length;
  }

  drawLegend() {
    const ramps = this.queries === "split" ? ["masked", "unmasked"] : [this.queries];
    this.legend.replaceChildren(...ramps.map((ramp) => {
      const item = document.createElement("span"), bar = document.createElement("i");
      bar.style.background = gradient(ramp);
      const limits = [...new Set(this.limits)];
      const [half, top] = [limits.map((limit) => middle(limit, this.kind)), limits].map((list) => list.map(showNumber).join(" and "));
      item.title = `The middle of the colours is ${half}.`;
      item.append(ramps.length > 1 ? `from ${ramp} ` : "received ", "0", bar, top);
      return item;
    }));
  }

  goToStep(step) {
    const index = this.steps.findIndex((other) => other >= step);
    this.go(index < 0 ? this.steps.length - 1 : index);
    this.onChange();
  }

  go(index) {
    this.slider.value = Math.max(0, Math.min(this.steps.length - 1, index));
    this.draw();
  }

  draw() {
    for (const pane of this.used) pane.draw(this.step);
    this.output.textContent = `step ${this.step} of ${this.steps.at(-1)}`;
    this.slider.setAttribute("aria-valuetext", this.output.textContent);
    this.root.dataset.step = this.step;
  }

  toggle() {
    if (this.timer !== null) return this.pause();
    if (+this.slider.value >= this.steps.length - 1) this.go(0);
    this.showPlaying(true);
    this.tick();
  }

  tick() {
    this.timer = setTimeout(() => {
      this.go(+this.slider.value + 1);
      if (+this.slider.value >= this.steps.length - 1) this.pause();
      else this.tick();
    }, PAUSE / +this.speed.value);
  }

  pause() {
    const played = this.timer !== null;
    clearTimeout(this.timer);
    this.timer = null;
    this.showPlaying(false);
    if (played) this.onChange();
  }

  showPlaying(playing) {
    this.playButton.textContent = playing ? "❚❚ Pause" : "▶ Play";
    this.playButton.setAttribute("aria-pressed", playing);
  }

  // Keys work while the player has the focus, or is what the window shows and nothing else has it.
  hears(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return false;
    if (event.key === " " && event.target.matches("button")) return false; // presses the button, as everywhere
    if (this.root.contains(event.target)) return !event.target.matches("select, summary, input[type=checkbox], input[type=radio]");
    const box = this.root.getBoundingClientRect(), half = window.innerHeight / 2;
    return event.target === document.body && box.top < half && box.bottom > half;
  }

  key(event) {
    const far = event.shiftKey ? 10 : 1, now = +this.slider.value;
    const move = (index) => { this.pause(); this.go(index); this.onChange(); };
    const actions = {
      " ": () => this.toggle(),
      ArrowLeft: () => move(now - far),
      ArrowRight: () => move(now + far),
      Home: () => move(0),
      End: () => move(this.steps.length - 1),
      ArrowUp: () => this.pickNext(-1),
      ArrowDown: () => this.pickNext(1),
    };
    if (!(event.key in actions) || !this.hears(event)) return;
    event.preventDefault();
    actions[event.key]();
  }

  pickNext(by) {
    const pane = this.used.includes(this.active) ? this.active : this.panes[0];
    pane.pick(Math.max(0, Math.min(pane.shown.size - 1, pane.chosen + by)));
  }
}

// Each problem with the beginning of its prompt, so that one knows what it is about.
function fillProblems(select) {
  const problems = [...new Set(generations.map((generation) => generation.problem))];
  select.replaceChildren(...problems.map((problem) => {
    const generation = generations.find((other) => other.problem === problem);
    const text = generation.tokens.slice(0, generation.promptLength).filter((token) => !/^<.*>$/.test(token)).join("").replace(/\s+/g, " ").trim();
    const short = text.length > 48 ? `${text.slice(0, 47)}…` : text;
    return new Option([problem, short].filter(Boolean).join(": "), problem);
  }));
  select.parentElement.hidden = problems.length < 2;
}
