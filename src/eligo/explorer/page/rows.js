// A stage with rows, one for each word or tag: the map of a row over the picture, and the rows of a
// cell.

import { groupColour } from "./colour.js";
import { checkbox, chips } from "./controls.js";
import { el, setVars } from "./dom.js";
import { heatKey, makeFrame, swatch } from "./frame.js";
import { KEPT, readRow, stageScale, strongestRows } from "./reading.js";
import { rowLines } from "./tooltip.js";
import { plural } from "./words.js";

let sharesScale = true;

export function rowsView(record, view, place, moved) {
  const stage = record.stages[view.stages[0]];
  const all = stageScale(stage);
  const strongest = strongestRows(stage);
  const selects = stage.rows.some(
    (_, row) => readRow(stage, row).kept.length < readRow(stage, row).numReal,
  );
  let row = Math.min(place.row, stage.rows.length - 1);
  let preview = -1;
  const current = () => readRow(stage, preview < 0 ? row : preview);

  const scene = () => ({
    reading: current(),
    strongest,
    scale: sharesScale || frame.mode() === "strongest" ? all : current(),
    isKept: (cell) => current().fate[cell] === KEPT,
    isFolded: () => false,
  });
  const frame = makeFrame(record, stage.grid, {
    kind: "rows",
    usual: "scores",
    modes: [
      { name: "image" },
      { name: "kept", off: selects ? "" : "every row kept all" },
      { name: "scores" },
      { name: "strongest", off: stage.rows.length > 1 ? "" : "there is one row" },
    ],
    label: () => `${stage.name}: ${stage.rows[row]}. Arrow keys go from cell to cell.`,
    scene,
    legend,
    about: (cell) => ({ lines: rowLines(cell, stage, row), home: -1, members: [] }),
    first: () => readRow(stage, row).ranked[0] ?? 0,
    onfocus: (cell) => link(cell),
  });

  const words = chips("rows", stage.rows, {
    choose: (at) => go(at),
    preview: (at) => {
      preview = at === row ? -1 : at;
      if (frame.mode() !== "strongest") frame.repaint();
    },
  });
  words.nodes.forEach((node, at) => setVars(node, { dot: groupColour(at) }));
  const sharing = checkbox("one scale for all", sharesScale, (isOn) => {
    sharesScale = isOn;
    frame.repaint({ fade: true });
  });

  // Marks the rows that kept the cell, or score highest there.
  function link(cell) {
    words.nodes.forEach((node, at) => {
      const isLinked = selects
        ? readRow(stage, at).fate[cell] === KEPT
        : strongest.best[cell] === at;
      node.toggleAttribute("data-linked", cell >= 0 && isLinked);
    });
  }

  function legend(mode, byRank) {
    words.node.toggleAttribute("data-coloured", mode === "strongest");
    const reading = current();
    const kept = `${reading.kept.length} of ${plural(reading.numReal, "cell")} kept`;
    if (mode === "kept") return [swatch("kept", kept), swatch("dropped", "the others")];
    if (mode === "strongest")
      return [
        el("span", { class: "soft" }, "The row with the highest score; opacity shows the score."),
      ];
    if (mode === "image") return [];
    const shares = stage.rows.length > 1 && !byRank && sharing;
    return [heatKey(scene().scale, byRank), selects && swatch("line", kept), shares];
  }

  function go(next, { fade = true } = {}) {
    [row, preview] = [(next + stage.rows.length) % stage.rows.length, -1];
    words.show(row);
    moved({ stage: view.stages[0], row });
    if (fade && frame.mode() === "strongest") return frame.setMode("scores");
    return frame.repaint({ fade });
  }
  go(row, { fade: false });

  return {
    node: el(
      "div",
      { class: "over" },
      words.node,
      frame.toolbar,
      frame.board.node,
      frame.legend,
      stage.note && el("p", { class: "now soft", dir: "auto" }, stage.note),
    ),
    aside: [frame.histogram.node],
    repaint: frame.repaint,
    release: frame.board.release,
    leave: () => {},
    keys: { mode: frame.nextMode, step: () => {}, play: () => {}, row: (by) => go(row + by) },
  };
}
