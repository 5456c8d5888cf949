/* Circuits of every size: the first n edges of an order that gradpath.selection made, and pruning. */

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

/* The orders of one run, each made when it is first requested. Those by score are left to the page: edges are
   numbered by their flat position, so a tie goes to the lower number, as it does in Python. */
function makeOrders(run, edges) {
  const made = {};
  const by = (value) => Uint32Array.from({ length: edges.n }, (_, e) => e).sort((a, b) => value[b] - value[a] || a - b);
  const make = (how) => (how in run.orders ? unpack(run.orders[how], Uint32Array) : by(how === "top" ? edges.size : edges.score));
  return (how) => (made[how] = made[how] || make(how));
}
