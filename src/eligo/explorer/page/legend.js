// The legend of a picture, as text of the page, so that it has its font size and contrast.

import { el } from "./dom.js";

export function legendOf(keys) {
  if (!keys.length) return null;
  const lines = keys.map(({ colour, text }) => {
    const patch = el("i", { class: "swatch", "aria-hidden": "true", vars: { colour } });
    return el("li", { class: "key", dir: "auto" }, patch, text);
  });
  return el("ul", { class: "legend colours", "aria-label": "colours" }, lines);
}
