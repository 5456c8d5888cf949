/* Numbers and small pieces of the page, as people read them. All text goes in as text, never as HTML. */

const count = (n) => n.toLocaleString("en-US");
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

function signed(score) {
  const size = Math.abs(score);
  const text = size === 0 ? "0" : size >= 0.001 && size < 1e4 ? size.toPrecision(3) : size.toExponential(2);
  return (score < 0 ? "−" : "+") + text;
}


/* A sparsity with the digits that matter: 97.5%, 99.91%. */
function sparsityText(share) {
  const text = (100 * share).toFixed(share > 0.99 ? 2 : 1);
  return `${text.replace(/\.?0+$/, "") || "0"}%`;
}

const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits).replace(/^-(?=[0.]+$)/, "").replace("-", "−"));
const percent = (share, digits = 0) => `${number(100 * share, digits)}%`;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function svgElement(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const byId = (id) => document.getElementById(id);
const labelOf = (run, how) => (run.orders[how] ? run.orders[how].label : how);

/* A row of radio buttons that look like one switch. Arrow keys move in it, as in any radio group. */
function segments(holder, options, chosen, pick) {
  holder.replaceChildren(
    ...options.map(([value, label, title]) => {
      const input = element("input", { type: "radio", name: holder.id, value, onchange: () => pick(value) });
      input.checked = value === chosen;
      return element("label", { title: title || null }, input, element("span", {}, label));
    }),
  );
}
