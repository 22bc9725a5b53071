// Controls shared by several views: segmented buttons, chips, a slider that plays.

import { el, mark, prefersReducedMotion, rove } from "./dom.js";

// Buttons in a row, of which one is chosen. An option is {name, label, off}; `off` says why it is
// disabled.
export function segmented(label, options, chosen, choose) {
  const buttons = options.map((option) =>
    el(
      "button",
      {
        type: "button",
        role: "radio",
        "data-name": option.name,
        dir: "auto",
        disabled: Boolean(option.off),
        title: option.off || null,
        onclick: () => pick(option.name),
      },
      option.label ?? option.name,
    ),
  );
  const names = options.map((option) => option.name);
  const show = (name) => mark(buttons, names.indexOf(name));
  const pick = (name) => {
    show(name);
    choose(name);
  };
  const node = el("div", { class: "segmented", role: "radiogroup", "aria-label": label }, buttons);
  rove(node, "button:not([disabled])", (button) => pick(button.dataset.name));
  show(chosen);
  return { node, show, pick };
}

export function checkbox(label, isOn, choose) {
  const box = el("input", { type: "checkbox", onchange: () => choose(box.checked) });
  box.checked = isOn;
  return el("label", { class: "check" }, box, label);
}

// One chip for each word or tag; hovering over one previews it.
export function chips(label, names, { choose, preview }) {
  const nodes = names.map((name, at) =>
    el(
      "button",
      {
        type: "button",
        role: "radio",
        class: "chip",
        dir: "auto",
        onclick: () => choose(at),
        onpointerenter: (event) => event.pointerType === "mouse" && preview(at),
        onpointerleave: (event) => event.pointerType === "mouse" && preview(-1),
      },
      el("span", { class: "dot", "aria-hidden": "true" }),
      name || "\u2205",
    ),
  );
  const node = el("div", { class: "chips", role: "radiogroup", "aria-label": label }, nodes);
  rove(node, ".chip", (_, at) => choose(at));
  return { node, nodes, show: (chosen) => mark(nodes, chosen) };
}

const PAUSE = 1100; // milliseconds for each stage
const MOST_LETTERS = 64; // of all labels below a slider; if there are more, only the current label is shown

// A slider over steps, with a play button.
export function player(label, ticks, { choose, say }) {
  let timer = null;
  const slider = el("input", {
    type: "range",
    min: 0,
    max: ticks.length - 1,
    step: 1,
    "aria-label": label,
    oninput: () => {
      stop();
      choose(Number(slider.value));
    },
  });
  const button = el("button", { type: "button", class: "play", onclick: toggle });
  const labels = ticks.map((tick, at) => {
    const go = () => (stop(), choose(at));
    const vars = { at: at / Math.max(1, ticks.length - 1) };
    return el("button", { type: "button", tabindex: -1, onclick: go, vars }, el("span", {}, tick));
  });
  function face() {
    button.setAttribute("aria-label", timer ? "pause" : "play through the stages");
    button.dataset.state = timer ? "playing" : "paused";
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    face();
  }
  function toggle() {
    if (timer) return stop();
    const last = ticks.length - 1;
    choose(Number(slider.value) >= last ? 0 : Number(slider.value) + 1);
    timer = setInterval(
      () => {
        if (!slider.isConnected || Number(slider.value) >= last) return stop();
        choose(Number(slider.value) + 1);
        if (Number(slider.value) >= last) stop();
      },
      prefersReducedMotion() ? 2 * PAUSE : PAUSE,
    );
    face();
  }
  face();
  const isCrowded = ticks.join("").length > MOST_LETTERS;
  const names = el(
    "div",
    { class: "ticks", "aria-hidden": "true", "data-crowded": isCrowded },
    labels,
  );
  return {
    node: el("div", { class: "player" }, button, el("div", { class: "track" }, slider, names)),
    toggle,
    stop,
    show(step) {
      slider.value = String(step);
      slider.setAttribute("aria-valuetext", say(step));
      labels.forEach((tick, at) => tick.classList.toggle("current", at === step));
    },
  };
}
