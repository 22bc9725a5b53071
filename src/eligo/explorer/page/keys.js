// Keyboard shortcuts, and the list of them.

import { el } from "./dom.js";

const HELP = [
  ["j  k", "next, previous record"],
  ["/", "search"],
  ["[  ]", "previous, next stage"],
  ["p", "play through the stages"],
  ["m", "next mode: image, kept, scores, clusters"],
  ["r  R", "next, previous word or tag"],
  ["arrows", "from cell to cell, when the picture has the focus"],
  ["Enter", "pin a cell; Escape releases it"],
  ["t", "dark or light"],
  ["?", "this list"],
];

export function startKeys(actions) {
  const dialog = makeHelp();
  document.body.append(dialog);
  const help = () => (dialog.open ? dialog.close() : dialog.showModal());
  const table = { ...actions, "?": help };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const typing = "input:not([type=range], [type=checkbox]), textarea, select, [contenteditable]";
    if (event.target instanceof Element && event.target.closest(typing)) return;
    const isOpen = document.querySelector("dialog[open]");
    if (isOpen && event.key !== "?") return;
    const action = table[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  return help;
}

function makeHelp() {
  const rows = HELP.map(([keys, about]) =>
    el(
      "div",
      {},
      el(
        "dt",
        {},
        keys.split("  ").map((key) => el("kbd", {}, key)),
      ),
      el("dd", {}, about),
    ),
  );
  const dialog = el(
    "dialog",
    {
      class: "help",
      "aria-labelledby": "help-title",
      onclick: (event) => event.target === dialog && dialog.close(),
    },
    el("h2", { id: "help-title" }, "Keys"),
    el("dl", {}, rows),
    el("button", { type: "button", class: "plain", onclick: () => dialog.close() }, "Close"),
  );
  return dialog;
}
