// A small picture that opens large.

import { el } from "./dom.js";

export function zoomable(url, text) {
  const image = el("img", { src: url, alt: "", decoding: "async" });
  return el(
    "button",
    {
      type: "button",
      class: "thumb",
      "aria-label": `enlarge the picture: ${text}`,
      onclick: () => open(url, text),
    },
    image,
  );
}

function open(url, text) {
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
    el("button", { type: "button", class: "plain" }, "Close"),
  );
  document.body.append(dialog);
  dialog.showModal();
}
