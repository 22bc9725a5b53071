// The lines of a tooltip: kept, folded or dropped, score and rank of a cell.

import { el, setVars } from "./dom.js";
import { ABSENT, KEPT, UNREACHED, barOf, readRow, rowsAt, stageScale } from "./reading.js";
import { cellLabel, count, layerLabel, number, ordinal, percent, plural } from "./words.js";

const MOST_ROWS = 6;

function line(name, value) {
  return el("div", { class: "fact" }, el("span", {}, name), el("b", { dir: "auto" }, value));
}

function head(state, text, where) {
  return el(
    "div",
    { class: "state", "data-state": state },
    el("b", {}, text),
    el("span", {}, where),
  );
}

// A cell of a chain of stages, after the last of `stages`.
export function cellLines(cell, stages, fate) {
  const grid = stages[0].grid;
  const where = cellLabel(cell, grid);
  const left = fate.left[cell];
  const at = left < 0 ? stages.length - 1 : left;
  const reading = readRow(stages[at], 0);
  const label = layerLabel(stages[at]);
  if (reading.fate[cell] === ABSENT || reading.fate[cell] === UNREACHED) {
    return [head("absent", "no candidate", where)];
  }
  const lines = [];
  if (left < 0) {
    lines.push(head("kept", "kept", where));
    lines.push(line("chosen", `${ordinal(reading.order[cell])} of ${count(reading.kept.length)}`));
    const others = (fate.members.get(cell)?.length ?? 1) - 1;
    if (others) lines.push(line("holds", `itself and ${plural(others, "other")}`));
  } else if (fate.into[cell] >= 0) {
    const isGone = fate.gone[cell] >= 0;
    lines.push(
      head(isGone ? "dropped" : "folded", isGone ? "folded, then dropped" : "folded", where),
    );
    const share = Number.isFinite(fate.share[cell]) ? ` (${percent(fate.share[cell])})` : "";
    lines.push(line("into", cellLabel(fate.into[cell], grid) + share));
    if (fate.home[cell] >= 0 && fate.home[cell] !== fate.into[cell]) {
      lines.push(line("now in", cellLabel(fate.home[cell], grid)));
    }
    lines.push(line("folded at", label));
    if (isGone) lines.push(line("dropped at", layerLabel(stages[fate.gone[cell]])));
  } else {
    lines.push(head("dropped", "dropped", where), line("dropped at", label));
  }
  return [...lines, ...scoreLines(reading, cell, left >= 0 && stages.length > 1 ? label : "")];
}

function scoreLines(reading, cell, label) {
  const lines = [
    line(label && label.length < 24 ? `score, ${label}` : "score", number(reading.score[cell])),
  ];
  if (reading.rank[cell])
    lines.push(line("rank", `${count(reading.rank[cell])} of ${count(reading.ranked.length)}`));
  return lines;
}

// A cell of a stage with rows: the score of each word or tag.
export function rowLines(cell, stage, row) {
  const reading = readRow(stage, row);
  const kept = reading.fate[cell] === KEPT;
  const name = stage.rows[row];
  const lines = [
    head(kept ? "kept" : "dropped", kept ? "kept" : "not kept", cellLabel(cell, stage.grid)),
    line("for", name),
    ...scoreLines(reading, cell, ""),
  ];
  const scored = rowsAt(stage, cell).filter((other) => !Number.isNaN(other.score));
  const scale = stageScale(stage);
  const bars = scored.slice(0, MOST_ROWS).map((other) => {
    const bar = el(
      "div",
      {
        class: other.row === row ? "bar current" : "bar",
        "data-kept": other.kept,
        "data-signed": scale.low < 0,
      },
      el("span", { dir: "auto" }, other.name),
      el("b", {}, number(other.score)),
    );
    setVars(bar, barOf(other.score, scale));
    return bar;
  });
  return stage.rows.length > 1 ? [...lines, el("div", { class: "bars" }, bars)] : lines;
}
