// The rest of the page: light and dark, enlarged figures, and the start.

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
    const from = button.querySelector("img"), to = zoom.querySelector("img");
    to.src = from.src;
    to.alt = from.alt;
    zoom.showModal();
  });
}
zoom.addEventListener("click", () => zoom.close());

applyTheme();
if (runs.length) player = new Player(document.getElementById("player"));
