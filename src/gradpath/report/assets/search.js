/* Search by name: nodes first, then edges of the circuit. Arrow keys move in the list, Enter takes one. */

function makeSearch(graph, sceneNow, { pickNode, pickEdge }) {
  const [box, list] = [byId("search"), byId("found")];
  const nodes = [...graph.numbers.values()];
  let [found, at] = [[], 0];

  function search(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return [];
    const scene = sceneNow();
    const start = (name) => (name === wanted ? 0 : name.startsWith(wanted) ? 1 : name.includes(wanted) ? 2 : 3);
    const hits = nodes
      .map((node) => ({ node, name: graph.nodeName(node), there: scene.weight[node] > 0 }))
      .filter((hit) => start(hit.name) < 3)
      .sort((a, b) => start(a.name) - start(b.name) || b.there - a.there || a.node - b.node);
    const edges = [...scene.kept]
      .map((e) => ({ e, name: scene.edges.name(e) }))
      .filter((hit) => hit.name.includes(wanted));
    const looksLikeEdge = wanted.includes("-") || wanted.includes("<");
    return (looksLikeEdge ? edges : [...hits.slice(0, 8), ...edges]).slice(0, 12);
  }

  function draw() {
    list.replaceChildren(...found.map((hit, i) => {
      const note = hit.node === undefined ? signed(sceneNow().edges.score[hit.e]) : hit.there ? "" : "not in the circuit";
      return element("li", { role: "option", id: `hit-${i}`, "aria-selected": i === at ? "true" : "false", onmousedown: (event) => { event.preventDefault(); take(hit); } },
        element("span", {}, hit.name), element("small", {}, note));
    }));
    if (!found.length && box.value.trim()) list.append(element("li", { class: "none" }, "No node or edge of that name"));
    list.hidden = !box.value.trim();
    box.setAttribute("aria-expanded", String(!list.hidden));
    box.setAttribute("aria-activedescendant", found.length ? `hit-${at}` : "");
  }

  function take(hit) {
    if (!hit) return;
    box.value = hit.name;
    close();
    if (hit.node === undefined) pickEdge(hit.e);
    else pickNode(hit.node, true);
  }

  function close() {
    list.hidden = true;
    box.setAttribute("aria-expanded", "false");
  }

  box.addEventListener("input", () => {
    [found, at] = [search(box.value), 0];
    draw();
    if (!box.value) pickNode(-1);
  });
  box.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) {
      at = (at + step + found.length) % found.length;
      draw();
      event.preventDefault();
    }
    if (event.key === "Enter") take(found[at]);
    if (event.key === "Escape") close();
  });
  box.addEventListener("blur", close);
}
