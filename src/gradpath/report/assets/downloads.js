/* The files a reader can take: the circuit as gradpath saves it, the view as SVG, the edges as CSV. */

/* The text that Circuit.save writes for this selection: gradpath loads it as its own. */
function circuitText(data, scene, state, notes) {
  const run = data.runs[state.run];
  const { kept, edges, frequency } = scene.whole;
  const steady = (e) => (frequency ? [Number((frequency[e] / scene.resamples).toFixed(4))] : []);
  const requested = requestedNow(run, state) || state.n;
  const { recipe } = run.orders[state.how];
  const { n_layers, n_heads, parallel } = data.graph;
  const head = {
    gradpath_circuit: 2, graph: { n_layers, n_heads, parallel }, recipe: recipe && { ...recipe, edges: requested },
    facts: run.recorded, requested, pruned: state.prune, ...(notes.isEmpty() ? {} : { notes: notes.toJson() }),
  };
  // Nine digits are enough to give every float32 back exactly.
  const lines = Array.from(kept, (e) => JSON.stringify([edges.name(e), Number((edges.mean || edges.score)[e].toPrecision(9)), ...steady(e)]));
  const text = JSON.stringify(head, null, 1).replace(/\n}$/, "");
  return `${text},\n "edges": [\n  ${lines.join(",\n  ")}\n ]\n}\n`;
}

function csvText(scene) {
  const { graph, whole: { edges, kept, order, frequency } } = scene;
  if (edges.sides) return sidesCsv(scene);
  const rank = new Map(Array.from(order, (e, at) => [e, at + 1]));
  const rows = Array.from(kept, (e) => [
    rank.get(e), edges.name(e), graph.nodeName(edges.source[e]), graph.targetName(edges.target[e]),
    KINDS[edges.kind[e]], Number((edges.mean || edges.score)[e].toPrecision(9)), ...(frequency ? [frequency[e] / scene.resamples] : []),
  ]);
  return [["rank", "edge", "source", "target", "feeds", "score", ...(frequency ? ["frequency"] : [])], ...rows].map((row) => row.join(",")).join("\n") + "\n";
}

function saveFile(name, type, text) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function listenToDownloads(data, state, view, notes) {
  const name = () => [data.task, data.model.split("/").pop(), data.runs[state.run].name, state.n].join("-").replace(/[^\w.-]+/g, "-").toLowerCase();
  byId("save-json").addEventListener("click", () => saveFile(`${name()}.json`, "application/json", circuitText(data, view.scene(), state, notes)));
  byId("save-csv").addEventListener("click", () => saveFile(`${name()}.csv`, "text/csv", csvText(view.scene())));
  byId("save-svg").addEventListener("click", () => saveFile(`${name()}.svg`, "image/svg+xml", svgOf(view.scene(), view.view)));
}
