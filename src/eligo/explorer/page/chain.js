// A chain of stages over one grid: a slider over the stages, and what happened to every cell.

import { player } from "./controls.js";
import { el, replace } from "./dom.js";
import { heatKey, makeFrame, swatch } from "./frame.js";
import { fates, tally } from "./journey.js";
import { readRow } from "./reading.js";
import { cellLines } from "./tooltip.js";
import { count, layerLabel, plural } from "./words.js";

export function chainView(record, view, place, moved) {
  const stages = view.stages.map((at) => record.stages[at]);
  const grid = stages[0].grid;
  const steps = stages.map((_, at) => fates(stages.slice(0, at + 1)));
  const hasFolds = tally(steps.at(-1)).folded > 0 || steps.some((fate) => tally(fate).folded > 0);
  let step = Math.max(0, view.stages.indexOf(place.stage));

  const scene = () => {
    const fate = steps[step];
    const reading = readRow(stages[step], 0);
    return {
      fate,
      reading,
      scale: reading,
      isKept: (cell) => fate.home[cell] === cell,
      isFolded: (cell) => fate.home[cell] >= 0 && fate.home[cell] !== cell,
    };
  };
  const frame = makeFrame(record, grid, {
    kind: "chain",
    usual: "kept",
    modes: [
      { name: "image" },
      { name: "kept" },
      { name: "scores" },
      { name: "clusters", off: hasFolds ? "" : "nothing was folded" },
    ],
    label: () => `${describe(step)}. Arrow keys go from cell to cell.`,
    scene,
    legend: (mode, byRank) => legend(mode, byRank, steps[step], stages[step]),
    about: (cell) => {
      const home = steps[step].home[cell];
      const lines = cellLines(cell, stages.slice(0, step + 1), steps[step]);
      return { lines, home, members: steps[step].members.get(home) ?? [] };
    },
    first: () => readRow(stages[step], 0).kept[0] ?? 0,
    onfocus: () => {},
  });

  function describe(at) {
    const { kept, total } = tally(steps[at]);
    return `${layerLabel(stages[at])}: ${count(kept)} of ${plural(total, "cell")} kept`;
  }
  const about = el("p", { class: "now", "aria-live": "polite" });
  const controls = player("stage", stages.map(layerLabel), { choose: go, say: describe });

  function go(next, { fade = true } = {}) {
    step = Math.min(stages.length - 1, Math.max(0, next));
    controls.show(step);
    replace(about, sentence(stages[step], steps[step], describe(step)));
    moved({ stage: view.stages[step], row: 0 });
    return frame.repaint({ fade });
  }
  go(step, { fade: false });

  return {
    node: el(
      "div",
      { class: "over" },
      frame.toolbar,
      frame.board.node,
      frame.legend,
      stages.length > 1 && controls.node,
      about,
    ),
    aside: [frame.histogram.node],
    repaint: frame.repaint,
    release: frame.board.release,
    leave: controls.stop,
    keys: {
      mode: frame.nextMode,
      step: (by) => go(step + by),
      play: controls.toggle,
      row: () => {},
    },
  };
}

function sentence(stage, fate, summary) {
  const reading = readRow(stage, 0);
  const { total } = tally(fate);
  const here =
    reading.numReal < total
      ? `, ${count(reading.kept.length)} of ${count(reading.numReal)} candidates`
      : "";
  const name = layerLabel(stage) === stage.name ? "" : stage.name;
  return [
    el("strong", { dir: "auto" }, summary + here),
    name && el("span", { class: "soft", dir: "auto" }, name),
    stage.note && el("span", { class: "soft", dir: "auto" }, stage.note),
  ];
}

function legend(mode, byRank, fate, stage) {
  const { kept, folded, gone } = tally(fate);
  if (mode === "kept") {
    return [
      swatch("kept", `${count(kept)} kept`),
      folded > 0 && swatch("folded", `${count(folded)} folded into those`),
      gone > 0 && swatch("dropped", `${count(gone)} dropped`),
    ];
  }
  if (mode === "scores") return [heatKey(readRow(stage, 0), byRank), swatch("line", "kept")];
  if (mode === "clusters") {
    return [
      swatch("group", "holds others"),
      swatch("dot", "the kept cell"),
      gone > 0 && swatch("dropped", `${count(gone)} dropped`),
    ];
  }
  return [];
}
