// Paints a grid over a picture: kept cells, scores, clusters.

import { groupColour, heat } from "./colour.js";
import { membersOf } from "./journey.js";
import { scaled } from "./reading.js";

// Edges of cells are whole pixels, so that there are no seams.
export function layoutOf(grid, width, height) {
  const edges = (count, size) =>
    Array.from({ length: count + 1 }, (_, at) => Math.round((at * size) / count));
  const [xs, ys] = [edges(grid.columns, width), edges(grid.rows, height)];
  return {
    ...grid,
    width,
    height,
    rect: (cell) => {
      const [row, column] = [Math.floor(cell / grid.columns), cell % grid.columns];
      return [xs[column], ys[row], xs[column + 1] - xs[column], ys[row + 1] - ys[row]];
    },
    centre(cell) {
      const [x, y, w, h] = this.rect(cell);
      return [x + w / 2, y + h / 2];
    },
  };
}

export function paintImage(context, layout, { picture }) {
  draw(context, layout, picture, picture.plain);
}

export function paintKept(context, layout, { picture, isKept, isFolded, look }) {
  draw(context, layout, picture, picture.faded(look.dark));
  within(context, layout, isFolded, () =>
    draw(context, layout, picture, picture.folded(look.dark)),
  );
  within(context, layout, isKept, () => draw(context, layout, picture, picture.plain));
  outline(context, layout, isKept, look.rim, look.pixel);
}

// Colours by rank are not affected by outliers.
export function paintScores(context, layout, { picture, reading, scale, byRank, isKept, look }) {
  draw(context, layout, picture, picture.grey());
  const map = new ImageData(layout.columns, layout.rows);
  const ranks = { low: 1, high: reading.ranked.length };
  reading.score.forEach((score, cell) => {
    if (Number.isNaN(score)) return; // without a score the grey picture stays
    const share = byRank ? 1 - scaled(reading.rank[cell], ranks) : scaled(score, scale);
    map.data.set([...heat(share), 90 + 105 * share], 4 * cell);
  });
  drawMap(context, layout, map);
  if (reading.kept.length < reading.numReal) outline(context, layout, isKept, "#fff", look.pixel);
}

// A colour for every cell that others were folded into, and its members, with a dot on it. Colours
// depend on the number of that cell, so they are the same in all stages.
export function paintClusters(context, layout, { picture, fate, look }) {
  draw(context, layout, picture, picture.faded(look.dark));
  const isAlive = (cell) => fate.home[cell] >= 0;
  within(context, layout, isAlive, () => draw(context, layout, picture, picture.plain));
  const isShared = (home) => home >= 0 && fate.members.get(home).length > 1;
  paintGroups(
    context,
    layout,
    fate.home.map((home) => (isShared(home) ? home : -1)),
    () => 0.55,
  );
  context.fillStyle = "#fff";
  const radius = Math.max(1.2 * look.pixel, 0.1 * (layout.width / layout.columns));
  for (const home of fate.members.keys()) {
    if (!isShared(home)) continue;
    context.beginPath();
    context.arc(...layout.centre(home), radius, 0, 2 * Math.PI);
    context.fill();
  }
  borders(context, layout, fate.home, look);
}

// The colour of the strongest row; the opacity shows its score.
export function paintStrongest(context, layout, { picture, strongest, scale, look }) {
  draw(context, layout, picture, picture.grey());
  const opacity = (cell) => 0.18 + 0.6 * scaled(strongest.most[cell], scale);
  paintGroups(context, layout, strongest.best, opacity);
  borders(context, layout, strongest.best, look);
}

function paintGroups(context, layout, groups, opacity) {
  for (const [group, cells] of membersOf(groups)) {
    context.fillStyle = groupColour(group);
    for (const cell of cells) {
      context.globalAlpha = opacity(cell);
      context.fillRect(...layout.rect(cell));
    }
  }
  context.globalAlpha = 1;
}

function draw(context, layout, picture, shade) {
  context.imageSmoothingEnabled = !(picture.isSmall && layout.width > picture.width);
  context.imageSmoothingQuality = "high";
  context.drawImage(shade, 0, 0, layout.width, layout.height);
}

