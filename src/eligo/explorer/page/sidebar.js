// The list of records: by kind, searchable, with marks for right and wrong answers.

import { el, replace } from "./dom.js";
import { plural, correctness } from "./words.js";

export function makeSidebar({ open }) {
  const search = el("input", {
    type: "search",
    placeholder: "Search",
    "aria-label": "search records",
    autocomplete: "off",
    oninput: () => filter(),
    onkeydown: (event) => {
      if (event.key === "Escape" && search.value) clear(event);
      if (event.key === "Enter" || event.key === "ArrowDown") enter(event);
    },
  });
  const found = el("p", { class: "soft found", role: "status" });
  const groups = el("nav", { class: "groups", "aria-label": "records" });
  let entries = [];

  function fill(records) {
    const kinds = new Map();
    for (const record of records) {
      const kind = record.group ?? record.kind;
      kinds.set(kind, [...(kinds.get(kind) ?? []), record]);
    }
    entries = [];
    replace(
      groups,
      [...kinds].map(([kind, members]) => {
        const nodes = members.map((record) => {
          const node = entry(record, open);
          entries.push({ record, node, text: searchText(record) });
          return node;
        });
        const number = el("span", { class: "count" }, members.length);
        return el(
          "details",
          { open: true },
          el("summary", { dir: "auto" }, kind, number),
          el("ul", {}, nodes),
        );
      }),
    );
    filter();
  }

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { node, text } of entries) node.hidden = !words.every((word) => text.includes(word));
    for (const group of groups.children) group.hidden = !group.querySelector("li:not([hidden])");
    found.textContent = words.length ? `${plural(visible().length, "record")} found` : "";
  }
  function clear(event) {
    event.preventDefault(); // not also for the page
    search.value = "";
    filter();
  }
  const visible = () => entries.filter(({ node }) => !node.hidden);
  function enter(event) {
    event.preventDefault();
    const [first] = visible();
    if (!first) return;
    first.node.firstChild.focus();
    if (event.key === "Enter") open(first.record);
  }
  groups.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const links = visible().map(({ node }) => node.firstChild);
    const at = links.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    if (at + step < 0) search.focus();
    links[at + step]?.focus();
  });

  return {
    node: el("div", { class: "sidebar-inner" }, search, found, groups),
    fill,
    search,
    // The record `step` places further in the filtered list, at most its first or last one.
    beside(record, step) {
      const list = visible().map((one) => one.record);
      const at = list.indexOf(record);
      return at < 0 ? list[0] : list[Math.min(list.length - 1, Math.max(0, at + step))];
    },
    show(current) {
      for (const { record, node } of entries) {
        const link = node.firstChild;
        link.toggleAttribute("data-current", record === current);
        if (record === current) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
        if (record === current) reveal(link);
      }
    },
  };
}

// Not `scrollIntoView`, which would change where Tab continues.
function reveal(link) {
  const list = link.closest("#list");
  const [own, box] = [link, list].map((node) => node.getBoundingClientRect());
  list.scrollTop += Math.max(0, own.bottom - box.bottom) + Math.min(0, own.top - box.top);
}

function searchText({ title, query, kind, answers }) {
  return [title, query, kind, ...answers.map((answer) => answer.text)].join(" ").toLowerCase();
}

function entry(record, open) {
  const [picture] = Object.values(record.pictures);
  const marks = record.answers
    .map((answer) => ({ ...correctness(answer.right), who: answer.who }))
    .filter((one) => one.word);
  const summary = marks.map(({ who, word }) => `${who} ${word}`).join(", ");
  const link = el(
    "a",
    {
      href: `#${encodeURIComponent(record.id)}`,
      title: record.title,
      onclick: (event) => {
        if (event.metaKey || event.ctrlKey || event.shiftKey) return;
        event.preventDefault();
        open(record);
      },
    },
    picture
      ? el("img", { src: picture, alt: "", decoding: "async" })
      : el("span", { class: "blank", "aria-hidden": "true" }),
    el("span", { class: "name", dir: "auto" }, record.title),
    marks.length > 0 &&
      el(
        "span",
        { class: "marks", role: "img", "aria-label": summary },
        marks.map(({ sign, name }) => el("i", { "data-correctness": name }, sign)),
      ),
  );
  return el("li", {}, link);
}
