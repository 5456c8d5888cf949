/* Everything that the drawing needs to know, computed once for each change. */
function makeScene({ data, graph, place, edges, kept, order, connected, frequency, state }) {
  const n = kept.length;
  const scene = {
    graph, place, edges, kept, order, connected, frequency, resamples: data.runs[state.run].orders[state.how].resamples.length, selected: state.selected, requested: Math.min(state.n, order.length),
    points: new Float32Array(8 * n), weight: new Float32Array(place.n), ports: new Uint8Array(3 * place.n),
    rank: new Uint32Array(edges.n), most: 0, all: Array.from({ length: n }, (_, id) => id),
    colours: coloursNow(), zoom: 1, thin: 1, lit: null, litNodes: null, litCount: 0,
  };
  scene.nodeColour = nodeColours(scene);
  order.forEach((e, at) => (scene.rank[e] = at + 1));
  for (let id = 0; id < n; id++) {
    const e = kept[id];
    curveOf(graph, place, edges.source[e], edges.node[e], edges.kind[e], scene.points, 8 * id);
    scene.most = Math.max(scene.most, edges.size[e]);
    // A circuit of zero scores still has nodes.
    scene.weight[edges.source[e]] += edges.size[e] + 1e-30;
    scene.weight[edges.node[e]] += edges.size[e] + 1e-30;
    if (edges.kind[e] < 3) scene.ports[3 * edges.node[e] + edges.kind[e]] = 1;
  }
  scene.total = scene.weight.slice();
  // The bars at both ends touch nearly every edge: they would make all heads look light.
  scene.heaviest = scene.weight.reduce((most, weight, node) => (node && node !== graph.logits ? Math.max(most, weight) : most), 0);
  scene.weight[0] = Math.min(scene.weight[0], scene.heaviest || scene.weight[0]);
  scene.weight[graph.logits] = Math.min(scene.weight[graph.logits], scene.heaviest || scene.weight[graph.logits]);
  // From the weakest to the strongest, so that the strongest is painted last.
  scene.all.sort((a, b) => edges.size[kept[a]] - edges.size[kept[b]] || b - a);
  scene.strongest = (most) => scene.all.slice(-most);
  light(scene, state);
  chooseDrawn(scene, state.all ? Infinity : data.readable);
  return scene;
}

/* Which edges are drawn: so many of the strongest, and those that are lit; and the nodes that they touch. */
function chooseDrawn(scene, most) {
  const { edges, kept, all, lit, graph } = scene;
  const rest = Math.max(0, all.length - most);
  scene.drawn = all.filter((id, at) => at >= rest || (lit && lit[id]));
  scene.shown = new Uint8Array(graph.n);
  for (const id of scene.drawn) scene.shown[edges.source[kept[id]]] = scene.shown[edges.node[kept[id]]] = 1;
}

/* Which edges and nodes stay bright when a node or an edge was clicked. */
function light(scene, state) {
  const { kept, edges, place } = scene;
  if (state.selected < 0 && !kept.includes(state.edge)) return;
  const lit = new Uint8Array(kept.length);
  if (state.selected < 0) lit[kept.indexOf(state.edge)] = 1;
  else if (state.reach === "edges") kept.forEach((e, id) => (lit[id] = Number(edges.source[e] === state.selected || edges.node[e] === state.selected)));
  else lightPaths(scene, state.selected, lit);
  scene.lit = lit;
  scene.litCount = lit.reduce((sum, one) => sum + one, 0);
  scene.litNodes = new Uint8Array(place.n);
  if (state.selected >= 0) scene.litNodes[state.selected] = 1;
  kept.forEach((e, id) => {
    if (lit[id]) scene.litNodes[edges.source[e]] = scene.litNodes[edges.node[e]] = 1;
  });
}

/* All that leads to a node and all that it leads to. */
function lightPaths({ kept, edges, place }, node, lit) {
  const [above, below] = [new Uint8Array(place.n), new Uint8Array(place.n)];
  above[node] = below[node] = 1;
  const ids = Array.from(kept, (_, id) => id);
  ids.sort((a, b) => edges.node[kept[a]] - edges.node[kept[b]]);
  for (const id of ids) if (above[edges.source[kept[id]]]) lit[id] = above[edges.node[kept[id]]] = 1;
  ids.sort((a, b) => edges.source[kept[b]] - edges.source[kept[a]]);
  for (const id of ids) if (below[edges.node[kept[id]]]) lit[id] = below[edges.source[kept[id]]] = 1;
}
