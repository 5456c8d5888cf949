/* Notes: nodes can be named, coloured, remarked on and put into groups; a group folds into one box. */

const SWATCHES = ["#56b4e9", "#e69f00", "#009e73", "#d55e00", "#0072b2", "#cc79a7", "#7f7f7f"];
const isColour = (text) => /^#[0-9a-f]{6}$/i.test(text);

function makeNotes(graph) {
  let [nodes, groups, folded] = [new Map(), [], new Set()]; // nodes by number; groups as notes name them; names of groups

  const empty = { name: "", group: "", note: "", colour: "" };
  const noteOf = (node) => nodes.get(node) || empty;
  const groupOf = (node) => groups.find((group) => group.nodes.includes(node)) || null;

  function regroup() {
    const members = new Map();
    for (const [node, { group }] of nodes) if (group) members.set(group, [...(members.get(group) || []), node]);
    groups = Array.from(members, ([name, list], at) => ({
      name, nodes: list, folded: folded.has(name), colour: list.map((node) => noteOf(node).colour).find(Boolean) || SWATCHES[at % SWATCHES.length],
    }));
  }

  function set(node, part) {
    const note = { ...noteOf(node), ...part };
    if (Object.values(note).some(Boolean)) nodes.set(node, note);
    else nodes.delete(node);
    regroup();
  }

  function fold(name, on) {
    if (on) folded.add(name);
    else folded.delete(name);
    regroup();
  }

  /* The notes as circuit files have them, without empty parts. */
  function toJson() {
    const filled = (note) => Object.fromEntries(Object.entries(note).filter(([, text]) => text));
    return Object.fromEntries(Array.from(nodes, ([node, note]) => [graph.nodeName(node), filled(note)]));
  }

  /* Take notes from a file or an address, with the groups to fold, by default all; if there is an error, nothing changes. */
  function read(content, toFold = null) {
    const next = new Map();
    for (const [name, note] of Object.entries(content)) {
      if (!graph.numbers.has(name)) throw new Error(`The notes name ${JSON.stringify(name)}, which is not a node of this model.`);
      const kept = { ...empty };
      for (const part of Object.keys(empty)) if (typeof note[part] === "string" && (part !== "colour" || isColour(note[part]))) kept[part] = note[part];
      next.set(graph.numbers.get(name), kept);
    }
    nodes = next;
    folded = new Set(toFold || Array.from(next.values(), (note) => note.group));
    regroup();
  }

  return {
    set, fold, read, toJson, noteOf, groupOf,
    groups: () => groups,
    isEmpty: () => !nodes.size,
    folded: () => groups.filter((group) => group.folded),
    colourOf: (node) => noteOf(node).colour || (groupOf(node) || empty).colour,
    labelOf: (node) => { const group = groupOf(node); return group && group.folded ? group.name : noteOf(node).name || graph.nodeName(node); },
  };
}

/* The card of the node that is selected: its name, its colour, its group, a remark. */
function makeNotesCard(graph, notes, changed) {
  const [card, body] = [byId("notes-card"), byId("notes")];
  let shown = null; // typing in a field must not replace it

  return function draw(state, again = false) {
    const node = state.selected;
    card.hidden = node < 0;
    const group = node < 0 ? null : notes.groupOf(node);
    const what = JSON.stringify([node, group && group.folded, group && group.name]);
    if (card.hidden || (what === shown && !again)) return;
    shown = what;
    byId("notes-title").textContent = group && group.folded ? `Group ${group.name}` : `Notes on ${graph.nodeName(node)}`;
    body.replaceChildren(...(group && group.folded ? ofGroup(group) : ofNode(node, group)));
  };

  function ofNode(node, group) {
    const note = notes.noteOf(node);
    const set = (part) => { notes.set(node, part); changed(); };
    const field = (name, input) => element("label", { class: "field" }, element("span", { class: "name" }, name), input);
    const name = element("input", { id: "note-name", maxlength: "40", oninput: (event) => set({ name: event.target.value }) });
    const remark = element("textarea", { id: "note-text", rows: "2", oninput: (event) => set({ note: event.target.value }) });
    const into = element("input", { id: "note-group", maxlength: "40", list: "note-groups", placeholder: "none", onchange: (event) => set({ group: event.target.value.trim() }) });
    [name.value, remark.value, into.value] = [note.name, note.note, group ? group.name : ""];
    return [
      field("Name", name), field("Group", into), element("datalist", { id: "note-groups" }, ...notes.groups().map((each) => element("option", { value: each.name }))),
      swatches(note.colour, (colour) => set({ colour })), field("Note", remark),
      ...(group ? [element("button", { type: "button", id: "fold", onclick: () => { notes.fold(group.name, true); changed(); } }, `Fold ${group.name} into one box`)] : []),
    ];
  }

  function ofGroup(group) {
    const members = group.nodes.map((node) => graph.nodeName(node)).join(", ");
    return [
      element("p", {}, `${plural(group.nodes.length, "node")}: ${members}. Edges are summed.`),
      swatches(notes.noteOf(group.nodes[0]).colour, (colour) => { for (const node of group.nodes) notes.set(node, { colour }); changed(); }),
      element("button", { type: "button", id: "unfold", onclick: () => { notes.fold(group.name, false); changed(); } }, "Unfold"),
    ];
  }

  function swatches(colour, pick) {
    const buttons = ["", ...SWATCHES].map((each) => element("button", {
      type: "button", class: "swatch", style: each ? `background:${each}` : null, "aria-label": each ? `Colour ${each}` : "No colour", "aria-pressed": String(each === colour),
      onclick: () => { buttons.forEach((button) => button.setAttribute("aria-pressed", "false")); buttons[["", ...SWATCHES].indexOf(each)].setAttribute("aria-pressed", "true"); pick(each); },
    }, each ? "" : "–"));
    return element("div", { class: "swatches", role: "group", "aria-label": "Colour" }, ...buttons);
  }
}