function drawMap(context, layout, map) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [map.width, map.height];
  canvas.getContext("2d").putImageData(map, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, 0, 0, layout.width, layout.height);
}

function within(context, layout, isInside, paint) {
  const count = layout.rows * layout.columns;
  context.save();
  context.beginPath();
  for (let cell = 0; cell < count; cell++) if (isInside(cell)) context.rect(...layout.rect(cell));
  context.clip();
  paint();
  context.restore();
}

// A line just inside the border of the given cells. Filled, not stroked, to have whole pixels.
export function outline(context, layout, isInside, colour, width) {
  const { rows, columns } = layout;
  const size = Math.max(1, Math.round(width));
  const has = (row, column) =>
    row >= 0 && column >= 0 && row < rows && column < columns && isInside(row * columns + column);
  context.fillStyle = colour;
  for (let cell = 0; cell < rows * columns; cell++) {
    if (!isInside(cell)) continue;
    const [x, y, w, h] = layout.rect(cell);
    const [row, column] = [Math.floor(cell / columns), cell % columns];
    const [right, bottom] = [x + w - size, y + h - size];
    if (!has(row - 1, column)) context.fillRect(x, y, w, size);
    if (!has(row + 1, column)) context.fillRect(x, bottom, w, size);
    if (!has(row, column - 1)) context.fillRect(x, y, size, h);
    if (!has(row, column + 1)) context.fillRect(right, y, size, h);
    if (!has(row - 1, column - 1)) context.fillRect(x, y, size, size);
    if (!has(row - 1, column + 1)) context.fillRect(right, y, size, size);
    if (!has(row + 1, column - 1)) context.fillRect(x, bottom, size, size);
    if (!has(row + 1, column + 1)) context.fillRect(right, bottom, size, size);
  }
}

function borders(context, layout, groups, look) {
  const { rows, columns } = layout;
  context.fillStyle = look.rim;
  for (let cell = 0; cell < rows * columns; cell++) {
    const [x, y, w, h] = layout.rect(cell);
    const isLast = cell % columns === columns - 1;
    if (!isLast && groups[cell] !== groups[cell + 1]) context.fillRect(x + w, y, look.pixel, h);
    const below = cell + columns;
    if (below < rows * columns && groups[cell] !== groups[below])
      context.fillRect(x, y + h, w, look.pixel);
  }
}

// The focused cell, the cells of its cluster, and arrows to the kept one.
export function paintFocus(context, layout, { cell, home, members, look }) {
  context.clearRect(0, 0, layout.width, layout.height);
  if (cell < 0) return;
  const [, , width, height] = layout.rect(cell);
  const unit = Math.min(look.pixel, Math.min(width, height) / 14); // small cells, thin lines
  if (members.length > 1) {
    const set = new Set(members);
    outline(context, layout, (other) => set.has(other), "#fff", 4 * unit);
    outline(context, layout, (other) => set.has(other), look.accent, 2 * unit);
  }
  const from = cell === home ? members.filter((other) => other !== home) : [cell];
  if (home >= 0) for (const other of from) arrow(context, layout, other, home, look, cell !== home);
  outline(context, layout, (other) => other === cell, "#fff", 5 * unit);
  outline(context, layout, (other) => other === cell, look.accent, 3 * unit);
}

function arrow(context, layout, from, to, look, isBold) {
  const [[x1, y1], [x2, y2]] = [layout.centre(from), layout.centre(to)];
  const head = (isBold ? 8 : 0) * look.pixel;
  const angle = Math.atan2(y2 - y1, x2 - x1);
  for (const [colour, width] of [
    ["#fff", isBold ? 5 : 2.6],
    [look.accent, isBold ? 2.2 : 1.2],
  ]) {
    context.strokeStyle = colour;
    context.lineWidth = width * look.pixel;
    context.lineCap = "round";
    context.beginPath();
    context.moveTo(x1, y1);
    context.lineTo(x2, y2);
    for (const side of [0.45, -0.45]) {
      if (!head) continue;
      context.moveTo(x2, y2);
      context.lineTo(x2 - head * Math.cos(angle + side), y2 - head * Math.sin(angle + side));
    }
    context.stroke();
  }
}
