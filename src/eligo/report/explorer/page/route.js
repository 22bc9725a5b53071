// Where the reader is, as a link: #exhibit/stage/row, counted from one.

import { slug } from "./words.js";

// Names for links: the words of the title, numbered where several have the same.
export function nameExhibits(exhibits, taken = new Set()) {
  for (const exhibit of exhibits) {
    const base = slug(exhibit.title);
    let [id, count] = [base, 1];
    while (taken.has(id)) id = `${base}-${++count}`;
    taken.add(id);
    exhibit.id = id;
  }
  return exhibits;
}

export function readHash(exhibits, hash = location.hash) {
  let parts = [];
  try {
    parts = hash.slice(1).split("/").map(decodeURIComponent);
  } catch {
    // a mangled link leads to the first exhibit
  }
  const exhibit = exhibits.find((one) => one.id === parts[0]);
  if (!exhibit) return null;
  const whole = (text, count) => {
    const at = Number.parseInt(text ?? "", 10) - 1;
    return at >= 0 && at < count ? at : 0;
  };
  const stage = whole(parts[1], exhibit.stages.length);
  const row = whole(parts[2], exhibit.stages[stage]?.rows.length ?? 0);
  return { exhibit, stage, row };
}

export function writeHash({ exhibit, stage, row }, { isNew }) {
  const parts = [encodeURIComponent(exhibit.id)];
  if (stage > 0 || row > 0) parts.push(stage + 1);
  if (row > 0) parts.push(row + 1);
  const hash = `#${parts.join("/")}`;
  if (hash === location.hash) return;
  history[isNew ? "pushState" : "replaceState"](null, "", hash);
}
