// The view in the page's address, so that it can be sent to others: #generation=NAME&layer=3&head=3&step=12&beside=NAME&layer2=3&head2=3

function writeAddress(player) {
  const words = new URLSearchParams();
  player.used.forEach((pane, index) => {
    const { generation, layer, head } = pane.place, end = index ? "2" : "";
    words.set(index ? "beside" : "generation", generation.name);
    words.set(`layer${end}`, layer < 0 ? "mean" : layer);
    words.set(`head${end}`, head < 0 ? "mean" : head);
  });
  words.set("step", player.step);
  try { history.replaceState(null, "", `#${words}`); } catch { /* a frame without an address, as in a notebook */ }
}

// Show what the address says; false if it says nothing about the player.
function readAddress(player) {
  const words = new URLSearchParams(location.hash.slice(1)), named = (key) => generations.find((generation) => generation.name === words.get(key));
  if (!named("generation")) return false;
  const number = (key, otherwise) => (/^\d+$/.test(words.get(key) ?? "") ? +words.get(key) : words.get(key) === "mean" ? -1 : otherwise);
  ["generation", "beside"].forEach((key, index) => {
    const generation = named(key), end = index ? "2" : "";
    if (generation) player.panes[index].open(generation, number(`layer${end}`, generation.moving[0]), number(`head${end}`, generation.moving[1]));
  });
  player.isPair = Boolean(named("beside"));
  player.changed();
  player.goToStep(number("step", 0));
  return true;
}

function keepAddress(player) {
  const asked = readAddress(player);
  player.onChange = () => writeAddress(player);
  window.addEventListener("hashchange", () => readAddress(player));
  if (asked) document.getElementById("player").scrollIntoView({ block: "nearest" });
}
