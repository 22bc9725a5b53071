// Chosen items, in order, beside those that were not chosen.

import { chips, segmented } from "./controls.js";
import { el, replace, setVars } from "./dom.js";
import { hasRows } from "./journey.js";
import { DROPPED, KEPT, UNREACHED, barOf, readRow } from "./reading.js";
import { count, number, ordinal } from "./words.js";
import { zoomable } from "./zoom.js";

const FOLDED = 12; // items of a list that are shown at first
const ORDERS = [
  { name: "choice", label: "as chosen" },
  { name: "score", label: "by score" },
  { name: "given", label: "as given" },
];

export function itemsView(record, view, place, moved) {
  const stage = record.stages[view.stages[0]];
  let row = Math.min(place.row, stage.rows.length - 1);
  let order = "choice";
  const lists = el("div", { class: "lists" });
  const key = el("span", { class: "soft bars-key" });
  const words = chips("rows", stage.rows, { choose: go, preview: () => {} });

  function show() {
    const reading = readRow(stage, row);
    key.textContent = barsKey(reading);
    const places = (fate) => sorted(reading, order).filter((at) => reading.fate[at] === fate);
    const list = (name, title, items) => makeList(record, stage, reading, name, title, items);
    replace(lists, [
      list("chosen", "Chosen", places(KEPT)),
      list("rejected", "Not chosen", places(DROPPED)),
      places(UNREACHED).length > 0 && list("unreached", "Dropped before", places(UNREACHED)),
    ]);
  }
  function go(next) {
    row = (next + stage.rows.length) % stage.rows.length;
    words.show(row);
    moved({ stage: view.stages[0], row });
    show();
  }
  const sorter = segmented("order", ORDERS, order, (name) => {
    order = name;
    show();
  });
  go(row);
  return {
    node: el(
      "div",
      { class: "items" },
      hasRows(stage) && words.node,
      el("div", { class: "toolbar" }, sorter.node, key),
      stage.note && el("p", { class: "soft", dir: "auto" }, stage.note),
      lists,
    ),
    aside: [],
    repaint: () => {},
    release: () => {},
    leave: () => {},
    keys: {
      mode: () => sorter.pick(after(order)),
      step: () => {},
      play: () => {},
      row: (by) => go(row + by),
    },
  };
}

function barsKey({ low, high, ranked }) {
  if (!ranked.length) return "";
  const ends = `bars: ${number(Math.min(0, low))} to ${number(Math.max(0, high))}`;
  return low < 0 && high > 0 ? `${ends}, the line is 0` : ends;
}

function after(order) {
  const names = ORDERS.map((option) => option.name);
  return names[(names.indexOf(order) + 1) % names.length];
}

// All places: the chosen ones first, then by score; places without a score last.
function sorted(reading, order) {
  const places = [...reading.fate.keys()];
  const key = {
    choice: (at) => reading.order[at] || reading.count + (reading.rank[at] || reading.count),
    score: (at) => reading.rank[at] || reading.count + 1,
    given: (at) => at,
  }[order];
  return places.sort((a, b) => key(a) - key(b) || a - b);
}

function makeList(record, stage, reading, name, title, places) {
  const list = el("ol", { class: "cards" });
  const add = (from, to) =>
    list.append(...places.slice(from, to).map((at) => makeCard(record, stage, reading, at)));
  add(0, FOLDED);
  const rest = places.length - FOLDED;
  const more = el(
    "button",
    {
      type: "button",
      class: "more",
      onclick: () => {
        add(FOLDED, places.length);
        more.remove();
        const first = list.children[FOLDED];
        first.tabIndex = -1; // some items have nothing else to focus
        (first.querySelector("button") ?? first).focus();
      },
    },
    `Show ${count(rest)} more`,
  );
  return el(
    "section",
    { class: `list ${name}` },
    el("h2", {}, title, el("span", { class: "count" }, count(places.length))),
    places.length ? list : el("p", { class: "soft" }, "None."),
    rest > 0 && more,
  );
}

function makeCard(record, stage, reading, at) {
  const item = stage.items[at];
  const url = item.picture === null ? null : record.pictures[item.picture];
  const kept = reading.order[at];
  const into = reading.fate[at] === DROPPED ? reading.into[at] : -1;
  const card = el(
    "li",
    { class: "item", "data-place": at, "data-kept": kept ? "" : null },
    kept ? el("span", { class: "badge", "aria-label": `${ordinal(kept)} choice` }, kept) : null,
    url && zoomable(url, item.text),
    el(
      "div",
      { class: "about" },
      el("p", { dir: "auto" }, item.text),
      item.note && el("p", { class: "soft", dir: "auto" }, item.note),
      into >= 0 &&
        el("p", { class: "soft", dir: "auto" }, `folded into: ${stage.items[into].text}`),
      el(
        "div",
        { class: "score" },
        el("i", { class: "meter", "aria-hidden": "true", "data-signed": reading.low < 0 }),
        el("b", {}, `score ${number(reading.score[at])}`),
        reading.rank[at] ? el("span", { class: "soft" }, `rank ${reading.rank[at]}`) : null,
      ),
    ),
  );
  setVars(card, barOf(reading.score[at], reading));
  return card;
}
