/* The state of the page in its address, so that a link restores it: #n=300&example=2&node=a23.h0&notes={...} */

function makeAddress(data, graph, state, notes) {
  const { chosen } = data;
  const first = { run: chosen.run, how: chosen.how, n: Math.max(1, chosen.edges), prune: chosen.pruned, least: 0, example: -1 };
  let timer = 0;

  const known = JSON.stringify(data.notes); // notes that the page has anyway

  /* What the page shows, with names instead of numbers. */
  function text(edgeName) {
    const parts = {};
    for (const [name, value] of Object.entries(first)) if (state[name] !== value) parts[name] = state[name];
    if (state.selected >= 0) parts.node = graph.nodeName(state.selected);
    if (state.edge >= 0 && edgeName) parts.edge = edgeName;
    const noted = JSON.stringify(notes.toJson());
    const folded = notes.folded().map((group) => group.name);
    if (noted !== known || (!data.compare && folded.length < notes.groups().length)) Object.assign(parts, { notes: noted, folded: JSON.stringify(folded) });
    return Object.entries(parts).map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  }

  /* Written when nothing has changed for a moment; an address that is no state of ours is left alone. */
  function write(edgeName) {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const wanted = text(edgeName);
      if (wanted !== location.hash.slice(1) && (wanted || location.hash.includes("="))) history.replaceState(null, "", wanted ? `#${wanted}` : location.pathname + location.search);
    }, 120);
  }

  /* The parts of a state that can be used here; others are ignored. */
  function usable(parts) {
    const next = { ...first, selected: -1, edge: -1 };
    const run = data.runs[Number(parts.run)] ? Number(parts.run) : first.run;
    next.run = run;
    if (data.runs[run].orders[parts.how]) next.how = parts.how;
    if (Number(parts.n) >= 1) next.n = Math.floor(Number(parts.n));
    if (parts.prune !== undefined) next.prune = String(parts.prune) === "true";
    if (Number(parts.least) <= data.runs[run].orders[next.how || first.how].resamples.length) next.least = Math.max(0, Math.floor(Number(parts.least)));
    if (data.inside && Number(parts.example) >= 0 && Number(parts.example) < data.examples.length) next.example = Math.floor(Number(parts.example));
    if (graph.numbers.has(parts.node)) next.selected = graph.numbers.get(parts.node);
    return next;
  }

  function read() {
    const parts = Object.fromEntries(location.hash.slice(1).split("&").filter((part) => part.includes("=")).map((part) => {
      const at = part.indexOf("=");
      try { return [part.slice(0, at), decodeURIComponent(part.slice(at + 1))]; } catch { return [part.slice(0, at), ""]; }
    }));
    if (!Object.keys(parts).length) return null;
    try { if (parts.notes) notes.read(JSON.parse(parts.notes), JSON.parse(parts.folded || "null")); } catch { /* notes of another model: the rest still holds */ }
    return parts;
  }
  return { write, read, usable };
}
