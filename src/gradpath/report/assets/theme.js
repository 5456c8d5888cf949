/* Light and dark: as the system has it, until the button says otherwise. */
function listenToTheme(redraw) {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const set = (theme) => {
    root.dataset.theme = theme;
    byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  };
  set(system.matches ? "dark" : "light");
  system.addEventListener("change", () => { set(system.matches ? "dark" : "light"); redraw(); });
  byId("theme").addEventListener("click", () => { set(root.dataset.theme === "dark" ? "light" : "dark"); redraw(); });
}

function coloursNow() {
  const style = getComputedStyle(document.documentElement);
  const names = [...KINDS, ...SIDES.slice(1), "ink", "muted", "faint", "card", "accent"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
