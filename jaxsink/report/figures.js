// Values under the pointer in the figures: the nearest point, the bar or the pixel, as the study drew them.

// Data coordinate of a share (0…1) of an axis, and back.
function toData(axis, share) {
  const [from, to] = axis.limits;
  return axis.log ? from * (to / from) ** share : from + share * (to - from);
}

function toShare(axis, value) {
  const [from, to] = axis.limits;
  return axis.log ? Math.log(value / from) / Math.log(to / from) : (value - from) / (to - from);
}

function coordinate(axis, value) {
  return `${axis.label || "value"} ${axis.names[String(value)] ?? String(+value.toPrecision(4))}`;
}

// The lines of the tip for a place (shares of the figure) in one of its axes; null where there is nothing.
function valuesAt(axes, across, down, size) {
  const [left, top, right, bottom] = axes.box;
  if (across < left || across > right || down < top || down > bottom) return null;
  const x = toData(axes.x, (across - left) / (right - left)), y = toData(axes.y, (bottom - down) / (bottom - top));
  return pixelAt(axes, x, y) ?? barAt(axes, x, y) ?? pointAt(axes, across, down, size);
}

function pixelAt(axes, x, y) {
  for (const { extent: [left, right, low, high], rows } of axes.images) {
    const row = Math.floor((y - high) / (low - high) * rows.length), column = Math.floor((x - left) / (right - left) * rows[0].length);
    const value = rows[row]?.[column];
    if (value == null) continue;
    const middle = (from, to, count, index) => +(from + (index + 0.5) / count * (to - from)).toPrecision(4);
    return [coordinate(axes.x, middle(left, right, rows[0].length, column)), coordinate(axes.y, middle(high, low, rows.length, row)), `value ${value}`];
  }
  return null;
}

function barAt(axes, x, y) {
  for (const { label, boxes } of axes.bars) for (const [left, low, width, height] of boxes) {
    const [from, to] = [low, low + height].sort((a, b) => a - b);
    if (x < left || x > left + width || y < from || y > to) continue;
    return [label, coordinate(axes.x, +(left + width / 2).toPrecision(4)), `${axes.y.label || "value"} ${+height.toPrecision(4)}`];
  }
  return null;
}

function pointAt(axes, across, down, { width, height }) {
  const [left, top, right, bottom] = axes.box;
  let best = null, nearest = 24; // pixels
  for (const { label, x, y } of axes.points) x.forEach((value, i) => {
    if (value === null || y[i] === null) return;
    const dx = (left + toShare(axes.x, value) * (right - left) - across) * width;
    const dy = (bottom - toShare(axes.y, y[i]) * (bottom - top) - down) * height;
    const far = Math.hypot(dx, dy);
    if (far < nearest) [nearest, best] = [far, [label, coordinate(axes.x, value), coordinate(axes.y, y[i])]];
  });
  return best;
}

function watchFigure(figure) {
  const held = figure.querySelector("script.values"), drawing = figure.querySelector("svg");
  if (!held || !drawing) return;
  const all = JSON.parse(held.textContent);
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const [across, down] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    const lines = all.map((axes) => valuesAt(axes, across, down, box)).find(Boolean);
    if (lines) showTip(event, lines.filter(Boolean).join("\n"));
    else hideTip();
  });
  drawing.addEventListener("pointerleave", hideTip);
}
