// The form of a live page: a tool, a picture, a text, a budget.

import { makeRequester } from "./requests.js";
import { segmented } from "./controls.js";
import { el, mark, replace, rove } from "./dom.js";
import { readDepth, readImage } from "./upload.js";
import { number } from "./words.js";

// The state that an uploaded file changes.
const asImage = (data) => ({ image: { data }, depth: null, example: null });
const asDepth = (data) => ({ depth: { data } });

// `made(record, key)` receives the answers; requests that differ only in budget and menus have the same
// key.
// `runs`: run the first example at once.
export function startLive(node, live, { made, runs }) {
  const tools = live.tools;
  if (!tools.length) return;
  const states = new Map(tools.map((tool) => [tool.name, initial(tool)]));
  let tool = tools[0];
  const form = el("div", { class: "form" });
  const about = el("p", { class: "remark soft", dir: "auto" });
  const status = el("p", { class: "status", role: "status" });
  const error = el("p", { class: "error", role: "alert", hidden: true });
  const state = () => states.get(tool.name);
  let newest = 0; // number of the latest choice of a file, example or tool

  const { request, drop } = makeRequester({
    path: "/api/run",
    onstart() {
      node.toggleAttribute("data-busy", true);
      status.textContent = "working";
    },
    onanswer(reply, body) {
      node.removeAttribute("data-busy");
      error.hidden = true;
      status.textContent = `${Math.round(reply.milliseconds)} ms`;
      const { budget: _budget, choices: _choices, ...question } = body;
      made(reply.record, JSON.stringify(question));
    },
    onerror: fail,
  });
  // Drops pending requests, so that they do not replace the message.
  function fail(message) {
    drop();
    node.removeAttribute("data-busy");
    status.textContent = "";
    error.textContent = message;
    error.hidden = false;
  }
  function body() {
    const { text, image, depth, budget, choices } = state();
    return {
      tool: tool.name,
      text,
      ...(tool.image && image ? { image } : {}),
      ...(tool.depth && depth ? { depth } : {}),
      ...(tool.budget ? { budget } : {}),
      ...(tool.choices.length ? { choices } : {}),
    };
  }
  const run = (pace) => {
    if (tool.image && !state().image) return fail("Choose an example or upload a picture.");
    return request(body, pace);
  };
  // Makes all controls again, and restores the focus.
  const show = () => {
    const had = form.contains(document.activeElement) ? document.activeElement : null;
    replace(form, parts(tool, state(), { run, take, choose }));
    replace(about, codes(tool.about));
    about.hidden = !tool.about;
    if (had) form.querySelector(had.id ? `#${had.id}` : ".example[aria-checked=true]")?.focus();
  };
  function choose(example) {
    newest += 1;
    Object.assign(state(), { example: example.id, text: example.text, depth: null });
    if (tool.image) state().image = { example: example.id };
    show();
    run("now");
  }
  // Reading a file takes time; a later choice wins.
  async function take(file, read, kept) {
    const turn = ++newest;
    try {
      const data = await read(file);
      if (turn !== newest) return;
      Object.assign(state(), kept(data));
      show();
      run("now");
    } catch (problem) {
      if (turn === newest) fail(problem.message);
    }
  }

  const options = tools.map(({ name, title }) => ({ name, label: title }));
  const choice = segmented("tool", options, tool.name, (name) => {
    newest += 1;
    tool = tools.find((one) => one.name === name);
    show();
    run("now");
  });
  acceptDrops(node, (file) => tool.image && take(file, readImage, asImage));
  node.replaceChildren(el("div", { class: "live-head" }, choice.node, status), about, form, error);
  node.hidden = false;
  show();
  if (runs && (!tool.image || state().image)) run("now");
}

// A text whose parts between backticks are commands.
function codes(text) {
  return text.split("`").map((part, at) => (at % 2 ? el("code", {}, part) : part));
}

function initial(tool) {
  const [example] = tool.examples;
  return {
    text: example?.text ?? tool.text.default,
    example: example?.id ?? null,
    image: example && tool.image ? { example: example.id } : null,
    depth: null,
    budget: tool.budget?.default ?? null,
    choices: Object.fromEntries(tool.choices.map(({ name, options }) => [name, options[0]])),
  };
}

