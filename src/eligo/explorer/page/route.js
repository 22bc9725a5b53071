// Where the reader is, as a link: #record/stage/row, counted from one.

import { slug } from "./words.js";

// Names for links: the words of the title, numbered where several have the same.
export function nameRecords(records, taken = new Set()) {
  for (const record of records) {
    const base = slug(record.title);
    let [id, count] = [base, 1];
    while (taken.has(id)) id = `${base}-${++count}`;
    taken.add(id);
    record.id = id;
  }
  return records;
}

export function readHash(records, hash = location.hash) {
  let parts = [];
  try {
    parts = hash.slice(1).split("/").map(decodeURIComponent);
  } catch {
    // a mangled link leads to the first record
  }
  const record = records.find((one) => one.id === parts[0]);
  if (!record) return null;
  const whole = (text, count) => {
    const at = Number.parseInt(text ?? "", 10) - 1;
    return at >= 0 && at < count ? at : 0;
  };
  const stage = whole(parts[1], record.stages.length);
  const row = whole(parts[2], record.stages[stage]?.rows.length ?? 0);
  return { record, stage, row };
}

export function writeHash({ record, stage, row }, { isNew }) {
  const parts = [encodeURIComponent(record.id)];
  if (stage > 0 || row > 0) parts.push(stage + 1);
  if (row > 0) parts.push(row + 1);
  const hash = `#${parts.join("/")}`;
  if (hash === location.hash) return;
  history[isNew ? "pushState" : "replaceState"](null, "", hash);
}
