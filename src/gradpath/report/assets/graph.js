/* Nodes, edges and orders of edges, from the tables that Python computed.

   A node is numbered as the source it is; `logits`, which is no source, comes after all of them. */

const KINDS = ["q", "k", "v", "mlp", "logits"];
const KIND_LABELS = ["query", "key", "value", "MLP", "logits"];

function makeGraph(table) {
  const { nodes, target_nodes: targetNodes, target_kinds: targetKinds } = table;
  const nodeName = (node) => nodes[node];
  return {
    layers: table.n_layers, heads: table.n_heads, n: nodes.length, logits: nodes.length - 1, numbers: new Map(nodes.map((name, node) => [name, node])),
    layerOf: (node) => table.layers[node], columnOf: (node) => table.columns[node], nodeName,
    nTargets: targetNodes.length, nodeOfTarget: (target) => targetNodes[target], kindOfTarget: (target) => targetKinds[target],
    targetName: (target) => nodeName(targetNodes[target]) + (targetKinds[target] < 3 ? `<${KINDS[targetKinds[target]]}>` : ""),
  };
}

/* A run's edges as columns, and its orders; both are unpacked when they are first looked at. */
function readRun(run, graph) {
  const orders = {};
  let edges = null;
  return {
    edges: () => (edges = edges || readEdges(run, graph)),
    order: (how) => (orders[how] = orders[how] || {
      edges: unpack(run.orders[how].edges, Uint32Array), connected: unpack(run.orders[how].connected, Uint32Array),
      ranks: run.orders[how].resamples.map((ranks) => unpack(ranks, Uint16Array)), resampled: run.orders[how].resampled,
    }),
  };
}

function readEdges(run, graph) {
  const flat = unpack(run.edges, Uint32Array);
  const score = unpack(run.scores, Float32Array);
  const target = flat.map((at) => at % graph.nTargets);
  const edges = {
    n: flat.length, flat, score, size: score.map(Math.abs), target,
    source: flat.map((at) => Math.floor(at / graph.nTargets)), node: target.map(graph.nodeOfTarget), kind: target.map(graph.kindOfTarget),
    name: (e) => `${graph.nodeName(edges.source[e])}->${graph.targetName(edges.target[e])}`,
  };
  return colourEdges(edges, run.sides);
}

/* In how many of the resamples each edge is among the first n; null if the circuit is not a consensus. */
function frequencies(order, n) {
  if (n > order.resampled) return null;
  return order.ranks[0].map((_, e) => order.ranks.reduce((sum, ranks) => sum + (ranks[e] <= n ? 1 : 0), 0));
}

/* The first n edges of an order; with pruning, those whose ends are connected at n. With `least`, those that are in so
   many resamples. */
function keptEdges(edges, order, n, prune, least) {
  const frequency = least > 0 ? frequencies(order, n) : null;
  const taken = order.edges.slice(0, n).filter((e) => !frequency || frequency[e] >= least);
  return prune ? taken.filter((e) => order.connected[edges.source[e]] <= n && order.connected[edges.node[e]] <= n) : taken;
}

/* Base64 of a little-endian column. Every browser's machine of today is little-endian too. */
function unpack(text, Column) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Column(bytes.buffer);
}
