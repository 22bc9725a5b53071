// The page: the list, the current record, keys and links.

import { el, replace } from "./dom.js";
import { showRecord } from "./record.js";
import { startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { nameRecords, readHash, writeHash } from "./route.js";
import { makeSidebar } from "./sidebar.js";
import { startTheme } from "./theme.js";

const START = { stage: 0, row: 0 };
const MADE = "made here"; // the group of records made on a live page
const MOST_MADE = 20;
const isNarrow = matchMedia("(max-width: 52rem)"); // as in layout.css: the list is a drawer
const byId = (id) => document.getElementById(id);

function start() {
  const data = JSON.parse(byId("data").textContent);
  const taken = new Set();
  const records = nameRecords(data.records, taken);
  const stage = byId("stage");
  const behind = [byId("skip"), byId("theme"), byId("help"), document.querySelector("main")];
  let shown = null;
  let current = null; // {record, stage, row}

  const sidebar = makeSidebar({ open: (record) => open({ record, ...START }) });
  byId("list").append(sidebar.node);
  byId("version").textContent = `eligo ${data.version}`;

  function open(place, { isNew = true } = {}) {
    shown?.leave();
    current = place;
    writeHash(place, { isNew });
    shown = showRecord(place.record, place, (to) => {
      current = { record: place.record, ...to };
      writeHash(current, { isNew: false });
    });
    const hadFocus = stage.contains(document.activeElement);
    replace(stage, shown.node);
    if (hadFocus) stage.focus({ preventScroll: true });
    sidebar.show(place.record);
    document.title = `${place.record.title} \u00b7 ${data.title}`;
    drawer(false, stage);
    if (isNew) scrollTo({ top: 0 });
  }
  function beside(step) {
    const record = sidebar.beside(current?.record, step);
    if (record && record !== current?.record) open({ record, ...START });
  }
  // On a narrow page the list covers the rest, which is then inert; `to` gets the focus afterwards.
  function drawer(isOpen, to = byId("menu")) {
    if (isOpen === document.body.hasAttribute("data-drawer")) return;
    document.body.toggleAttribute("data-drawer", isOpen);
    byId("menu").setAttribute("aria-expanded", String(isOpen));
    for (const node of behind) node.inert = isOpen;
    (isOpen ? sidebar.search : to).focus({ preventScroll: true });
  }
  function arrive() {
    const place = readHash(records);
    if (place) open(place, { isNew: false });
    else if (records.length && !shown) open({ record: records[0], ...START }, { isNew: false });
    else if (!shown) replace(stage, empty(Boolean(data.live)));
  }

  const toggleTheme = startTheme(() => shown?.view?.repaint());
  const help = startKeys({
    j: () => beside(1),
    k: () => beside(-1),
    "/": () => {
      if (isNarrow.matches) drawer(true);
      sidebar.search.focus();
    },
    "[": () => shown?.view?.keys.step(-1),
    "]": () => shown?.view?.keys.step(1),
    p: () => shown?.view?.keys.play(),
    m: () => shown?.view?.keys.mode(),
    r: () => shown?.view?.keys.row(1),
    R: () => shown?.view?.keys.row(-1),
    t: toggleTheme,
    Escape: () => {
      drawer(false);
      shown?.view?.release();
    },
  });
  byId("theme").addEventListener("click", toggleTheme);
  byId("help").addEventListener("click", help);
  byId("menu").addEventListener("click", () => drawer(!document.body.hasAttribute("data-drawer")));
  byId("scrim").addEventListener("click", () => drawer(false));
  byId("list").addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented) drawer(false);
  });
  isNarrow.addEventListener("change", () => drawer(false));
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    stage.focus();
  });
  addEventListener("hashchange", arrive);

  // Adds a new record at the top; it replaces one with the same key (another budget).
  function add(record, key) {
    const before = records.find((one) => one.key === key);
    Object.assign(record, { key, group: MADE });
    if (before) records.splice(records.indexOf(before), 1);
    if (before) record.id = before.id;
    else nameRecords([record], taken);
    records.unshift(record);
    const made = records.filter((one) => one.group === MADE);
    if (made.length > MOST_MADE) records.splice(records.indexOf(made.at(-1)), 1);
    const isSame = before && before === current?.record && record.stages[current.stage];
    sidebar.fill(records);
    open(
      { record, ...(isSame ? { stage: current.stage, row: current.row } : START) },
      { isNew: false },
    );
  }
  sidebar.fill(records);
  const isLinked = Boolean(readHash(records));
  arrive();
  if (data.live) startLive(byId("live"), data.live, { made: add, runs: !isLinked });
}

function empty(isLive) {
  const text = isLive
    ? "Choose an example above, or upload a picture."
    : "This run holds nothing to show.";
  return el("p", { class: "empty soft" }, text);
}

start();
