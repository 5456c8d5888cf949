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
  ["seed", "Seed"], ["split", "Split"], ["citation", "Task from"], ["source", "Data from"], ["data", "Pairs"], ["changed", "Changed words"],
  ["dtype", "Number format"], ["bos", "BOS token"], ["passes", "Passes per batch"], ["seconds", "Time"], ["cpu_seconds", "CPU time"], ["version", "gradpath"],
  ["ablation", "Ablation"], ["batch_size", "Batch size"], ["d_model", "Model width"], ["plugins", "Plug-ins"],
  ["weights", "Digest of the weights"], ["examples measured", "Examples measured"], ["python", "Python"], ["torch", "PyTorch"], ["transformers", "Transformers"],
];
const UNLISTED = ["model", "task", "selection", "key"]; // listed elsewhere, or a repetition of the others

/* A name from a file as a label: "rows_read" as "Rows read". */
const factLabel = (key) => capital(key.replaceAll("_", " "));
const capital = (text) => text[0].toUpperCase() + text.slice(1);

function drawMade(data, runNumber) {
  const run = data.runs[runNumber];
  const about = allFacts(run.about, data.about);
  const known = new Set([...FACTS.map(([key]) => key), ...UNLISTED]);
  const rest = Object.keys(about).filter((key) => key && !known.has(key)).map((key) => [key, factLabel(key)]);
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
  const { metric, seed, split, citation, source, changed, ...rest } = data;
  return { metric, seed, split, citation, source, changed, ...about, data: pairsText(rest) };
}

/* Which pairs were used, in sentences. The number of examples is listed already, unless some pairs were dropped. */
function pairsText({ n, kept, dropped, notes, rows_read: rows, held_out: heldOut, layout, ...rest }) {
  const reasons = typeof dropped === "object" && dropped !== null ? Object.entries(dropped) : [];
  const told = [
    ...(typeof rows === "number" && typeof kept === "number" ? [`${count(kept)} of ${plural(rows, "row")}${heldOut ? ", with others held out" : ""}`] : []),
    ...(typeof n === "number" && typeof kept === "number" && kept !== n ? [`${count(kept)} of ${count(n)} requested`] : []),
    ...(typeof layout === "string" && layout !== "own" ? [`Layout: ${layout}`] : []),
    ...reasons.map(([reason, pairs]) => `${plural(Object(pairs).count ?? 1, "pair")} dropped because ${reason}${Object(pairs).first ? `, such as ${pairs.first}` : ""}`),
    ...(Array.isArray(notes) ? notes.filter(Boolean).map((note) => capital(String(note))) : []),
    ...listed(rest).map(([name, item]) => `${factLabel(name)}: ${itemText(item)}`),
  ];
  return told.map((sentence) => (told.length > 1 ? `${sentence}.` : sentence)).join(" ");
}

/* The entries of an object that say something. */
const listed = (object) => Object.entries(object).filter(([name, item]) => name && item !== null && !(typeof item === "object" && !Object.keys(item).length));

function itemText(item) {
  if (typeof item !== "object" || item === null) return String(item);
  return Array.isArray(item) ? item.map(itemText).join(", ") : listed(item).map(([name, part]) => `${name.replaceAll("_", " ")}: ${itemText(part)}`).join(", ");
}

function factText(key, value) {
  if ((key === "seconds" || key === "cpu_seconds") && typeof value === "number") return `${value < 10 ? value.toFixed(1) : count(Math.round(value))} s`;
  if (key === "method") return methodName(value);
  if (key === "bos") return value ? "yes" : "no";
  if (key === "plugins" && typeof value === "object") return Object.keys(value).join(", ");
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : String(value);
  return itemText(value);
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
