// The player: two panes that share the step, the choice of queries and the colours; buttons, slider and keys.

const PAUSE = 220; // milliseconds between two steps at speed 1

class Player {
  constructor(root) {
    this.root = root;
    const find = (id) => document.getElementById(id);
    [this.playButton, this.slider, this.output, this.tip, this.legend] = ["play", "step", "step-text", "tip", "legend"].map(find);
    this.speed = find("speed");
    this.scale = find("scale");
    this.beside = find("beside");
    this.timer = null;
    this.panes = [0, 1].map((i) => new Pane(this, study.show[i] ?? study.show[0]));
    this.active = this.panes[0];
    find("panes").append(...this.panes.map((pane) => pane.node));
    this.beside.checked = study.show.length > 1;
    this.playButton.addEventListener("click", () => this.toggle());
    this.slider.addEventListener("input", () => { this.pause(); this.draw(); });
    this.scale.addEventListener("change", () => this.changed());
    this.beside.addEventListener("change", () => this.changed());
    find("queries").addEventListener("change", () => this.changed());
    document.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(find("panes"));
    this.changed();
  }

  get queries() {
    return this.root.querySelector("input[name=queries]:checked").value;
  }

  get kind() {
    return this.scale.value === "linear" ? "linear" : "log";
  }

  get used() {
    return this.beside.checked ? this.panes : this.panes.slice(0, 1);
  }

  get step() {
    return this.steps[+this.slider.value];
  }

  // Another run, layer, head, kind of query, colour scale or theme: everything that changes more than the step.
  changed() {
    this.panes[1].node.hidden = !this.beside.checked;
    const before = this.steps ? this.step : 0;
    this.steps = [...new Set(this.used.flatMap((pane) => pane.shown.steps))].sort((a, b) => a - b);
    this.slider.max = this.steps.length - 1;
    const tops = this.used.map((pane) => pane.top), own = this.scale.value === "own";
    this.limits = own ? tops : tops.map(() => Math.max(...tops));
    this.used.forEach((pane, index) => pane.repaint(this.limits[index], this.kind));
    this.drawLegend();
    this.goToStep(before);
  }

  drawLegend() {
    const ramps = this.queries === "split" ? ["masked", "unmasked"] : [this.queries];
    this.legend.replaceChildren(...ramps.map((ramp) => {
      const item = document.createElement("span"), bar = document.createElement("i");
      bar.style.background = gradient(ramp);
      const limits = [...new Set(this.limits)];
      const [half, top] = [limits.map((limit) => middle(limit, this.kind)), limits].map((list) => list.map(showNumber).join(" and "));
      item.append(ramps.length > 1 ? `${ramp} ` : "", "0", bar, `${top} (middle ${half})`);
      return item;
    }));
  }

  goToStep(step) {
    const index = this.steps.findIndex((other) => other >= step);
    this.go(index < 0 ? this.steps.length - 1 : index);
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
    clearTimeout(this.timer);
    this.timer = null;
    this.showPlaying(false);
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
    const box = this.root.getBoundingClientRect(), middle = window.innerHeight / 2;
    return event.target === document.body && box.top < middle && box.bottom > middle;
  }

  key(event) {
    const far = event.shiftKey ? 10 : 1, now = +this.slider.value;
    const actions = {
      " ": () => this.toggle(),
      ArrowLeft: () => { this.pause(); this.go(now - far); },
      ArrowRight: () => { this.pause(); this.go(now + far); },
      Home: () => { this.pause(); this.go(0); },
      End: () => { this.pause(); this.go(this.steps.length - 1); },
      ArrowUp: () => this.move(-1),
      ArrowDown: () => this.move(1),
    };
    if (!(event.key in actions) || !this.hears(event)) return;
    event.preventDefault();
    actions[event.key]();
  }

  move(by) {
    const pane = this.used.includes(this.active) ? this.active : this.panes[0];
    pane.pick(Math.max(0, Math.min(pane.shown.size - 1, pane.chosen + by)));
  }

  showTip(event, text) {
    this.tip.textContent = text;
    this.tip.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const above = event.clientY - height - 14;
    this.tip.style.left = `${Math.max(4, Math.min(window.innerWidth - width - 4, event.clientX + 12))}px`;
    this.tip.style.top = `${above > 4 ? above : event.clientY + 20}px`;
  }

  hideTip() {
    this.tip.hidden = true;
  }
}
