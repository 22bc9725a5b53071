// Histogram of the scores of a stage, and which part of them was kept.

import { el, svg } from "./dom.js";
import { KEPT, scaled } from "./reading.js";
import { number, plural } from "./words.js";

const BINS = 28;
const [WIDTH, HEIGHT] = [280, 72];

export function makeHistogram() {
  const node = el("section", { class: "card histogram", "aria-label": "scores" });
  let needle = null;
  let current = null;
  return {
    node,
    show(reading) {
      current = reading;
      const bins = binned(reading);
      const top = Math.max(1, ...bins.map((bin) => bin.kept + bin.dropped));
      const width = WIDTH / BINS;
      const bars = bins.flatMap((bin, at) => {
        const height = (count) => (count ? Math.max(1.5, (HEIGHT * count) / top) : 0);
        const [kept, all] = [height(bin.kept), height(bin.kept + bin.dropped)];
        const place = { x: at * width + 0.75, width: width - 1.5, rx: 1 };
        return [
          all > kept && svg("rect", { ...place, class: "dropped", y: HEIGHT - all, height: all }),
          kept && svg("rect", { ...place, class: "kept", y: HEIGHT - kept, height: kept }),
        ];
      });
      needle = svg("line", { class: "needle", y1: 0, y2: HEIGHT, visibility: "hidden" });
      const lowest = Math.min(
        ...reading.kept.map((place) => reading.score[place]).filter(Number.isFinite),
      );
      const about = Number.isFinite(lowest)
        ? `; the lowest kept score is ${number(lowest)}`
        : "";
      const label = `${plural(reading.ranked.length, "score")} from ${number(reading.low)} to ${number(reading.high)}${about}`;
      node.replaceChildren(
        el("h2", {}, "Scores"),
        svg(
          "svg",
          {
            viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
            role: "img",
            "aria-label": label,
            preserveAspectRatio: "none",
          },
          bars,
          needle,
        ),
        el(
          "div",
          { class: "ends" },
          el("span", {}, number(reading.low)),
          el("span", { class: "soft" }, reading.ranked.length ? "kept in colour" : ""),
          el("span", {}, number(reading.high)),
        ),
      );
    },
    point(place) {
      const score = place < 0 || !current ? NaN : current.score[place];
      if (!needle) return;
      needle.setAttribute("visibility", Number.isNaN(score) ? "hidden" : "visible");
      if (Number.isNaN(score)) return;
      const x = scaled(score, current) * WIDTH;
      needle.setAttribute("x1", x);
      needle.setAttribute("x2", x);
    },
  };
}

function binned(reading) {
  const bins = Array.from({ length: BINS }, () => ({ kept: 0, dropped: 0 }));
  for (const place of reading.ranked) {
    const at = Math.min(BINS - 1, Math.floor(scaled(reading.score[place], reading) * BINS));
    bins[at][reading.fate[place] === KEPT ? "kept" : "dropped"] += 1;
  }
  return bins;
}
