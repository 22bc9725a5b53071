// Stages that follow one another over one grid, and what happened to every cell.

import { ABSENT, DROPPED, KEPT, UNREACHED, numPlaces, readRow } from "./reading.js";

// The views of a record, in the order of their first stage: a chain of stages over one grid is one
// view, every other stage is its own. Several chains over one grid also have a view of two of them,
// which comes first.
export function viewsOf(record) {
  const views = [];
  record.stages.forEach((stage, at) => {
    const kind = stage.items ? "items" : hasRows(stage) ? "rows" : "grid";
    const before = views.findLast((view) => kind === "grid" && continues(record, view, stage));
    if (before) before.stages.push(at);
    else views.push({ kind, stages: [at] });
  });
  const chains = views.filter((view) => view.stages.length > 1);
  for (const view of views) {
    const first = record.stages[view.stages[0]];
    view.name = view.stages.length === 1 ? first.name : `${view.stages.length} stages`;
    const isOneOfChains = view.stages.length > 1 && chains.length > 1;
    if (isOneOfChains || siblings(record, first).size) {
      view.name = `${first.grid.picture}: ${view.name}`;
    }
  }
  return [...pairsOf(record, views), ...views];
}

function pairsOf(record, views) {
  const gridOf = (view) => record.stages[view.stages[0]].grid;
  const [first, ...others] = views.filter((view) => view.kind === "grid");
  const sides = first ? [first, ...others.filter((one) => sameGrid(gridOf(one), gridOf(first)))] : [];
  if (sides.length < 2) return [];
  return [{ kind: "pair", name: "side by side", stages: first.stages.slice(0, 1), sides }];
}

// Names of the other pictures that a stage was applied to as well: tiles of an image, frames of a clip.
export function siblings(record, stage) {
  const same = record.stages.filter(
    (other) => other.grid && other.name === stage.name && other.layer === stage.layer,
  );
  const names = new Set(same.map((other) => other.grid.picture));
  names.delete(stage.grid?.picture);
  return stage.grid ? names : new Set();
}

export function hasRows(stage) {
  return stage.rows.length > 1 || stage.rows[0] !== "";
}

// Whether a stage selects among what the last stage of a view kept. A stage without `candidates`
// selects among all cells: it continues a stage that kept all of them only in a later layer of the
// same model; otherwise it is separate (a baseline, for example).
function continues(record, view, stage) {
  const last = record.stages[view.stages.at(-1)];
  if (view.kind !== "grid" || !sameGrid(last.grid, stage.grid)) return false;
  const kept = new Set(readRow(last, 0).kept);
  if (stage.candidates) return stage.candidates.every((place) => kept.has(place));
  return kept.size === numPlaces(stage) && isLater(stage.layer, last.layer);
}

function isLater(layer, before) {
  return Number.isInteger(layer) && Number.isInteger(before) && layer > before;
}

function sameGrid(a, b) {
  return a.picture === b.picture && a.rows === b.rows && a.columns === b.columns;
}

// After the last of these stages, for every cell:
//   home  itself if kept, or the kept cell that it was folded into; -1: dropped
//   left  the stage at which it was dropped or folded; -1: it is kept, or was no candidate
//   gone  the stage at which it (or the cell it was folded into) was dropped; -1: it was not
//   into, share  where it was folded when it left
export function fates(stages) {
  const first = readRow(stages[0], 0);
  const none = () => new Int32Array(first.count).fill(-1);
  const home = first.fate.map((fate) => fate !== UNREACHED && fate !== ABSENT);
  const result = {
    home: Int32Array.from(home, (real, cell) => (real ? cell : -1)),
    left: none(),
    gone: none(),
    into: none(),
    share: new Float64Array(first.count).fill(NaN),
  };
  stages.forEach((stage, at) => step(result, readRow(stage, 0), at));
  return { ...result, members: membersOf(result.home) };
}

function step(result, reading, at) {
  const moves = new Map();
  result.home.forEach((home, cell) => {
    if (home !== cell || reading.fate[cell] === KEPT) return;
    const into = reading.fate[cell] === DROPPED ? reading.into[cell] : -1;
    moves.set(cell, into);
    result.left[cell] = at;
    result.into[cell] = into;
    result.share[cell] = reading.share[cell];
  });
  result.home.forEach((home, cell) => {
    if (!moves.has(home)) return;
    result.home[cell] = moves.get(home);
    if (result.home[cell] < 0) result.gone[cell] = at;
  });
}

// Cells by group; those in no group (-1) are left out.
export function membersOf(groups) {
  const members = new Map();
  groups.forEach((group, cell) => {
    if (group < 0) return;
    if (!members.has(group)) members.set(group, []);
    members.get(group).push(cell);
  });
  return members;
}

// The number of cells that are kept, folded into another, dropped.
export function tally(fate) {
  const kept = fate.members.size;
  const alive = fate.home.reduce((count, home) => count + (home >= 0), 0);
  const gone = fate.gone.reduce((count, stage) => count + (stage >= 0), 0);
  return { kept, folded: alive - kept, gone, total: alive + gone };
}
