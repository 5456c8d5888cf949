/* What the circuit does on single examples, and how everything was made. */

function drawEvidence(data) {
  byId("evidence-card").hidden = !data.examples.length;
  if (!data.examples.length) return;
  const { chosen } = data;
  const run = data.runs[chosen.run];
  byId("evidence-note").textContent =
    `The metric on the clean prompt, on the corrupted prompt, and on the clean prompt with all edges outside the requested circuit ablated ` +
    `(${run.name}, ${labelOf(run, chosen.how).toLowerCase()}, ${plural(chosen.requested, "edge")}). Differing tokens are marked.`;
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

/* How a run was made; long texts take two columns. */
function drawMade({ facts }) {
  byId("made").replaceChildren(...facts.map(([label, text]) =>
    element("div", { class: text.length > 60 ? "long" : null }, element("dt", {}, label), element("dd", {}, text))));
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
