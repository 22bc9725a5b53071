// One record: the query, the answers, the stages, the cost.

import { chainView } from "./chain.js";
import { el, mark, rove } from "./dom.js";
import { itemsView } from "./items.js";
import { viewsOf } from "./journey.js";
import { legendOf } from "./legend.js";
import { pairView } from "./pair.js";
import { alike, ofItems } from "./picture.js";
import { rowsView } from "./rows.js";
import { correctness } from "./words.js";
import { zoomable } from "./zoom.js";

const VIEWS = { grid: chainView, items: itemsView, pair: pairView, rows: rowsView };

// `moved({stage, row})` is called when the user goes elsewhere. Returns the element and its actions.
export function showRecord(record, place, moved) {
  const views = viewsOf(record);
  const panel = el("div", { class: "panel" });
  const aside = el("div", { class: "aside" });
  const shown = { node: null, view: null, open, leave: () => shown.view?.leave() };
  const tabs = views.map((view, at) =>
    el(
      "button",
      {
        type: "button",
        role: "tab",
        dir: "auto",
        onclick: () => openAt(at),
      },
      view.name,
    ),
  );

  function open(to) {
    const at = views.findIndex((view) => view.stages.includes(to.stage));
    if (views.length) show(Math.max(0, at), to);
  }
  function openAt(at) {
    show(at, { stage: views[at].stages[0], row: 0 });
  }
  function show(at, to) {
    shown.leave();
    shown.view = VIEWS[views[at].kind](record, views[at], to, moved);
    mark(tabs, at, "aria-selected");
    panel.setAttribute("aria-label", views[at].name);
    panel.replaceChildren(shown.view.node);
    aside.replaceChildren(...shown.view.aside, ...facts(record));
    aside.dataset.kind = views[at].kind;
  }
  const bar = el("div", { class: "tabs", role: "tablist", "aria-label": "stages" }, tabs);
  rove(bar, "[role=tab]", (_, at) => openAt(at));
  if (views.length > 1) panel.setAttribute("role", "tabpanel");
  shown.node = el(
    "article",
    { class: "record" },
    heading(record),
    views.length > 1 && bar,
    el("div", { class: "body" }, panel, aside),
    gallery(record),
  );
  open(place);
  if (!views.length) aside.replaceChildren(...facts(record));
  return shown;
}

function heading(record) {
  const [first] = Object.entries(record.pictures);
  const isElsewhere = first && (ofGrids(record).has(first[0]) || ofItems(record).has(first[0]));
  return el(
    "header",
    { class: "heading" },
    first && !isElsewhere && zoomable(first[1], first[0]),
    el(
      "div",
      { class: "question" },
      el("p", { class: "kind" }, record.kind),
      el("h1", { dir: "auto", tabindex: -1 }, record.title),
      !isSame(record.query, record.title) &&
        el("p", { class: "query", dir: "auto" }, record.query),
      record.answers.length > 0 &&
        el("ul", { class: "answers", "aria-label": "answers" }, record.answers.map(answerCard)),
    ),
  );
}

function isSame(query, title) {
  return query.trim().toLowerCase() === title.trim().toLowerCase();
}

function answerCard(answer) {
  const { sign, word, name } = correctness(answer.right);
  return el(
    "li",
    { class: "answer", "data-correctness": name },
    el("span", { class: "who", dir: "auto" }, answer.who),
    el("span", { class: "text", dir: "auto" }, answer.text || "\u2014"),
    word && el("span", { class: "correctness" }, el("i", { "aria-hidden": "true" }, sign), word),
  );
}

function facts(record) {
  const cost = Object.entries(record.cost);
  return [
    cost.length > 0 &&
      el(
        "section",
        { class: "card cost" },
        el("h2", {}, "Cost"),
        el(
          "dl",
          {},
          cost.map(([name, value]) =>
            el("div", {}, el("dt", { dir: "auto" }, name), el("dd", { dir: "auto" }, value)),
          ),
        ),
      ),
    record.note &&
      el(
        "section",
        { class: "card note" },
        el("h2", {}, "Note"),
        el("p", { dir: "auto" }, record.note),
      ),
  ].filter(Boolean);
}

function ofGrids(record) {
  return new Set(record.stages.filter((stage) => stage.grid).map((stage) => stage.grid.picture));
}

// Pictures that no stage shows, below the others.
function gallery(record) {
  const node = el("section", { class: "gallery", hidden: true }, el("h2", {}, "More pictures"));
  Promise.all([...ofGrids(record)].map((name) => alike(record, name))).then((shown) => {
    const known = new Set([...shown.flat(), ...ofItems(record)]);
    const rest = Object.keys(record.pictures).filter((name, at) => at > 0 && !known.has(name));
    node.hidden = rest.length === 0;
    node.append(
      el(
        "div",
        { class: "figures" },
        rest.map((name) => {
          const keys = record.legends[name] ?? [];
          return el(
            "figure",
            {},
            zoomable(record.pictures[name], name, keys),
            el("figcaption", { dir: "auto" }, name),
            legendOf(keys),
          );
        }),
      ),
    );
  });
  return node;
}
