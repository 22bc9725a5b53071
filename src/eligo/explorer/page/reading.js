// A stage's selection, by place (a cell of the grid, or an item) instead of by candidate.

export const UNREACHED = 0; // dropped by an earlier stage
export const ABSENT = 1; // padding
export const DROPPED = 2;
export const KEPT = 3;

const known = new WeakMap();

export function numPlaces(stage) {
  return stage.grid ? stage.grid.rows * stage.grid.columns : stage.items.length;
}

// The state of every place in one row of a stage; cached.
export function readRow(stage, row) {
  const choice = stage.chosen[row];
  if (!known.has(choice)) known.set(choice, read(stage, choice));
  return known.get(choice);
}

function read(stage, choice) {
  const count = numPlaces(stage);
  const places = stage.candidates ?? choice.scores.map((_, candidate) => candidate);
  const reading = {
    count,
    fate: new Uint8Array(count),
    score: new Float64Array(count).fill(NaN),
    rank: new Int32Array(count), // 1: the highest score; 0: none
    order: new Int32Array(count), // 1: the first that was chosen; 0: not chosen
    into: new Int32Array(count).fill(-1), // the kept place that took most of it
    share: new Float64Array(count).fill(NaN),
    kept: choice.kept.map((candidate) => places[candidate]), // in order of choice
    numReal: places.length - (choice.absent?.length ?? 0),
  };
  places.forEach((place, candidate) => {
    reading.fate[place] = DROPPED;
    reading.score[place] = choice.scores[candidate] ?? NaN;
    const into = choice.into ? choice.into[candidate] : -1;
    if (into >= 0) {
      reading.into[place] = places[into];
      reading.share[place] = choice.share[candidate];
    }
  });
  for (const candidate of choice.absent ?? []) reading.fate[places[candidate]] = ABSENT;
  reading.kept.forEach((place, at) => {
    reading.fate[place] = KEPT;
    reading.order[place] = at + 1;
  });
  const ranked = places.filter((place) => Number.isFinite(reading.score[place]));
  ranked.sort((a, b) => reading.score[b] - reading.score[a] || a - b);
  ranked.forEach((place, at) => (reading.rank[place] = at + 1));
  reading.ranked = ranked;
  reading.low = ranked.length ? reading.score[ranked.at(-1)] : NaN;
  reading.high = ranked.length ? reading.score[ranked[0]] : NaN;
  return reading;
}

// The ends of the scale of all rows of a stage together.
export function stageScale(stage) {
  const rows = stage.rows.map((_, row) => readRow(stage, row)).filter((row) => row.ranked.length);
  if (!rows.length) return { low: NaN, high: NaN };
  return {
    low: Math.min(...rows.map((row) => row.low)),
    high: Math.max(...rows.map((row) => row.high)),
  };
}

// The position of a score on a scale, 0 to 1; 0.5 if the ends are equal.
export function scaled(score, { low, high }) {
  return high > low ? Math.min(1, Math.max(0, (score - low) / (high - low))) : 0.5;
}

// The bar of a score, in shares of its width: it begins at zero, and negative scores go the other way.
export function barOf(score, { low, high }) {
  const ends = { low: Math.min(0, low), high: Math.max(0, high) };
  if (Number.isNaN(score) || ends.low === ends.high) return { zero: 0, start: 0, size: 0 };
  const [zero, end] = [scaled(0, ends), scaled(score, ends)];
  return { zero, start: Math.min(zero, end), size: Math.abs(end - zero) };
}

// For every place, the row with the highest score (-1 if no row has a score), and that score.
export function strongestRows(stage) {
  const best = new Int32Array(numPlaces(stage)).fill(-1);
  const most = new Float64Array(best.length).fill(-Infinity);
  stage.rows.forEach((_, row) => {
    readRow(stage, row).score.forEach((score, place) => {
      if (score > most[place]) [best[place], most[place]] = [row, score];
    });
  });
  return { best, most };
}

// All rows at a place: first those that kept it, then by score.
export function rowsAt(stage, place) {
  return stage.rows
    .map((name, row) => {
      const reading = readRow(stage, row);
      return { name, row, score: reading.score[place], kept: reading.fate[place] === KEPT };
    })
    .sort((a, b) => b.kept - a.kept || order(b.score) - order(a.score) || a.row - b.row);
}

function order(score) {
  return Number.isNaN(score) ? -Number.MAX_VALUE : score;
}
