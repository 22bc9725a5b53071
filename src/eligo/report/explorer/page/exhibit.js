// One exhibit: the query, what was answered, what was chosen, what it cost.

import { chainView } from "./chain.js";
import { el, mark, rove } from "./dom.js";
import { itemsView } from "./items.js";
import { viewsOf } from "./journey.js";
import { legendOf } from "./legend.js";
import { alike, ofItems } from "./picture.js";
import { rowsView } from "./rows.js";
import { verdict } from "./words.js";
import { zoomable } from "./zoom.js";

const VIEWS = { grid: chainView, rows: rowsView, items: itemsView };

// `moved({stage, row})` is told where the reader is; returns the element and what keys act on.
export function showExhibit(exhibit, place, moved) {
  const views = viewsOf(exhibit);
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
        onclick: () => open({ stage: views[at].stages[0], row: 0 }),
      },
      view.name,
    ),
  );

  function open(to) {
    const at = Math.max(
      0,
      views.findIndex((view) => view.stages.includes(to.stage)),
    );
    shown.leave();
    if (!views.length) return;
    shown.view = VIEWS[views[at].kind](exhibit, views[at], to, moved);
    mark(tabs, at, "aria-selected");
    panel.setAttribute("aria-label", views[at].name);
    panel.replaceChildren(shown.view.node);
    aside.replaceChildren(...shown.view.aside, ...facts(exhibit));
    aside.dataset.kind = views[at].kind;
  }
  const bar = el("div", { class: "tabs", role: "tablist", "aria-label": "stages" }, tabs);
  rove(bar, "[role=tab]", (_, at) => open({ stage: views[at].stages[0], row: 0 }));
  if (views.length > 1) panel.setAttribute("role", "tabpanel");
  shown.node = el(
    "article",
    { class: "exhibit" },
    heading(exhibit),
    views.length > 1 && bar,
    el("div", { class: "body" }, panel, aside),
    gallery(exhibit),
  );
  open(place);
  if (!views.length) aside.replaceChildren(...facts(exhibit));
  return shown;
}

function heading(exhibit) {
  const [first] = Object.entries(exhibit.pictures);
  const isElsewhere = first && (ofGrids(exhibit).has(first[0]) || ofItems(exhibit).has(first[0]));
  return el(
    "header",
    { class: "heading" },
    first && !isElsewhere && zoomable(first[1], first[0]),
    el(
      "div",
      { class: "asked" },
      el("p", { class: "kind" }, exhibit.kind),
      el("h1", { dir: "auto", tabindex: -1 }, exhibit.title),
      !isSame(exhibit.query, exhibit.title) &&
        el("p", { class: "query", dir: "auto" }, exhibit.query),
      exhibit.answers.length > 0 &&
        el("ul", { class: "answers", "aria-label": "answers" }, exhibit.answers.map(answerCard)),
    ),
  );
}

function isSame(query, title) {
  return query.trim().toLowerCase() === title.trim().toLowerCase();
}

function answerCard(answer) {
  const { sign, word, name } = verdict(answer.right);
  return el(
    "li",
    { class: "answer", "data-verdict": name },
    el("span", { class: "who", dir: "auto" }, answer.who),
    el("span", { class: "said", dir: "auto" }, answer.text || "\u2014"),
    word && el("span", { class: "verdict" }, el("i", { "aria-hidden": "true" }, sign), word),
  );
}

function facts(exhibit) {
  const cost = Object.entries(exhibit.cost);
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
    exhibit.note &&
      el(
        "section",
        { class: "card note" },
        el("h2", {}, "Note"),
        el("p", { dir: "auto" }, exhibit.note),
      ),
  ].filter(Boolean);
}

function ofGrids(exhibit) {
  return new Set(exhibit.stages.filter((stage) => stage.grid).map((stage) => stage.grid.picture));
}

// Pictures that no stage and no switch of a stage shows, below the others.
function gallery(exhibit) {
  const node = el("section", { class: "gallery", hidden: true }, el("h2", {}, "More pictures"));
  Promise.all([...ofGrids(exhibit)].map((name) => alike(exhibit, name))).then((shown) => {
    const known = new Set([...shown.flat(), ...ofItems(exhibit)]);
    const rest = Object.keys(exhibit.pictures).filter((name, at) => at > 0 && !known.has(name));
    node.hidden = rest.length === 0;
    node.append(
      el(
        "div",
        { class: "figures" },
        rest.map((name) => {
          const keys = exhibit.legends[name] ?? [];
          return el(
            "figure",
            {},
            zoomable(exhibit.pictures[name], name, keys),
            el("figcaption", { dir: "auto" }, name),
            legendOf(keys),
          );
        }),
      ),
    );
  });
  return node;
}
