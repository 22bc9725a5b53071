// Dark or light: the system's setting, until the user changes it.

const KEY = "eligo.theme";

const system = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;

export function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
}

export function startTheme(repaint) {
  const saved = recall();
  if (saved) root.dataset.theme = saved;
  system.addEventListener("change", repaint);

  let before = null; // the theme before printing, which uses light colours
  addEventListener("beforeprint", () => {
    before = root.dataset.theme ?? "";
    root.dataset.theme = "light";
    repaint();
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before;
    else delete root.dataset.theme;
    repaint();
  });
  return function toggle() {
    root.dataset.theme = isDark() ? "light" : "dark";
    save(root.dataset.theme);
    repaint();
  };
}

// Storage may be forbidden, for files and in private windows; the choice is then not saved.
function recall() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function save(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // not saved
  }
}