/* Below the drawing: the groups, and notes as files: those of a circuit. */
function makeNotesBar(data, notes, changed) {
  const file = element("input", { type: "file", accept: ".json,application/json", hidden: true, id: "notes-file" });
  const said = element("span", { class: "note", id: "notes-said", role: "status" });
  const groups = element("span", { class: "groups", id: "groups" });
  byId("notesbar").replaceChildren(
    groups, said, file,
    element("button", { type: "button", class: "quiet", id: "save-notes", onclick: () => byId("save-json").click() }, "Save circuit with notes"),
    element("button", { type: "button", class: "quiet", id: "load-notes", onclick: () => file.click() }, "Load notes of a circuit"),
  );
  file.addEventListener("change", async () => {
    try {
      const read = JSON.parse(await file.files[0].text());
      if (read.gradpath_circuit !== 2) throw new Error("This file has no gradpath_circuit: 2. Load a circuit that a report saved.");
      const { n_layers: layers, n_heads: heads } = read.graph || {};
      if (layers !== data.graph.n_layers || heads !== data.graph.n_heads) throw new Error(`These notes are of a model with ${layers} layers of ${heads} heads; this one has ${data.graph.n_layers} of ${data.graph.n_heads}.`);
      notes.read(read.notes || {});
      said.textContent = "";
    } catch (problem) {
      said.textContent = problem instanceof SyntaxError ? "This file is not JSON, so it has no notes." : problem.message;
    }
    file.value = "";
    changed();
  });

  return function draw() {
    groups.replaceChildren(...notes.groups().map((group) => element("button", {
      type: "button", class: "group", "aria-pressed": String(group.folded), title: group.folded ? "Unfold" : "Fold into one box",
      onclick: () => { notes.fold(group.name, !group.folded); changed(); },
    }, element("i", { style: group.colour ? `background:${group.colour}` : null }), `${group.name} (${group.nodes.length})`, element("small", {}, group.folded ? "folded" : ""))));
  };
}

/* The circuit with each folded group as one node, its first: edges between the same two nodes that feed the same are summed. */
function foldGroups(groups, { edges, kept, order }, place, labelOf) {
  const first = new Map(groups.flatMap((group) => group.nodes.map((node) => [node, group.nodes[0]])));
  const end = (node) => first.get(node) ?? node;
  const [found, columns] = [new Map(), { source: [], node: [], kind: [], colour: [], score: [], flat: [] }];
  const ranked = new Map(Array.from(order, (e, at) => [e, at]));
  const ranks = [];
  for (const e of kept) {
    const [source, node, kind] = [end(edges.source[e]), end(edges.node[e]), edges.kind[e]];
    if (source === node) continue;
    const key = `${source} ${node} ${kind}`;
    if (!found.has(key)) {
      found.set(key, ranks.length);
      const alone = source === edges.source[e] && node === edges.node[e] && !first.has(source) && !first.has(node);
      for (const [name, value] of Object.entries({ source, node, kind, colour: edges.colour[e], score: 0, flat: alone ? edges.flat[e] : -1 })) columns[name].push(value);
      ranks.push(Infinity);
    }
    const at = found.get(key);
    columns.score[at] += edges.score[e];
    ranks[at] = Math.min(ranks[at], ranked.get(e) ?? Infinity);
  }
  const score = Float32Array.from(columns.score);
  const every = ranks.map((_, at) => at);
  const name = (e) => `${labelOf(columns.source[e])}->${labelOf(columns.node[e])}${columns.kind[e] < 3 ? `<${KINDS[columns.kind[e]]}>` : ""}`;
  return {
    edges: { ...edges, ...columns, n: ranks.length, score, size: score.map(Math.abs), mean: undefined, name },
    kept: Uint32Array.from(every), order: every.slice().sort((a, b) => ranks[a] - ranks[b]), frequency: null,
    place: foldedPlace(groups, place),
  };
}

/* A folded group lies in the middle of its nodes, which take no room, and between two rows, where no other node is. */
function foldedPlace(groups, place) {
  const next = { ...place, x: place.x.slice(), y: place.y.slice(), w: place.w.slice(), h: place.h.slice() };
  for (const { nodes, name } of groups) {
    const middle = (column) => nodes.reduce((sum, node) => sum + column[node], 0) / nodes.length;
    for (const node of nodes) next.w[node] = next.h[node] = 0;
    const [at] = nodes;
    const width = Math.min(place.width * 0.4, Math.max(place.w[at], 14 + 6.2 * name.length));
    const row = Math.round((middle(place.y) - place.rowY(0)) / -place.row);
    [next.x[at], next.y[at]] = [Math.max(width / 2 + 2, middle(place.x)), place.rowY(row + 0.5)];
    [next.w[at], next.h[at]] = [width, Math.min(Math.max(place.h[at], 14), place.row * 0.5)];
  }
  return next;
}
