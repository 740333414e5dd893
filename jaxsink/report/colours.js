// Colours of scores, for both themes, and the ink that can be read on them.

const RAMPS = { // from nothing to the largest score; lightness changes in one direction, so all eyes can follow
  light: {
    scores: [[251, 251, 250], [254, 232, 170], [253, 184, 76], [236, 104, 33], [176, 24, 50], [84, 0, 58]],
    masked: [[251, 251, 250], [198, 219, 239], [66, 146, 198], [8, 48, 107]],
    unmasked: [[251, 251, 250], [253, 208, 162], [230, 97, 15], [110, 34, 3]],
  },
  dark: {
    scores: [[20, 22, 27], [66, 20, 102], [147, 38, 103], [226, 92, 52], [251, 178, 60], [252, 255, 190]],
    masked: [[20, 22, 27], [12, 56, 120], [50, 140, 220], [200, 230, 255]],
    unmasked: [[20, 22, 27], [110, 45, 4], [240, 124, 24], [255, 226, 180]],
  },
};
const POWER = 1.7;
const BLACK = [0, 0, 0], WHITE = [255, 255, 255];

function theme() {
  return document.documentElement.dataset.theme;
}

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// 0…1 of a score, given the largest one; the power keeps ordinary tokens, with scores about 1, pale.
function strength(value, limit, scale) {
  if (!(limit > 0)) return 0;
  return Math.min(1, scale === "log" ? (Math.log1p(value) / Math.log1p(limit)) ** POWER : value / limit);
}

// The score in the middle of the colours.
function middle(limit, scale) {
  return scale === "log" ? Math.expm1(0.5 ** (1 / POWER) * Math.log1p(limit)) : limit / 2;
}

function colour(share, ramp) {
  const stops = RAMPS[theme()][ramp], place = share * (stops.length - 1);
  const index = Math.min(Math.floor(place), stops.length - 2), rest = place - index;
  return stops[index].map((value, i) => Math.round(value + (stops[index + 1][i] - value) * rest));
}

// Relative luminance and contrast as WCAG 2 defines them.
function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one, other) {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

// Pure black or white: the better of the two reaches at least 4.58 : 1 on any colour; paler inks do not.
function inkOn(rgb) {
  return contrast(rgb, BLACK) >= contrast(rgb, WHITE) ? "#000000" : "#ffffff";
}

function gradient(ramp) {
  return `linear-gradient(90deg, ${RAMPS[theme()][ramp].map((rgb) => `rgb(${rgb})`).join(", ")})`;
}