function parts(tool, state, { run, take, choose }) {
  const fields = [examplesOf(tool, state, { take, choose })];
  const text = el("textarea", {
    id: "live-text",
    rows: 2,
    dir: "auto",
    placeholder: tool.text.placeholder,
    maxlength: 1000,
    oninput: () => {
      state.text = text.value;
      run("typing");
    },
    onkeydown: (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      run("now");
    },
  });
  text.value = state.text;
  fields.push(
    el("div", { class: "field" }, el("label", { for: "live-text" }, tool.text.label), text),
  );
  const button = el("button", { type: "button", class: "run", onclick: () => run("now") }, "Run");
  const menus = tool.choices.map((choice) => menuOf(choice, state, run));
  fields.push(
    el(
      "div",
      { class: "go" },
      tool.budget && budgetOf(tool.budget, state, run),
      menus.length > 0 && el("div", { class: "menus" }, menus),
      button,
    ),
  );
  return fields;
}

function budgetOf(budget, state, run) {
  const value = el("output", { for: "live-budget" });
  const say = () => (value.textContent = `${number(state.budget)} ${budget.unit}`.trim());
  const slider = el("input", {
    type: "range",
    id: "live-budget",
    min: budget.min,
    max: budget.max,
    step: budget.step,
    oninput: () => {
      state.budget = Number(slider.value);
      say();
      run("soon");
    },
  });
  slider.value = String(state.budget);
  say();
  return el(
    "div",
    { class: "field" },
    el("label", { for: "live-budget" }, budget.label, value),
    slider,
  );
}

function menuOf({ name, label, options }, state, run) {
  const id = `live-${name}`;
  const menu = el(
    "select",
    {
      id,
      onchange: () => {
        state.choices[name] = menu.value;
        run("now");
      },
    },
    options.map((option) => el("option", { value: option }, option)),
  );
  menu.value = state.choices[name];
  return el("div", { class: "field" }, el("label", { for: id }, label), menu);
}

function examplesOf(tool, state, { take, choose }) {
  const nodes = tool.examples.map((example) =>
    el(
      "button",
      {
        type: "button",
        role: "radio",
        class: "example",
        title: example.title,
        onclick: () => choose(example),
      },
      el("img", { src: example.thumbnail, alt: example.title }),
    ),
  );
  mark(
    nodes,
    tool.examples.findIndex((example) => example.id === state.example),
  );
  const strip = el("div", { class: "strip", role: "radiogroup", "aria-label": "examples" }, nodes);
  rove(strip, ".example", (_, at) => choose(tool.examples[at]));
  const own = [
    tool.image &&
      filePicker("your picture", state.image?.data, {
        id: "live-image",
        accept: "image/png, image/jpeg, image/webp",
        take: (file) => take(file, readImage, asImage),
      }),
    tool.depth &&
      state.image?.data &&
      filePicker("its depth", state.depth?.data, {
        id: "live-depth",
        accept: "image/png",
        take: (file) => take(file, readDepth, asDepth),
      }),
  ];
  const label = tool.image ? "Picture, or drop your own" : "Examples";
  return el(
    "div",
    { class: "field examples" },
    el("span", { class: "label" }, label),
    el("div", { class: "choices" }, own, strip),
  );
}

function filePicker(label, url, { id, accept, take }) {
  const input = el("input", {
    type: "file",
    id,
    accept,
    "aria-label": label,
    onchange: () => input.files[0] && take(input.files[0]),
  });
  const face = url
    ? el("img", { src: url, alt: label })
    : el("span", {}, el("b", { "aria-hidden": "true" }, "+"), label);
  return el("label", { class: "upload", "data-full": Boolean(url) }, input, face);
}

function acceptDrops(node, take) {
  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    node.toggleAttribute("data-drop", true);
  });
  addEventListener(
    "dragleave",
    (event) => event.relatedTarget === null && node.removeAttribute("data-drop"),
  );
  addEventListener("drop", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    node.removeAttribute("data-drop");
    const [file] = event.dataTransfer.files;
    if (file) take(file);
  });
}
