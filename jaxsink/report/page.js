// The rest of the page: the tip under the pointer, light and dark, full screen, enlarged figures, and the start.

const tip = document.getElementById("tip");

function showTip(event, text) {
  const home = document.fullscreenElement ?? document.body; // full screen shows nothing from outside
  if (tip.parentElement !== home) home.append(tip);
  tip.textContent = text;
  tip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tip, above = event.clientY - height - 14;
  tip.style.left = `${Math.max(4, Math.min(window.innerWidth - width - 4, event.clientX + 12))}px`;
  tip.style.top = `${above > 4 ? above : event.clientY + 20}px`;
}

function hideTip() {
  tip.hidden = true;
}

const themeButton = document.getElementById("theme");
const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null; // what the reader chose, if anything
try { chosenTheme = localStorage.getItem("jaxsink-theme"); } catch { /* a browser may forbid it for files */ }
let player = null;

function applyTheme() {
  const name = chosenTheme ?? (prefersDark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = name;
  themeButton.querySelector("span").textContent = name === "dark" ? "Light" : "Dark";
  if (player) player.changed();
}

themeButton.addEventListener("click", () => {
  chosenTheme = theme() === "dark" ? "light" : "dark";
  try { localStorage.setItem("jaxsink-theme", chosenTheme); } catch { /* then it lasts as long as the page */ }
  applyTheme();
});
prefersDark.addEventListener("change", applyTheme);

const zoom = document.getElementById("zoom");
for (const button of document.querySelectorAll("figure .zoom")) {
  button.addEventListener("click", () => {
    zoom.classList.toggle("bitmap", button.parentElement.matches(".bitmap"));
    zoom.querySelector("div").replaceChildren(button.firstElementChild.cloneNode(true));
    zoom.showModal();
  });
}
zoom.addEventListener("click", () => zoom.close());

function addButtons() {
  const full = document.getElementById("full"), { root } = player;
  full.hidden = !document.fullscreenEnabled;
  full.addEventListener("click", () => (document.fullscreenElement ? document.exitFullscreen() : root.requestFullscreen()));
  document.getElementById("png").addEventListener("click", () => downloadPng(player));
  document.getElementById("svg").addEventListener("click", () => downloadSvg(player));
}

applyTheme();
document.querySelectorAll("figure").forEach(watchFigure);
if (generations.length) {
  player = new Player(document.getElementById("player"));
  keepAddress(player);
  addButtons();
}
