// Formats numbers, places and marks as text.

const EXPONENT = { small: 1e-4, large: 1e6 };

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "none";
  const size = Math.abs(value);
  if (size !== 0 && (size < EXPONENT.small || size >= EXPONENT.large))
    return value.toExponential(2);
  return String(Number(value.toPrecision(4))).replace("-", "\u2212");
}

export function percent(share) {
  return `${Math.round(100 * share)} %`;
}

export function ordinal(whole) {
  const tens = whole % 100;
  const ending = tens > 10 && tens < 14 ? "th" : (["th", "st", "nd", "rd"][whole % 10] ?? "th");
  return `${count(whole)}${ending}`;
}

export function count(whole) {
  return whole.toLocaleString("en");
}

export function plural(whole, noun) {
  return `${count(whole)} ${noun}${whole === 1 ? "" : "s"}`;
}

export function layerLabel(stage) {
  if (stage.layer === null || stage.layer === undefined) return stage.name;
  return stage.layer === 0 ? "before layer 0" : `layer ${stage.layer}`;
}

export function cellLabel(cell, grid) {
  return `row ${Math.floor(cell / grid.columns) + 1}, column ${(cell % grid.columns) + 1}`;
}

// Right and wrong differ by sign and word, not by colour alone.
export function correctness(right) {
  if (right === true) return { sign: "\u2713", word: "right", name: "right" };
  if (right === false) return { sign: "\u2717", word: "wrong", name: "wrong" };
  return { sign: "", word: "", name: "unknown" };
}

export function slug(text) {
  const words = text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return words.join("-").slice(0, 60) || "record";
}
