// A small table of layers and heads, coloured by how strong their sinks are: a way to find heads worth watching.

// [layer * heads + head]: the largest score of a step, averaged over the steps
function headStrengths(generation) {
  const { codes, table } = generation.decode("scores"), { frames, layers, heads, size } = generation;
  const means = new Float32Array(layers * heads);
  for (let row = 0; row < frames * layers * heads; row++) {
    let top = 0;
    for (let i = row * size; i < (row + 1) * size; i++) if (table[codes[i]] > top) top = table[codes[i]];
    means[row % (layers * heads)] += top / frames;
  }
  return means;
}

function drawGrid(grid, generation) {
  const means = headStrengths(generation), limit = Math.max(...means);
  grid.style.gridTemplateColumns = `repeat(${generation.heads}, 1fr)`;
  grid.style.setProperty("--rows", generation.layers);
  grid.replaceChildren(...Array.from(means, (mean, index) => {
    const button = document.createElement("button"), layer = Math.floor(index / generation.heads), head = index % generation.heads;
    button.type = "button";
    button.tabIndex = -1; // the menus above do the same from the keyboard
    button.title = `layer ${layer}, head ${head}: ${showNumber(mean)}`;
    button.setAttribute("aria-label", button.title);
    Object.assign(button.dataset, { layer, head, share: limit > 0 ? mean / limit : 0 });
    return button;
  }));
}

// Colours for the theme, and a frame around what is shown.
function markGrid(grid, layer, head) {
  for (const button of grid.children) {
    button.style.setProperty("--shade", `rgb(${colour(0.06 + 0.94 * button.dataset.share, "scores")})`);
    const here = (layer < 0 || +button.dataset.layer === layer) && (head < 0 || +button.dataset.head === head);
    button.classList.toggle("used", here && (layer >= 0 || head >= 0));
  }
}
