/* One state, one update: whatever the user does changes the state, and everything is drawn from it. */

function start() {
  const data = JSON.parse(byId("data").textContent);
  const graph = makeGraph(data.graph);
  const runs = data.runs.map((run) => readRun(run, graph));
  const { chosen } = data;
  const state = {
    run: chosen.run, how: chosen.how, n: Math.max(1, chosen.edges), prune: chosen.pruned, least: 0, all: false,
    selected: -1, edge: -1, focus: -1, example: -1, reach: "edges", curveOf: "faithfulness",
  };
  const view = makeView(byId("holder"), byId("canvas"), { point: showTip, pick, plainWheel: () => hint("Hold Ctrl (or ⌘) and scroll to zoom") });
  const controls = makeControls(data, change);
  const drawCurve = makeCurve(byId("curve"), data, (run, n, how) => isNested(data.runs[run], how) && change({ run, how, n }));
  const drawDetails = makeDetails({ pickNode, pickEdge, point: view.point });
  const inside = makeInside(data, graph);
  const notes = makeNotes(graph);
  const address = makeAddress(data, graph, state, notes);
  const drawNotes = makeNotesCard(graph, notes, () => update());
  const drawNotesBar = makeNotesBar(data, notes, () => { update(); drawNotes(state, true); });
  const drawPicker = makePicker(data, (example) => change({ example }));
  const drawInside = makeInsideCard(inside, (example) => change({ example }));
  let place = null;

  /* ---- from state to picture ---- */

  function change(part, quick = false) {
    Object.assign(state, part);
    const run = data.runs[state.run];
    if (!run.orders[state.how]) [state.how] = Object.keys(run.orders);
    const { size, smallest } = run.orders[state.how];
    if (data.compare && "run" in part) state.n = size;
    state.n = Math.max(smallest, Math.min(state.n, size));
    if (state.least > run.orders[state.how].resamples.length) state.least = 0;
    if ("run" in part) state.edge = -1;
    if ("run" in part || "how" in part) drawFrame();
    update(quick);
  }

  function update(quick = false) {
    const edges = runs[state.run].edges();
    const order = runs[state.run].order(state.how);
    const frequency = frequencies(order, state.n);
    const kept = keptEdges(edges, order, state.n, state.prune, state.least);
    const shown = inside && state.example >= 0 ? inside.edgesOn(edges, state.example) : edges;
    const whole = { edges: shown, kept, order: order.edges, connected: order.connected, frequency };
    const folded = notes.folded();
    const scene = makeScene({ data, graph, place, ...whole, ...(folded.length ? foldGroups(folded, whole, place, notes.labelOf) : {}), state });
    Object.assign(scene, { whole, notes });
    view.show(scene, quick);
    controls.move(state);
    drawNumbers(scene);
    drawCurve(state);
    drawDetails(scene, state);
    drawPicker(state);
    drawInside(scene, state);
    drawNotes(state);
    drawNotesBar();
    drawDrawn(scene);
    address.write(edgeName());
    showMessage(scene);
  }

  /* What changes with the method or the selection, but not with the slider. */
  function drawFrame() {
    controls.draw(state);
    const run = data.runs[state.run];
    drawMade(run);
    const points = measured(run, state.how, "faithfulness");
    const unmeasured = !data.runs.some((each) => each.curve.length);
    for (const part of [byId("curve-card"), ...document.querySelectorAll(".tile.measured")]) part.hidden = unmeasured;
    byId("curve-note").textContent = points.length
      ? "Share of the model's behaviour that the circuit preserves. Band: 95% interval. Hollow point: interpolated." + randomNote(run)
      : `Circuits selected by ${labelOf(run, state.how).toLowerCase()} were not measured for ${run.name}.`;
    drawAreas(data, state);
    say("cut", run.cut);
  }

  function drawNumbers(scene) {
    if (data.compare) return;
    const run = data.runs[state.run];
    const at = (of) => readCurve(measured(run, state.how, of), requestedNow(run, state), of);
    const [kept, error] = [at("faithfulness"), at("error")];
    const unmeasured = data.undone ? "the model does not do this task" : "not measured here";
    const comparable = !data.undone && state.prune === data.chosen.pruned && !state.least;
    say("faithfulness", kept && comparable ? (kept.exact ? "" : "≈ ") + percent(kept.value) : "–");
    say("faithfulness-note", !kept || !comparable ? unmeasured
      : !kept.exact ? `between ${kept.between.map((point) => `${percent(point.faithfulness)} at ${count(point.requested)}`).join(" and ")} edges`
      : kept.exact.low === null || kept.exact.high === null ? "measured" : `95% interval ${percent(kept.exact.low)} to ${percent(kept.exact.high)}`);
    say("error", error && comparable ? (error.exact ? "" : "≈ ") + number(error.value) : "–");
    say("error-note", error && comparable ? "0: the model, 1: the corrupted run" : unmeasured);
    say("kept", count(scene.whole.kept.length));
    const requested = scene.edges.n ? requestedNow(run, state) || state.n : 0;
    const { frequency, kept: edges } = scene.whole;
    const core = frequency && `${count(edges.filter((e) => frequency[e] === run.orders[state.how].resamples.length).length)} in every resample · `;
    say("kept-note", `${core || ""}of ${count(requested)} requested · ${sparsityText(1 - requested / data.edges_total)} sparse`);
    const nodes = scene.weight.reduce((sum, weight) => sum + (weight > 0 ? 1 : 0), 0);
    say("nodes", count(nodes));
    say("nodes-note", `of ${count(graph.n)} in the model`);
    drawRequested();
  }

  /* How many of the edges are drawn, and that one can click. */
  function drawDrawn({ all }) {
    const [most, n] = [data.readable, all.length];
    const lit = state.selected >= 0 || state.edge >= 0 ? " and those selected" : "";
    const said = n <= most ? "" : state.all ? `All ${count(n)} edges are drawn. ` : `Drawn: the strongest ${count(most)} of ${count(n)} edges${lit}. `;
    const button = element("button", { type: "button", class: "quiet", id: "draw-all", onclick: () => change({ all: !state.all }) }, state.all ? `Draw the strongest ${count(most)}` : "Draw all");
    byId("drawn").replaceChildren(...(said ? [said, button, " "] : []), `Click a node or an edge ${data.inside ? "to see what it does" : "for its scores"}.`);
  }

  /* Where another circuit is shown than the requested one: what that is, and the way there. */
  function drawRequested() {
    const here = state.run === chosen.run && state.how === chosen.how && state.n === Math.max(1, chosen.edges);
    byId("requested").hidden = byId("verdict-of").hidden = here || !chosen.edges || !chosen.found;
    if (byId("requested").hidden) return;
    const point = requestedPoint(data);
    byId("requested").replaceChildren(
      `The circuit that was found has ${plural(requestedEdges(data), "edge")}${point ? ` and faithfulness ${percent(point.faithfulness)}` : ""}. `,
      element("button", { type: "button", class: "quiet", id: "show-requested", onclick: () => change({ run: chosen.run, how: chosen.how, n: chosen.edges, prune: chosen.pruned }) }, "Show it"),
    );
  }

  /* Where the circuit that was found has too many edges to read: the best small one, and the way there. */
  function drawSmall() {
    byId("small").hidden = !data.small;
    if (!data.small) return;
    byId("small").replaceChildren(
      `${data.small_text}. `,
      element("button", { type: "button", class: "quiet", id: "show-small", onclick: () => change({ run: chosen.run, how: chosen.how, n: data.small, prune: chosen.pruned }) }, "Show it"),
    );
  }

  const say = (id, text) => (byId(id).textContent = text);

  function showMessage(scene) {
    const message = byId("message");
    message.hidden = scene.kept.length > 0;
    if (scene.kept.length) return undefined;
    if (!scene.edges.n) return message.replaceChildren(data.compare ? "There are no such edges." : "This circuit is empty. Find one with more edges.");
    const [first] = scene.whole.connected;
    const there = first <= data.runs[state.run].orders[state.how].size;
    const what = state.n === 1 ? "this one edge" : `these ${count(state.n)} edges`;
    const go = there ? element("button", { type: "button", id: "go", onclick: () => change({ n: first }) }, `Go to ${plural(first, "edge")}`) : null;
    return message.replaceChildren(
      `There is no path from input to logits over ${what}, so pruning removes all of them. `,
      there ? `The first path appears at ${plural(first, "edge")}.` : "Switch pruning off to see them.",
      ...(go ? [element("br"), go] : []),
    );
  }

  const edgeName = () => (state.edge >= 0 && view.scene() ? view.scene().edges.name(state.edge) : "");

  /* Show what an address says; what does not fit this page is left out. */
  function restore(parts) {
    Object.assign(state, address.usable(parts));
    state.n = Math.min(state.n, data.runs[state.run].orders[state.how].size);
    drawFrame();
    if (place) update();
    if (place && parts.edge) {
      const { kept, edges } = view.scene();
      const found = kept.find((e) => edges.name(e) === parts.edge);
      if (found !== undefined) pickEdge(found);
    }
    drawReach();
  }

  /* ---- pointing and picking ---- */

  function showTip(thing, at) {
    const tip = byId("tip");
    const scene = view.scene();
    tip.hidden = !thing || !scene;
    if (tip.hidden) return;
    const edge = thing.id === undefined ? -1 : scene.kept[thing.id];
    const label = edge >= 0 ? "" : notes.labelOf(thing.node);
    const name = edge >= 0 ? scene.edges.name(edge) : label === graph.nodeName(thing.node) ? label : `${label} · ${graph.nodeName(thing.node)}`;
    const remark = edge >= 0 || !notes.noteOf(thing.node).note ? "" : `${notes.noteOf(thing.node).note} · `;
    const note = remark + (edge >= 0 ? edgeNote(scene, edge) : nodeNote(scene, thing.node));
    tip.replaceChildren(element("b", {}, name), element("span", {}, note));
    const [x, y] = at || view.screenOf(edge >= 0 ? scene.edges.node[edge] : thing.node);
    tip.style.left = `${Math.max(4, Math.min(x + 14, place.width - tip.offsetWidth - 6))}px`;
    tip.style.top = `${y + 18 + tip.offsetHeight > place.height ? y - tip.offsetHeight - 12 : y + 18}px`;
  }

  function pick(thing) {
    if (thing && thing.id !== undefined) return pickEdge(view.scene().kept[thing.id]);
    return pickNode(thing && thing.node !== state.selected ? thing.node : -1);
  }

  function pickNode(node, centre = false) {
    Object.assign(state, { selected: node, edge: -1, focus: node >= 0 ? node : state.focus });
    update();
    drawReach();
    if (centre && view.view.k > 1) view.centreOn(node);
    say("said", node >= 0 ? `${graph.nodeName(node)}: ${nodeNote(view.scene(), node)}` : "All edges are shown");
  }

  function pickEdge(e) {
    Object.assign(state, { selected: -1, edge: e });
    update();
    drawReach();
    say("said", `${view.scene().edges.name(e)}: ${edgeNote(view.scene(), e)}`);
  }

  function drawReach() {
    const holder = byId("reach");
    holder.hidden = state.selected < 0;
    segments(holder, [["edges", "Its edges"], ["paths", "Its paths"]], state.reach, (reach) => { state.reach = reach; update(); });
  }

  function hint(text) {
    const note = byId("hint");
    note.textContent = text;
    note.hidden = false;
    clearTimeout(hint.timer);
    hint.timer = setTimeout(() => (note.hidden = true), 1400);
  }

  /* ---- the rest of the page ---- */

  function resize() {
    const holder = byId("holder");
    const narrow = holder.clientWidth < 600;
    const least = Math.min(narrow ? 900 : 1060, Math.max(narrow ? 420 : 540, (graph.layers + 2) * (narrow ? 24 : 31)));
    holder.style.minHeight = `${Math.round(least)}px`;
    const [width, height] = [holder.clientWidth, holder.clientHeight];
    if (place && place.width === width && place.height === height) return;
    place = makeLayout(graph, width, height);
    view.fitSize(width, height);
    update();
  }

  function drawHeader() {
    say("title", data.title);
    const parts = [data.model, data.task, data.runs.map((each) => each.name).join(", "), `${count(data.edges_total)} edges in the model`];
    byId("facts").replaceChildren(...parts.map((text) => element("span", {}, text)));
    byId("legend").replaceChildren(
      ...runs[state.run].edges().legend.map(([name, label]) => element("span", {}, element("i", { class: name }), label)),
      element("span", {}, element("i", { class: "solid" }), "positive"), element("span", {}, element("i", { class: "dashed" }), "negative"),
    );
    segments(byId("curve-of"), [["faithfulness", "Behaviour"], ["error", "Error"]], state.curveOf, (curveOf) => {
      state.curveOf = curveOf;
      say("curve-title", curveOf === "faithfulness" ? "Faithfulness" : "Error per example");
      drawCurve(state);
    });
  }

  drawHeader();
  drawVerdict(data);
  drawSmall();
  drawSentences(data, graph, (node) => pickNode(node, true));
  byId("no-inside").hidden = !data.no_inside;
  say("no-inside", `Single examples cannot be shown in the drawing: ${data.no_inside}`);
  drawFrame();
  drawReach();
  drawEvidence(data);
  drawBlocks(data);
  if (data.compare) drawComparison(data);
  listenToTheme(() => update());
  listenToDownloads(data, state, view, notes);
  listenToKeys(byId("canvas"), { graph, state, view, pickNode, showTip });
  makeSearch(graph, view.scene, { pickNode, pickEdge });
  byId("zoom-in").addEventListener("click", () => view.zoomBy(1.5));
  byId("zoom-out").addEventListener("click", () => view.zoomBy(1 / 1.5));
  byId("zoom-fit").addEventListener("click", () => view.fit());
  byId("notesbar").hidden = Boolean(data.compare);
  notes.read(data.notes, data.compare ? [] : null);
  const given = address.read();
  if (given) restore(given);
  window.addEventListener("hashchange", () => { const parts = address.read(); if (parts) restore(parts); });
  new ResizeObserver(resize).observe(byId("holder"));
  resize();
  if (given && given.edge) restore(given);
  // For the console: what is shown, a way to set it, and where a node is on the canvas.
  window.gradpath = {
    state, set: change,
    edges: () => Array.from(view.scene().whole.kept, (e) => view.scene().whole.edges.name(e)),
    drawn: () => view.scene().drawn.map((id) => view.scene().edges.name(view.scene().kept[id])), notes,
    where: (name) => view.screenOf(graph.numbers.get(name)),
  };
}

/* MIB's areas of every method for the selection that is shown, where its circuits were measured. */
function drawAreas(data, { how }) {
  const told = data.runs.filter((run) => run.orders[how] && run.orders[how].areas).map((run) => `${run.name}: ${run.orders[how].areas}`);
  byId("areas").hidden = !told.length;
  byId("areas").textContent = `Areas of the MIB benchmark, with 95% intervals. ${told.join("; ")}.`;
}

try {
  byId("incomplete").remove();
  document.querySelector("main").hidden = false;
  start();
} catch (problem) {
  const fatal = byId("fatal");
  fatal.hidden = false;
  fatal.textContent = `This report cannot be shown (${problem.message}). The file may be truncated: copy it again, or make it again with gradpath.`;
  document.querySelector("main").hidden = true;
  console.error(problem);
}
