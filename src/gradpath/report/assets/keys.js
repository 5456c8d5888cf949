/* The drawing by keyboard: arrows go from node to node of the circuit, Enter selects, Escape clears. */
function listenToKeys(canvas, { graph, state, view, pickNode, showTip }) {
  const there = (node) => view.scene().shown[node] > 0;
  const nodes = () => [...graph.numbers.values()].filter(there);
  const x = (node) => view.scene().place.x[node];
  function step(key) {
    const all = nodes();
    if (!there(state.focus)) return all[0];
    const here = graph.layerOf(state.focus);
    if (key === "ArrowLeft" || key === "ArrowRight") {
      const right = key === "ArrowRight";
      const row = all.filter((node) => graph.layerOf(node) === here && (right ? node > state.focus : node < state.focus));
      return (right ? row[0] : row[row.length - 1]) ?? state.focus;
    }
    const up = key === "ArrowUp";
    const layers = all.map(graph.layerOf).filter((layer) => (up ? layer > here : layer < here));
    if (!layers.length) return state.focus;
    const layer = up ? Math.min(...layers) : Math.max(...layers);
    const row = all.filter((node) => graph.layerOf(node) === layer);
    return row.reduce((best, node) => (Math.abs(x(node) - x(state.focus)) < Math.abs(x(best) - x(state.focus)) ? node : best));
  }
  function focusOn(node) {
    if (node === undefined) return;
    state.focus = node;
    view.point({ node });
    byId("said").textContent = `${graph.nodeName(node)}: ${nodeNote(view.scene(), node)}`;
  }
  const keys = {
    Enter: () => state.focus >= 0 && pickNode(state.focus === state.selected ? -1 : state.focus),
    Escape: () => pickNode(-1),
    "+": () => view.zoomBy(1.5), "=": () => view.zoomBy(1.5), "-": () => view.zoomBy(1 / 1.5), 0: () => view.fit(),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith("Arrow")) focusOn(step(event.key));
    else if (keys[event.key]) keys[event.key]();
    else return;
    event.preventDefault();
  });
  canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && focusOn(there(state.focus) ? state.focus : nodes()[0]));
  canvas.addEventListener("blur", () => { view.point(null); showTip(null); });
}
