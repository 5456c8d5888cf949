/* The computational graph: the same nodes, edges and names as gradpath.graph.

   A node is numbered as the source it is; `logits`, which is no source, comes after all of them. */

const KINDS = ["q", "k", "v", "mlp", "logits"];
const KIND_LABELS = ["query", "key", "value", "MLP", "logits"];

function makeGraph({ n_layers: layers, n_heads: heads, parallel }) {
  const perLayer = heads + 1;
  const targetsPerLayer = 3 * heads + 1;
  const nSources = 1 + layers * perLayer;
  const nTargets = layers * targetsPerLayer + 1;
  const logits = nSources;

  const layerOf = (node) => (node === 0 ? -1 : node === logits ? layers : Math.floor((node - 1) / perLayer));
  const columnOf = (node) => (node === 0 || node === logits ? -1 : (node - 1) % perLayer); // heads: the MLP

  function nodeName(node) {
    if (node === 0) return "input";
    if (node === logits) return "logits";
    const column = columnOf(node);
    return column === heads ? `m${layerOf(node)}` : `a${layerOf(node)}.h${column}`;
  }

  function nodeOfTarget(target) {
    if (target === nTargets - 1) return logits;
    const place = target % targetsPerLayer;
    return 1 + Math.floor(target / targetsPerLayer) * perLayer + (place === 3 * heads ? heads : place % heads);
  }

  function kindOfTarget(target) {
    if (target === nTargets - 1) return 4;
    const place = target % targetsPerLayer;
    return place === 3 * heads ? 3 : Math.floor(place / heads);
  }

  function targetName(target) {
    const kind = kindOfTarget(target);
    return nodeName(nodeOfTarget(target)) + (kind < 3 ? `<${KINDS[kind]}>` : "");
  }

  return {
    layers, heads, parallel, nSources, nTargets, logits,
    layerOf, columnOf, nodeName, nodeOfTarget, kindOfTarget, targetName,
  };
}

/* A run's edges as columns, in the order of their flat positions in the (source, target) matrix. */
function readEdges(run, graph) {
  const flat = unpack(run.index, Uint32Array);
  const score = unpack(run.scores, Float32Array);
  const n = flat.length;
  const edges = {
    n, flat, score,
    size: score.map(Math.abs),
    source: new Uint32Array(n), target: new Uint32Array(n), node: new Uint32Array(n), kind: new Uint8Array(n),
  };
  for (let e = 0; e < n; e++) {
    edges.source[e] = Math.floor(flat[e] / graph.nTargets);
    edges.target[e] = flat[e] % graph.nTargets;
    edges.node[e] = graph.nodeOfTarget(edges.target[e]);
    edges.kind[e] = graph.kindOfTarget(edges.target[e]);
  }
  colourEdges(edges, run.sides);
  edges.name = (e) => `${graph.nodeName(edges.source[e])}->${graph.targetName(edges.target[e])}`;
  return edges;
}

/* Base64 of a little-endian column. Every browser's machine of today is little-endian too. */
function unpack(text, Column) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Column(bytes.buffer);
}
