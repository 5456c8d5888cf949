/* What the circuit does on single examples, and how everything was made. */

function drawEvidence(data) {
  byId("evidence-card").hidden = !data.examples.length;
  if (!data.examples.length) return;
  const { chosen } = data;
  const run = data.runs[chosen.run];
  byId("evidence-note").textContent =
    `The metric on the clean prompt, on the corrupted prompt, and on the clean prompt with all edges outside the requested circuit ablated ` +
    `(${methodName(run.name)}, ${howName(chosen.how, run).toLowerCase()}, ${plural(chosen.asked, "edge")}). Differing tokens are marked.`;
  const values = data.examples.flatMap((example) => [example.clean, example.corrupted, example.circuit]).filter((value) => value !== null);
  const ends = [Math.min(0, ...values), Math.max(0, ...values)];
  const n = data.examples.length; // six of them, from the best kept to the worst
  const some = n > 6 ? Array.from({ length: 6 }, (_, i) => data.examples[Math.round((i * (n - 1)) / 5)]) : data.examples;
  byId("examples").replaceChildren(...some.map((example) => exampleCard(example, ends)));
}

function exampleCard(example, ends) {
  const rows = [["clean", example.clean], ["circuit", example.circuit], ["corrupted", example.corrupted]];
  return element("article", { class: "example" },
    prompt("Clean", example.clean_tokens, example.corrupted_tokens, example.answer),
    prompt("Corrupted", example.corrupted_tokens, example.clean_tokens, ""),
    element("div", { class: "values" }, ...rows.filter(([, value]) => value !== null).map(([name, value]) => valueRow(name, value, ends))));
}

function prompt(name, tokens, others, answer) {
  const text = element("p", { class: "prompt" });
  tokens.forEach((token, i) => text.append(...(token === others[i] ? [token] : framed("mark", token))));
  if (answer) text.append(...framed("span", answer, { class: "answer", title: "the answer" }));
  return element("div", { class: "side-by-side" }, element("span", { class: "name" }, name), text);
}

/* A token in a frame, with the space that most tokens start with left outside of it. */
function framed(tag, token, attributes = {}) {
  const word = token.trimStart();
  return word ? [token.slice(0, token.length - word.length), element(tag, attributes, word)] : [element(tag, attributes, token)];
}

function valueRow(name, value, [low, high]) {
  const span = high - low || 1;
  const share = (at) => (100 * (at - low)) / span;
  const from = Math.min(share(0), share(value));
  const bar = element("span", { class: "bartrack" }, element("i", { class: name, style: `left:${from}%;width:${Math.max(0.6, Math.abs(share(value) - share(0)))}%` }));
  return element("div", { class: "valuerow" }, element("span", { class: "name" }, name), bar, element("b", {}, number(value)));
}

/* Facts in order of interest; all others follow. */
const FACTS = [
  ["method", "Method"], ["steps", "Steps"], ["options", "Options"], ["examples", "Examples scored"], ["metric", "Metric"],
  ["seed", "Seed"], ["split", "Split"], ["citation", "Task from"], ["source", "Data from"], ["data", "Pairs"], ["dtype", "Number format"], ["bos", "BOS token"], ["passes", "Passes per batch"], ["seconds", "Time"], ["version", "gradpath"],
];

function drawMade(data, runNumber) {
  const run = data.runs[runNumber];
  const about = allFacts(run.about, data.about);
  const known = new Set([...FACTS.map(([key]) => key), "model", "task", "selection"]);
  const rest = Object.keys(about).filter((key) => !known.has(key)).map((key) => [key, key]);
  const rows = [["Model", data.model], ["Task", data.task]];
  for (const [key, label] of [...FACTS, ...rest]) if (about[key] !== undefined && about[key] !== null) rows.push([label, factText(key, about[key])]);
  byId("made").replaceChildren(
    ...rows.filter(([, value]) => value !== "").map(([label, value]) =>
      element("div", { class: value.length > 60 ? "long" : null }, element("dt", {}, label), element("dd", {}, value))),
  );
}

/* Facts about the data for which the page has a label get a row of their own. */
function allFacts(ofRun, ofReport) {
  const { data, ...about } = { ...ofRun, ...ofReport };
  if (typeof data !== "object" || data === null) return data === undefined ? about : { ...about, data };
  const { metric, seed, split, citation, source, n, kept, ...rest } = data;
  // The number of examples is listed already, unless some pairs were dropped.
  return { metric, seed, split, citation, source, ...about, data: kept === n ? rest : { pairs: n, kept, ...rest } };
}

function factText(key, value) {
  if (key === "seconds") return `${value < 10 ? value.toFixed(1) : count(Math.round(value))} s`;
  if (key === "method") return methodName(value);
  if (key === "bos") return value ? "yes" : "no";
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : String(value);
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value === "object") {
    const told = Object.entries(value).filter(([, item]) => item !== null && !(typeof item === "object" && !Object.keys(item).length));
    return told.map(([name, item]) => `${name}: ${typeof item === "object" ? JSON.stringify(item) : item}`).join(", ");
  }
  return String(value);
}

function drawBlocks(data) {
  const blocks = [["Run it again", data.command], ["Cite", data.bibtex]].filter(([, text]) => text);
  byId("blocks").replaceChildren(...blocks.map(([name, text]) => {
    const copy = element("button", { type: "button", class: "quiet", onclick: () => copyText(text, copy) }, "Copy");
    return element("div", { class: "block" }, element("div", { class: "cardhead" }, element("h3", {}, name), copy), element("pre", { tabindex: "0" }, text));
  }));
}

/* The clipboard is closed to a page opened from disk in some browsers: then the text is at least selected. */
async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.closest(".block").querySelector("pre"));
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 1600);
}
