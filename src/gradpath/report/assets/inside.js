/* What the file knows of single examples: attention, writes, and the effect of every edge of the circuit. */

function makeInside(data, graph) {
  const inside = data.inside;
  if (!inside) return null;
  const numbered = (list) => new Map(list.map((item, at) => [item, at]));
  const [heads, sources] = [numbered(inside.heads), numbered(inside.sources)];
  const roles = new Map(inside.nodes.map((role) => [role.node, role]));
  const flat = unpack(inside.edges, Uint32Array);
  const place = numbered(Array.from(flat));
  const effects = unpack(inside.effects, Float32Array);
  const [tokens, logits] = [unpack(inside.tokens, Uint32Array), unpack(inside.logits, Float32Array)];
  const sides = inside.sides && unpack(inside.sides, Float32Array);
  const patterns = new Map(); // an example's patterns are unpacked when they are first looked at
  const width = inside.sources.length ? tokens.length / (data.examples.length * inside.sources.length) : 0;

  /* The effect of an edge, by its flat position, on an example; undefined outside the circuit. */
  function effect(example, edge) {
    const at = place.get(edge);
    return at === undefined ? undefined : effects[example * flat.length + at];
  }

  /* The edges with their effects on one example instead of their scores; what is not known is 0. */
  function edgesOn(edges, example) {
    const score = Float32Array.from(edges.flat, (edge) => effect(example, edge) ?? 0);
    return { ...edges, mean: edges.score, score, size: score.map(Math.abs) };
  }

  /* The attention weight of a head from one token to another; run 0 is clean, 1 corrupted, 2 the circuit. */
  function pattern(example, node, run) {
    if (!heads.has(node)) return null;
    if (!patterns.has(example)) patterns.set(example, unpack(inside.patterns[example], Uint8Array));
    const n = data.examples[example].clean_tokens.length;
    const pairs = (n * (n + 1)) / 2;
    const from = (run * heads.size + heads.get(node)) * pairs;
    return { n, weight: (query, key) => (key > query ? 0 : patterns.get(example)[from + (query * (query + 1)) / 2 + key] / 255) };
  }

  /* The tokens that a node raises and lowers most at the end of an example, and what it adds to the answers. */
  function writes(example, node) {
    if (!sources.has(node)) return null;
    const row = example * sources.size + sources.get(node);
    const all = Array.from({ length: width }, (_, i) => [inside.vocabulary[tokens[row * width + i]], logits[row * width + i]]);
    return { raised: all.slice(0, width / 2).filter(([, value]) => value > 0), lowered: all.slice(width / 2).filter(([, value]) => value < 0), sides: sides && [sides[2 * row], sides[2 * row + 1]] };
  }

  const role = (node) => roles.get(graph.nodeName(node));
  return { data, graph, answers: inside.answers, effect, edgesOn, pattern, writes, role, isHead: (node) => heads.has(node) };
}

/* Above the drawing: all examples, or one of them, whose effects the edges then show. */
function makePicker(data, choose) {
  const [holder, box, text] = [byId("picker"), byId("example"), byId("example-prompt")];
  holder.hidden = !data.inside || !data.examples.length;
  if (holder.hidden) return () => undefined;
  const n = data.examples.length;
  const name = (i) => `Example ${i + 1} of ${n}${i === 0 ? ", kept best" : i === n - 1 ? ", kept worst" : ""}`;
  box.replaceChildren(element("option", { value: "-1" }, `Mean over all examples`), ...data.examples.map((_, i) => element("option", { value: String(i) }, name(i))));
  box.addEventListener("change", () => choose(Number(box.value)));
  byId("example-before").addEventListener("click", () => choose(Math.max(-1, Number(box.value) - 1)));
  byId("example-after").addEventListener("click", () => choose(Math.min(n - 1, Number(box.value) + 1)));

  return function draw({ example }) {
    box.value = String(example);
    byId("example-before").disabled = example < 0;
    byId("example-after").disabled = example === n - 1;
    text.hidden = example < 0;
    if (example < 0) return;
    const { clean_tokens: tokens, corrupted_tokens: others, answer, clean, circuit } = data.examples[example];
    text.replaceChildren(
      ...tokens.map((token, i) => element("span", { class: token === others[i] ? "token" : "token changed", title: token === others[i] ? `token ${i}` : `token ${i}; in the corrupted prompt:${others[i]}` }, element("b", {}, token.trim() || "␣"), element("small", {}, String(i)))),
      ...(answer ? [element("span", { class: "token answered", title: "the answer" }, element("b", {}, answer.trim()), element("small", {}, "answer"))] : []),
      element("span", { class: "note" }, `metric ${number(clean)} in the model, ${number(circuit)} in the circuit`),
    );
  };
}

const SENTENCES = 8; // nodes that are told of

/* What the circuit does, in words: its strongest nodes with a clear role, each a link that selects its node. */
function drawSentences({ inside }, graph, pick) {
  const told = inside ? inside.nodes.filter((role) => role.sentence) : [];
  byId("does-card").hidden = !told.length;
  byId("does-note").textContent = `${told.length > SENTENCES ? `The strongest ${SENTENCES} of ${told.length} nodes` : `The ${plural(told.length, "node")}`} with a clear role, and the effect of each on the metric. Click one to see it in the drawing.`;
  byId("does").replaceChildren(...told.slice(0, SENTENCES).map(({ node, effect, sentence }) => element("li", {},
    element("a", { href: "#circuit", onclick: () => pick(graph.numbers.get(node)) }, node), element("span", {}, sentence), element("b", {}, signed(effect)))));
}


