/* Selection and pruning, edge for edge as in gradpath.selection.

   A selection is an order of the edges of which the first n are taken. Edges are numbered by their flat
   position, so a tie goes to the lower number, as it does in Python. */

function topOrder(edges) {
  const { size } = edges;
  return Uint32Array.from({ length: edges.n }, (_, e) => e).sort((a, b) => size[b] - size[a] || a - b);
}

function signedOrder(edges) {
  const { score } = edges;
  return Uint32Array.from({ length: edges.n }, (_, e) => e).sort((a, b) => score[b] - score[a] || a - b);
}

/* From logits backwards: always the largest edge into a node that is in. The rank of an edge in the top
   order is a total order with ties broken, so the frontier is a heap of ranks, one for each target. */
function greedyOrder(edges, graph, top) {
  const queues = queuesByTarget(edges, top);
  const readers = new Map(); // node -> its targets that have edges
  for (const target of queues.keys()) {
    const node = graph.nodeOfTarget(target);
    readers.set(node, [...(readers.get(node) || []), target]);
  }
  const heap = makeHeap();
  const next = new Map();
  const offer = (target) => {
    const at = next.get(target) || 0;
    if (at < queues.get(target).length) heap.push(queues.get(target)[at]);
    next.set(target, at + 1);
  };
  const taken = [];
  const reached = new Set([graph.logits]);
  (readers.get(graph.logits) || []).forEach(offer);
  while (heap.size()) {
    const e = top[heap.pop()];
    taken.push(e);
    offer(edges.target[e]);
    if (!reached.has(edges.source[e])) {
      reached.add(edges.source[e]);
      (readers.get(edges.source[e]) || []).forEach(offer);
    }
  }
  return Uint32Array.from(taken);
}

function queuesByTarget(edges, top) {
  const queues = new Map();
  top.forEach((e, rank) => {
    const target = edges.target[e];
    if (!queues.has(target)) queues.set(target, []);
    queues.get(target).push(rank);
  });
  return queues;
}

/* A binary heap of numbers, smallest first. */
function makeHeap() {
  const items = [];
  const swap = (a, b) => ([items[a], items[b]] = [items[b], items[a]]);
  function push(item) {
    let at = items.push(item) - 1;
    while (at > 0 && items[at] < items[(at - 1) >> 1]) {
      swap(at, (at - 1) >> 1);
      at = (at - 1) >> 1;
    }
  }
  function pop() {
    const first = items[0];
    const last = items.pop();
    if (!items.length) return first;
    items[0] = last;
    for (let at = 0; ; ) {
      let least = at;
      for (const child of [2 * at + 1, 2 * at + 2]) {
        if (child < items.length && items[child] < items[least]) least = child;
      }
      if (least === at) return first;
      swap(at, least);
      at = least;
    }
  }
  return { push, pop, size: () => items.length };
}

/* The edges, of the first n of an order, that lie on a way from input to logits, in that order.
   An edge's source always comes before its target's node, so one sweep up and one down are enough. */
function keptEdges(edges, graph, order, n, prune) {
  const taken = order.subarray(0, n);
  if (!prune) return Uint32Array.from(taken);
  const chosen = new Uint8Array(edges.n);
  for (const e of taken) chosen[e] = 1;
  const fed = new Uint8Array(graph.nSources + 1);
  fed[0] = 1;
  for (const e of edgesUpwards(edges)) if (chosen[e] && fed[edges.source[e]]) fed[edges.node[e]] = 1;
  const heard = new Uint8Array(graph.nSources + 1);
  heard[graph.logits] = 1;
  for (let e = edges.n - 1; e >= 0; e--) if (chosen[e] && heard[edges.node[e]]) heard[edges.source[e]] = 1;
  return taken.filter((e) => fed[edges.source[e]] && heard[edges.node[e]]);
}

/* The least n at which anything is left after pruning, or 0: selections are nested, so it can be bisected. */
function firstWay(edges, graph, order, limit) {
  const left = (n) => keptEdges(edges, graph, order, n, true).length > 0;
  if (!left(limit)) return 0;
  let [no, yes] = [0, limit];
  while (yes - no > 1) {
    const middle = (no + yes) >> 1;
    if (left(middle)) yes = middle;
    else no = middle;
  }
  return yes;
}

/* Edge numbers by the node they feed; those by source are simply ascending. Kept with the edges. */
function edgesUpwards(edges) {
  if (!edges.upwards) {
    edges.upwards = Uint32Array.from({ length: edges.n }, (_, e) => e).sort(
      (a, b) => edges.node[a] - edges.node[b],
    );
  }
  return edges.upwards;
}

/* How many edges can be requested. */
const limitOf = (run, how) => (how === "saved" ? run.saved.edges : run.limit);
const leastOf = (run, how) => (how === "saved" && run.saved.smallest) || 1;

/* The orders of one run, each made when it is first requested. */
function makeOrders(run, edges, graph) {
  const made = {};
  const make = {
    top: () => topOrder(edges),
    greedy: () => greedyOrder(edges, graph, order("top")),
    signed: () => signedOrder(edges),
    saved: () => unpack(run.saved.order, Uint32Array),
  };
  const order = (how) => (made[how] = made[how] || make[how]());
  return order;
}
