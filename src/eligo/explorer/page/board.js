// The picture with its grid: two canvases, a pointer or the arrow keys on its cells, a tooltip.

import { el, prefersReducedMotion, replace, setVars } from "./dom.js";
import { layoutOf, paintFocus } from "./paint.js";
import { isDark } from "./theme.js";

const FADE = 260; // milliseconds from one stage to the next
const GAP = 10; // pixels between a tooltip and its cell

// `about(cell)` returns {lines, home, members} of a cell; `first()` returns where keys start.
export function makeBoard({ about, first, onfocus }) {
  const base = el("canvas", { "aria-hidden": "true" });
  const top = el("canvas", { "aria-hidden": "true", class: "lines" });
  const tip = el("div", { class: "tip", role: "status", hidden: true });
  const node = el(
    "div",
    {
      class: "board",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "grid over a picture",
    },
    base,
    top,
    tip,
  );
  const board = { node, layout: null, cell: -1, isPinned: false };
  let [grid, picture, painter, animation] = [null, null, null, 0];

  board.show = (nextPicture, nextGrid, nextPainter, { fade = false } = {}) => {
    [picture, grid, painter] = [nextPicture, nextGrid, nextPainter];
    setVars(node, { ratio: picture.width / picture.height });
    const before = fade && !prefersReducedMotion() && board.layout ? copyOf(base) : null;
    fit();
    cancelAnimationFrame(animation);
    if (before && before.width === base.width) crossFade(before);
    focus(board.cell);
  };

  function fit() {
    const scale = devicePixelRatio || 1;
    const [width, height] = [node.clientWidth, node.clientHeight].map((size) =>
      Math.round(size * scale),
    );
    if (!width || !height || !picture) return;
    for (const canvas of [base, top]) [canvas.width, canvas.height] = [width, height];
    board.layout = layoutOf(grid, width, height);
    painter(base.getContext("2d"), board.layout, look(scale));
    node.dataset.painted = String(Number(node.dataset.painted ?? 0) + 1);
  }

  function crossFade(before) {
    const after = copyOf(base);
    const context = base.getContext("2d");
    const start = performance.now();
    const frame = (now) => {
      const share = Math.min(1, Math.max(0, (now - start) / FADE));
      context.drawImage(after, 0, 0);
      context.globalAlpha = 1 - share;
      context.drawImage(before, 0, 0);
      context.globalAlpha = 1;
      if (share < 1) animation = requestAnimationFrame(frame);
    };
    frame(start);
  }

  function focus(cell) {
    board.cell = cell;
    node.dataset.cell = String(cell);
    node.toggleAttribute("data-pinned", board.isPinned && cell >= 0);
    tip.hidden = cell < 0;
    const details = cell < 0 ? { home: -1, members: [] } : about(cell);
    if (board.layout) {
      const scene = { ...details, cell, look: look(devicePixelRatio || 1) };
      paintFocus(top.getContext("2d"), board.layout, scene);
    }
    if (cell >= 0) {
      replace(tip, details.lines);
      placeTip(details, cell);
    }
    onfocus(cell);
  }

  // Place the tooltip beside all marked cells, on the first side with space; else where it hides
  // least of them.
  function placeTip({ home, members }, cell) {
    if (!board.layout || !node.isConnected) return;
    const scale = board.layout.width / node.clientWidth;
    const marked = [cell, ...members, ...(home < 0 ? [] : [home])].map(board.layout.rect);
    const ends = (at, end) => marked.map((rect) => (rect[at] + end * rect[at + 2]) / scale);
    const [left, right] = [Math.min(...ends(0, 0)), Math.max(...ends(0, 1))];
    const [top, bottom] = [Math.min(...ends(1, 0)), Math.max(...ends(1, 1))];
    const [width, height] = [tip.offsetWidth, tip.offsetHeight];
    const space = spaceAround(node);
    const clamp = (value, low, high) => Math.max(low, Math.min(value, high));
    const x = clamp((left + right - width) / 2, space.left, space.right - width);
    const y = clamp((top + bottom - height) / 2, 0, space.bottom - height);
    const sides = [
      [right + GAP, y],
      [left - GAP - width, y],
      [x, bottom + GAP],
      [x, top - GAP - height],
    ];
    /** @param {number[]} corner */
    const outside = ([tipX, tipY]) =>
      Math.max(
        0,
        space.left - tipX,
        tipX + width - space.right,
        space.top - tipY,
        tipY + height - space.bottom,
      );
    const [tipX, tipY] = sides.reduce((best, side) =>
      outside(side) < outside(best) ? side : best,
    );
    tip.style.left = `${clamp(tipX, space.left, space.right - width)}px`;
    tip.style.top = `${clamp(tipY, space.top, space.bottom - height)}px`;
  }

  function cellAt(event) {
    const box = node.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * grid.columns);
    const row = Math.floor(((event.clientY - box.top) / box.height) * grid.rows);
    const isInside = column >= 0 && row >= 0 && column < grid.columns && row < grid.rows;
    return isInside ? row * grid.columns + column : -1;
  }

  board.release = () => {
    board.isPinned = false;
    focus(-1);
  };
  node.addEventListener("pointermove", (event) => {
    if (!grid || event.pointerType !== "mouse" || board.isPinned) return;
    const cell = cellAt(event);
    if (cell !== board.cell) focus(cell);
  });
  node.addEventListener(
    "pointerleave",
    () => board.isPinned || document.activeElement === node || focus(-1),
  );
  node.addEventListener("click", (event) => {
    if (!grid) return;
    const cell = cellAt(event);
    board.isPinned = !(board.isPinned && cell === board.cell);
    focus(board.isPinned ? cell : -1);
  });
  node.addEventListener("blur", () => board.isPinned || focus(-1));
  node.addEventListener("keydown", (event) => {
    const cell = grid && moved(event.key, board.cell);
    if (event.key === "Escape") board.release();
    if (event.key === "Enter") board.isPinned = !board.isPinned;
    if (event.key === "Enter") focus(board.cell < 0 ? first() : board.cell);
    if (Number.isInteger(cell)) focus(cell);
    if (Number.isInteger(cell) || event.key === "Enter") event.preventDefault();
  });

  function moved(key, cell) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const ends = { Home: [0, -grid.columns], End: [0, grid.columns] };
    const step = steps[key] ?? ends[key];
    if (!step) return null;
    if (cell < 0) return first();
    const clamp = (value, count) => Math.min(count - 1, Math.max(0, value));
    const row = clamp(Math.floor(cell / grid.columns) + step[0], grid.rows);
    return row * grid.columns + clamp((cell % grid.columns) + step[1], grid.columns);
  }

  new ResizeObserver(() => {
    fit();
    focus(board.cell);
  }).observe(node);
  return board;
}

function copyOf(canvas) {
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  if (canvas.width && canvas.height) copy.getContext("2d").drawImage(canvas, 0, 0);
  return copy;
}

// The part of the window that a tooltip may cover, relative to the board.
function spaceAround(node) {
  const [box, main] = [node.getBoundingClientRect(), node.closest("main").getBoundingClientRect()];
  return {
    left: Math.max(main.left, 0) + GAP - box.left,
    right: Math.min(main.right, document.documentElement.clientWidth) - GAP - box.left,
    top: Math.min(-box.top + 56, 0), // the top bar of the page covers the rest
    bottom: Math.max(innerHeight - box.top - GAP, node.clientHeight),
  };
}

// Colours and line width for drawing, by theme.
function look(scale) {
  const dark = isDark();
  return {
    dark,
    rim: dark ? "#dcdde8" : "#2b2c36",
    accent: dark ? "#5468ff" : "#3446c8",
    pixel: scale,
  };
}