/* The card beside the drawing: what the node that was clicked does, or what the edge does on every example. */
function makeInsideCard(inside, choose) {
  const [card, body] = [byId("inside-card"), byId("inside")];
  let run = 0;

  return function draw(scene, state) {
    const node = state.selected;
    const group = node >= 0 && scene.notes.groupOf(node);
    const known = inside && !(group && group.folded) && (node >= 0 ? node !== scene.graph.logits && inside.role(node) : state.edge >= 0 && inside.effect(0, scene.edges.flat[state.edge]) !== undefined);
    card.hidden = !known;
    if (!known) return;
    byId("inside-title").textContent = node >= 0 ? `What ${scene.graph.nodeName(node)} does` : "On every example";
    const again = () => draw(scene, state);
    body.replaceChildren(...(node >= 0 ? ofNode(node, state, again) : [examplesOfEdge(scene, state)]));
  };

  function ofNode(node, state, again) {
    const role = inside.role(node);
    const example = Math.max(0, state.example);
    const which = state.example < 0 ? `Example 1 of ${inside.data.examples.length}; choose another above the drawing.` : "";
    const parts = [];
    if (role.sentence) parts.push(element("p", { class: "sentence" }, role.sentence[0].toUpperCase() + role.sentence.slice(1) + "."));
    if (inside.isHead(node)) {
      const switcher = element("div", { class: "segments small", id: "pattern-run", role: "radiogroup", "aria-label": "Which run" });
      segments(switcher, [["0", "Clean"], ["1", "Corrupted"], ["2", "Circuit"]], String(run), (value) => { run = Number(value); again(); });
      parts.push(element("div", { class: "cardhead" }, element("h3", {}, "Attention"), switcher));
      const tokens = inside.data.examples[example][run === 1 ? "corrupted_tokens" : "clean_tokens"];
      parts.push(drawPattern(inside.pattern(example, node, run), tokens));
      if (which) parts.push(element("p", { class: "note" }, which));
    }
    const written = inside.writes(example, node);
    if (written) parts.push(...writesPart(written, inside.answers, which && !inside.isHead(node) ? which : ""));
    return [...parts, ...rolePart(role)];
  }

  function writesPart({ raised, lowered, sides }, names, which) {
    const own = sides ? names.map((name, i) => [name, sides[i], true]) : [];
    const rows = [...own, ...raised, ...lowered];
    const most = Math.max(...rows.map(([, value]) => Math.abs(value)), 1e-9);
    return [
      element("h3", {}, "Adds to the logits", element("span", {}, "at the last token")),
      element("ul", { class: "writes" }, ...rows.map(([text, value, answer]) => element("li", { class: answer ? "named" : null },
        element("span", {}, answer ? text : shownToken(text)), element("i", { class: value < 0 ? "down" : "up", style: `width:${(50 * Math.abs(value)) / most}%` }), element("b", {}, signed(value))))),
      ...(which ? [element("p", { class: "note" }, which)] : []),
    ];
  }

  function rolePart(role) {
    const facts = [["Effect", role.effect, "What the metric owes to what it writes, to first order"], ["Direct effect", role.direct_effect, "What the metric loses when only its edge to logits is corrupted"]];
    const scores = Object.entries(role.scores).map(([name, value]) => [name.replace("_", " "), value, "On repeated random tokens, from 0 to 1"]);
    const told = [...facts.map(([name, value, title]) => [name, value === null ? null : signed(value), title]), ...scores.map(([name, value, title]) => [name, value.toFixed(2), title])].filter(([, value]) => value !== null);
    const parts = [element("h3", {}, "Over all examples shown"), element("dl", { class: "role" }, ...told.map(([name, value, title]) => element("div", { title }, element("dt", {}, name), element("dd", {}, value))))];
    const from = role.attends;
    if (!from) return parts;
    const best = Object.entries(from.clean).sort(([, a], [, b]) => b - a).slice(0, 5);
    const row = (name, ...cells) => element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", {}, cell.toFixed(2))));
    parts.push(element("table", { class: "attends" },
      element("thead", {}, element("tr", {}, element("th", {}, `Attention from ${from.from === "end" ? "the last token" : from.from} to`), ...["clean", "corr.", "circuit"].map((name) => element("th", {}, name)))),
      element("tbody", {}, ...best.map(([part]) => row(part, from.clean[part], from.corrupted[part], from.circuit[part])))));
    return parts;
  }

  function examplesOfEdge(scene, state) {
    const flat = scene.edges.flat[state.edge];
    const values = inside.data.examples.map((_, i) => inside.effect(i, flat));
    const most = Math.max(...values.map(Math.abs), 1e-9);
    return element("ul", { class: "writes picks" }, ...values.map((value, i) => element("li", {}, element("button", { type: "button", "aria-pressed": String(state.example === i), onclick: () => choose(i) },
      element("span", {}, `Example ${i + 1}`), element("i", { class: value < 0 ? "down" : "up", style: `width:${(50 * Math.abs(value)) / most}%` }), element("b", {}, signed(value))))));
  }
}

/* A token as it is read: with a mark for a space of its own or a line break. */
const shownToken = (token) => token.replace(/\n/g, "⏎").trim() || "␣";
