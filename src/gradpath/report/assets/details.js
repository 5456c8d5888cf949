/* The panel next to the drawing: the strongest edges, or those of the node or edge that was clicked. */

const LISTED = 16;

function makeDetails({ pickNode, pickEdge, point }) {
  function draw(scene, state) {
    const { graph } = scene;
    const title = byId("details-title");
    if (state.selected >= 0) {
      const label = scene.notes.labelOf(state.selected);
      title.textContent = label === graph.nodeName(state.selected) ? label : `${label} (${graph.nodeName(state.selected)})`;
      return byId("details").replaceChildren(...ofNode(scene, state.selected));
    }
    title.textContent = state.edge >= 0 ? "Edge" : "Strongest edges";
    if (state.edge >= 0) return byId("details").replaceChildren(...ofEdge(scene, state.edge));
    const strongest = [...scene.strongest(LISTED)].reverse();
    return byId("details").replaceChildren(
      strongest.length ? list(scene, strongest) : element("p", { class: "note" }, "This circuit has no edges."),
    );
  }

  function ofNode(scene, node) {
    const { edges, kept } = scene;
    const bySize = (a, b) => edges.size[kept[b]] - edges.size[kept[a]];
    const into = scene.all.filter((id) => edges.node[kept[id]] === node).sort(bySize);
    const from = scene.all.filter((id) => edges.source[kept[id]] === node).sort(bySize);
    if (!into.length && !from.length) return [element("p", { class: "note" }, absence(scene, node)), clear()];
    return [...part(scene, "Reads from", into), ...part(scene, "Feeds", from), clear()];
  }

  function part(scene, name, ids) {
    if (!ids.length) return [];
    const shown = LISTED / 2;
    const more = ids.length > shown ? [element("p", { class: "note" }, `and ${count(ids.length - shown)} more`)] : [];
    const head = element("h3", {}, name, element("span", {}, plural(ids.length, "edge")));
    return [head, list(scene, ids.slice(0, shown)), ...more];
  }

  function ofEdge(scene, e) {
    const { edges, graph } = scene;
    const ends = [edges.source[e], edges.node[e]];
    return [
      element("p", { class: "edgename" }, edges.name(e)),
      element("p", { class: "note" }, edgeNote(scene, e)),
      element("p", { class: "ends" }, ...ends.map((node) => element("button", { type: "button", onclick: () => pickNode(node) }, graph.nodeName(node)))),
      clear(),
    ];
  }

  const clear = () => element("button", { type: "button", class: "quiet", id: "clear", onclick: () => pickNode(-1) }, "Show all edges");

  function list(scene, ids) {
    const { edges, kept, most } = scene;
    return element("ul", { class: "edges" }, ...ids.map((id) => {
      const e = kept[id];
      const bar = element("i", { class: `bar ${edges.colours[edges.colour[e]]}${edges.score[e] < 0 ? " negative" : ""}`, style: `width:${Math.max(2, 100 * (edges.size[e] / most))}%` });
      const name = element("span", { class: "edgename" }, edges.name(e));
      const button = element("button", {
        type: "button", title: edgeNote(scene, e),
        onclick: () => pickEdge(e), onmouseenter: () => point({ id }), onmouseleave: () => point(null),
        onfocus: () => point({ id }), onblur: () => point(null),
      }, name, element("b", {}, signed(edges.score[e])), bar);
      return element("li", {}, button);
    }));
  }
  return draw;
}

function edgeNote(scene, e) {
  if (scene.edges.sides) return sidesNote(scene, e);
  const rank = scene.rank[e];
  const fed = KIND_LABELS[scene.edges.kind[e]];
  if (scene.edges.mean) return `effect ${signed(scene.edges.score[e])} on this example · score ${signed(scene.edges.mean[e])} · feeds ${fed}`;
  const steady = scene.frequency ? ` · in ${scene.frequency[e]} of ${scene.resamples} resamples` : "";
  return `score ${signed(scene.edges.score[e])} · rank ${count(rank)} of ${count(scene.requested)}${steady} · feeds ${fed}`;
}

/* Why a node has no edge in this circuit, and at which size it gets one. */
function absence(scene, node) {
  const { graph, order, connected } = scene;
  const start = `${graph.nodeName(node)} is not in this circuit.`;
  const first = connected[node];
  return first > order.length ? `${start} None of its edges in this file is on a path from input to logits.` : `${start} It is on a path from input to logits from ${plural(first, "edge")} on.`;
}

function nodeNote(scene, node) {
  const { edges, kept } = scene;
  let [into, from] = [0, 0];
  for (const e of kept) {
    if (edges.node[e] === node) into += 1;
    if (edges.source[e] === node) from += 1;
  }
  if (!into && !from) return "not in this circuit";
  const sum = signed(scene.total[node]).slice(1);
  return `|score| ${sum} in total · ${rankOf(scene, node)} · reads ${plural(into, "edge")}, feeds ${plural(from, "edge")}`;
}

/* The rank of a node in the circuit by the sum of the |scores| of its edges. */
function rankOf({ total }, node) {
  const there = total.filter((sum) => sum > 0);
  return `rank ${count(1 + there.filter((sum) => sum > total[node]).length)} of ${plural(there.length, "node")}`;
}
