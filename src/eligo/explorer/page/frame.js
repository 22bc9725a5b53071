// The common parts of views over a picture: modes, the board, a legend, the scores.

import { makeBoard } from "./board.js";
import { heatGradient } from "./colour.js";
import { checkbox, segmented } from "./controls.js";
import { el, replace, setVars } from "./dom.js";
import { makeHistogram } from "./histogram.js";
import { paintClusters, paintImage, paintKept, paintScores, paintStrongest } from "./paint.js";
import { alike, loadPicture } from "./picture.js";
import { number } from "./words.js";

const PAINTERS = {
  image: paintImage,
  kept: paintKept,
  scores: paintScores,
  clusters: paintClusters,
  strongest: paintStrongest,
};
const remembered = {}; // the mode chosen last, by kind of view
let byRank = false; // whether scores are coloured by their rank

// `modes` are options of `segmented`; `scene()` returns the input of painters; `about` and `first` are
// those of the board; `legend(mode)` returns elements.
export function makeFrame(
  record,
  grid,
  { kind, label, modes, usual, scene, legend, about, first, onfocus },
) {
  const usable = modes.filter((mode) => !mode.off).map((mode) => mode.name);
  let mode = usable.includes(remembered[kind]) ? remembered[kind] : usual;
  let shown = grid.picture;
  let picture = null;
  const histogram = makeHistogram();
  const board = makeBoard({
    about,
    first,
    onfocus: (cell) => {
      histogram.point(cell);
      onfocus(cell);
    },
  });
  setVars(board.node, { ratio: grid.columns / grid.rows }); // until the picture is loaded
  const choice = segmented("what to show", modes, mode, (name) => {
    remembered[kind] = mode = name;
    repaint({ fade: true });
  });
  const key = el("div", { class: "legend" });
  const ranked = checkbox("by rank", byRank, (isOn) => {
    byRank = isOn;
    repaint({ fade: true });
  });
  const toolbar = el("div", { class: "toolbar" }, choice.node);

  async function repaint({ fade = false } = {}) {
    picture = await loadPicture(record.pictures[shown], grid.columns / grid.rows);
    board.node.setAttribute("aria-label", label());
    board.node.dataset.mode = mode;
    const painter = (context, layout, look) =>
      PAINTERS[mode](context, layout, { ...scene(), picture, byRank, look });
    board.show(picture, grid, painter, { fade });
    histogram.show(scene().reading);
    histogram.point(board.cell);
    replace(key, legend(mode, byRank), mode === "scores" && ranked);
  }

  alike(record, grid.picture).then((names) => {
    if (names.length < 2) return;
    const options = names.map((name) => ({ name }));
    const switcher = segmented("picture", options, shown, (name) => {
      shown = name;
      repaint({ fade: true });
    });
    switcher.node.classList.add("pictures");
    toolbar.append(switcher.node);
  });

  return {
    board,
    toolbar,
    legend: key,
    histogram,
    repaint,
    mode: () => mode,
    setMode: (name) => choice.pick(name),
    nextMode: () => choice.pick(usable[(usable.indexOf(mode) + 1) % usable.length]),
  };
}

export function swatch(name, text) {
  return el("span", { class: "key" }, el("i", { class: `swatch ${name}` }), text);
}

export function heatKey({ low, high }, isByRank) {
  const bar = el("i", { class: "ramp" });
  bar.style.background = heatGradient();
  const ends = isByRank ? ["last", "first"] : [number(low), number(high)];
  return el("span", { class: "key" }, ends[0], bar, ends[1]);
}
