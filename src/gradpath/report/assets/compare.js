/* Two circuits in one drawing: edges coloured by the circuits that have them, not by what they feed. */

const SIDES = ["", "only-a", "only-b", "both"]; // 1: in A, 2: in B, 3: in both
const SIDE_LABELS = ["", "only in A", "only in B", "in both"];

/* Which colour each edge has, and the legend. `sides` has the ranks and scores in A and in B, if there are two. */
function colourEdges(edges, sides) {
  if (!sides) {
    return Object.assign(edges, { colour: edges.kind, colours: KINDS, legend: KINDS.map((kind, i) => [kind, KIND_LABELS[i]]) });
  }
  const columns = sides.map(({ rank, score }) => ({ rank: unpack(rank, Uint32Array), score: unpack(score, Float32Array) }));
  const colour = Uint8Array.from({ length: edges.n }, (_, e) => (columns[0].rank[e] ? 1 : 0) + (columns[1].rank[e] ? 2 : 0));
  return Object.assign(edges, { sides: columns, colour, colours: SIDES, legend: [1, 3, 2].map((side) => [SIDES[side], SIDE_LABELS[side]]) });
}

/* The colour of a node's frame: that of the circuits that it has edges in. */
function nodeColours({ edges, kept, place }) {
  if (!edges.sides) return () => "ink";
  const side = new Uint8Array(place.n);
  for (const e of kept) {
    side[edges.source[e]] |= edges.colour[e];
    side[edges.node[e]] |= edges.colour[e];
  }
  return (node) => SIDES[side[node]] || "ink";
}

function sidesNote({ edges }, e) {
  const parts = edges.sides.map(({ rank, score }, i) => (rank[e] ? `${"AB"[i]}: score ${signed(score[e])}, rank ${count(rank[e])}` : null));
  return [...parts.filter(Boolean), `feeds ${KIND_LABELS[edges.kind[e]]}`].join(" · ");
}

function sidesCsv({ graph, edges, kept }) {
  const own = ({ rank, score }, e) => (rank[e] ? [rank[e], Number(score[e].toPrecision(9))] : ["", ""]);
  const rows = Array.from(kept, (e) => [
    edges.name(e), graph.nodeName(edges.source[e]), graph.targetName(edges.target[e]), KINDS[edges.kind[e]],
    ...own(edges.sides[0], e), ...own(edges.sides[1], e),
  ]);
  const head = ["edge", "source", "target", "feeds", "rank_a", "score_a", "rank_b", "score_b"];
  return [head, ...rows].map((row) => row.join(",")).join("\n") + "\n";
}

/* What the page of a comparison says, where that of one circuit speaks of faithfulness and methods. */
function drawComparison({ compare }) {
  document.querySelector(".eyebrow").textContent = "Two circuits";
  byId("facts").replaceChildren(...compare.names.map((name, i) => element("span", {}, `${"AB"[i]}: ${name}`)));
  byId("method-name").textContent = "Show";
  byId("save-json").hidden = true;
  byId("prune").closest("label").hidden = true;
  const tile = (name, value, note) => element("div", { class: "tile" }, element("h2", {}, name), element("p", { class: "value" }, value), element("p", { class: "note" }, note));
  const [onlyA, onlyB] = [compare.edges_a - compare.edges_both, compare.edges_b - compare.edges_both];
  const mean = compare.edges_both_by_chance;
  const chance = mean < 10 ? String(Number(mean.toPrecision(2))) : count(Math.round(mean));
  byId("tiles").replaceChildren(
    tile("Edges in both", count(compare.edges_both), `Jaccard ${number(compare.jaccard_edges, 3)} · ${chance} ${chance === "1" ? "edge" : "edges"} by chance`),
    tile("Nodes in both", count(compare.nodes_both), `Jaccard ${number(compare.jaccard_nodes, 3)}`),
    tile("Edges only in A", count(onlyA), `of ${count(compare.edges_a)} · ${plural(compare.nodes_a - compare.nodes_both, "node")} only in A`),
    tile("Edges only in B", count(onlyB), `of ${count(compare.edges_b)} · ${plural(compare.nodes_b - compare.nodes_both, "node")} only in B`),
  );
  byId("legend").append(element("span", {}, "Width: share of the circuit's strongest score"));
}
