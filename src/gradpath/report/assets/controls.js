/* The controls above the drawing: method, selection, pruning, and the slider over the number of edges. */

/* The slider's stops: every small number, then about one per cent apart, and all that were measured. */
function stopsOf(run, how, chosen) {
  const limit = limitOf(run, how);
  const stops = new Set([limit, chosen, ...(isNested(run, how) ? measured(run, how, "faithfulness").map((point) => point.asked) : [])]);
  for (let n = leastOf(run, how); n < limit; n = Math.max(n + 1, Math.round(n * 1.012))) stops.add(n);
  return [...stops].filter((n) => n >= leastOf(run, how) && n <= limit).sort((a, b) => a - b);
}

/* `change(part)` is called with what the user changed; `draw(state)` updates the controls. */
function makeControls(data, change) {
  const [slider, box, prune] = [byId("slider"), byId("count"), byId("prune")];
  let stops = [];
  const nearest = (n) => {
    const above = stops.findIndex((stop) => stop >= n);
    if (above < 0) return stops.length - 1;
    return above > 0 && n - stops[above - 1] < stops[above] - n ? above - 1 : above;
  };
  slider.addEventListener("input", () => change({ n: stops[slider.value] }, true));
  slider.addEventListener("change", () => change({}));
  box.addEventListener("input", () => {
    const n = Math.round(Number(box.value));
    if (n >= Number(box.min) && n <= Number(box.max)) change({ n });
  });
  box.addEventListener("blur", () => change({}));
  prune.addEventListener("change", () => change({ prune: prune.checked }));
  byId("method-control").hidden = data.runs.length < 2;

  function draw(state) {
    const run = data.runs[state.run];
    segments(byId("methods"), data.runs.map((each, i) => [String(i), methodName(each.name)]), String(state.run), (i) => change({ run: Number(i) }));
    segments(byId("hows"), run.selections.map((how) => [how, howName(how, run), HOW_TITLES[how]]), state.how, (how) => change({ how }));
    byId("how-control").hidden = run.selections.length < 2;
    stops = stopsOf(run, state.how, data.chosen.edges);
    slider.max = Math.max(0, stops.length - 1);
    slider.disabled = box.disabled = limitOf(run, state.how) < 2;
    box.min = leastOf(run, state.how);
    box.max = Math.max(1, limitOf(run, state.how));
    drawTicks(run, state);
    move(state);
  }

  function move(state) {
    slider.value = nearest(state.n);
    slider.setAttribute("aria-valuetext", plural(state.n, "edge"));
    slider.style.setProperty("--share", `${(100 * slider.value) / Math.max(1, stops.length - 1)}%`);
    if (document.activeElement !== box) box.value = Math.min(state.n, limitOf(data.runs[state.run], state.how)); // an empty circuit has 0
    prune.checked = state.prune;
  }

  function drawTicks(run, state) {
    const share = (n) => `${(100 * nearest(n)) / Math.max(1, stops.length - 1)}%`;
    const counts = isNested(run, state.how) ? measured(run, state.how, "faithfulness").map((point) => point.asked) : [];
    byId("ticks").replaceChildren(
      ...counts.filter((n) => n <= limitOf(run, state.how)).map((n) => element("i", { style: `left:${share(n)}`, class: n === data.chosen.edges ? "asked" : null })),
    );
  }
  return { draw, move };
}

const HOW_TITLES = {
  top: "The edges with the largest |score|",
  greedy: "From logits backwards: repeatedly the edge with the largest |score| into a node that is already in",
  signed: "The edges with the largest score: those that help most",
  saved: "The edges in the order of the saved circuit",
};
