// A thumbnail that opens a large picture.

import { el } from "./dom.js";
import { legendOf } from "./legend.js";

// `keys`: the legend of its colours, if it has any.
export function zoomable(url, text, keys = []) {
  const image = el("img", { src: url, alt: "", decoding: "async" });
  return el(
    "button",
    {
      type: "button",
      class: "thumb",
      "aria-label": `enlarge the picture: ${text}`,
      onclick: () => enlarge(url, text, keys),
    },
    image,
  );
}

function enlarge(url, text, keys) {
  const dialog = el(
    "dialog",
    {
      class: "zoom",
      "aria-label": text || "picture",
      onclick: () => dialog.close(),
      onclose: () => dialog.remove(),
    },
    el("img", { src: url, alt: text }),
    el("p", { dir: "auto" }, text),
    legendOf(keys),
    el("button", { type: "button", class: "plain" }, "Close"),
  );
  document.body.append(dialog);
  dialog.showModal();
}
