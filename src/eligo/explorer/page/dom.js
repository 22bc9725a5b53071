// Makes elements. Text is always set as text, so that data cannot become markup.

export function el(name, props = {}, ...children) {
  return fill(document.createElement(name), props, children);
}

export function svg(name, props = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), props, children);
}

function fill(node, props, children) {
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "vars") setVars(node, value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child || child === 0));
  return node;
}

// Sets custom properties, for sizes and colours from the data.
export function setVars(node, vars) {
  for (const [name, value] of Object.entries(vars)) node.style.setProperty(`--${name}`, value);
}

export function replace(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter(Boolean));
}

export function prefersReducedMotion() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

// Arrow keys move between siblings, of which only one is in the tab order.
export function rove(container, selector, choose) {
  container.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const nodes = [...container.querySelectorAll(selector)];
    const at = nodes.indexOf(document.activeElement);
    const ends = { Home: 0, End: nodes.length - 1 };
    if (at < 0 || (step === undefined && !(event.key in ends))) return;
    event.preventDefault();
    const next = step === undefined ? ends[event.key] : (at + step + nodes.length) % nodes.length;
    nodes[next].focus();
    choose(nodes[next], next);
  });
}

export function mark(nodes, chosen, attribute = "aria-checked") {
  nodes.forEach((node, at) => {
    node.setAttribute(attribute, String(at === chosen));
    node.tabIndex = at === chosen || (chosen < 0 && at === 0) ? 0 : -1;
  });
}
