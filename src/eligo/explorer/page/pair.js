// Two chains of stages over one picture, side by side.

import { chainView } from "./chain.js";
import { el } from "./dom.js";

const chosen = [0, 1]; // the chains on the left and on the right

export function pairView(record, view, _place, moved) {
  const { sides } = view;
  const columns = chosen.map((side, column) => makeColumn(Math.min(side, sides.length - 1), column));

  function makeColumn(first, column) {
    const node = el("section", { class: "side" });
    const part = { node, view: null };
    const show = (side) => {
      part.view?.leave();
      const place = { stage: sides[side].stages.at(-1), row: 0 };
      part.view = chainView(record, sides[side], place, () => {});
      node.replaceChildren(title(side), part.view.node);
    };
    function title(side) {
      if (sides.length === 2) return el("h2", { dir: "auto" }, nameOf(record, sides[side]));
      const menu = el(
        "select",
        {
          "aria-label": column ? "right" : "left",
          onchange: () => {
            chosen[column] = Number(menu.value);
            show(chosen[column]);
            menu.focus();
          },
        },
        sides.map((one, at) => el("option", { value: at }, nameOf(record, one))),
      );
      menu.value = String(side);
      return menu;
    }
    show(first);
    return part;
  }
  moved({ stage: view.stages[0], row: 0 });

  const both = (action) => columns.forEach((column) => action(column.view));
  return {
    node: el(
      "div",
      { class: "pair" },
      columns.map((column) => column.node),
    ),
    aside: [],
    repaint: (options) => both((one) => one.repaint(options)),
    release: () => both((one) => one.release()),
    leave: () => both((one) => one.leave()),
    keys: {
      mode: () => both((one) => one.keys.mode()),
      step: (by) => both((one) => one.keys.step(by)),
      play: () => both((one) => one.keys.play()),
      row: () => {},
    },
  };
}

function nameOf(record, { stages }) {
  return [...new Set(stages.map((at) => record.stages[at].name))].join(", then ");
}
