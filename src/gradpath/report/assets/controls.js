/* The controls above the drawing: method, selection, pruning, and the slider over the number of edges. */

/* The slider's stops: every small number, then about one per cent apart, and all that were measured. */
function stopsOf(run, how, chosen) {
  const { size, smallest } = run.orders[how];
  const stops = new Set([size, chosen, ...measuredSizes(run, how)]);
  for (let n = smallest; n < size; n = Math.max(n + 1, Math.round(n * 1.012))) stops.add(n);
  return [...stops].filter((n) => n >= smallest && n <= size).sort((a, b) => a - b);
}

/* Numbers of edges with a measured circuit that the slider can go to. */
const measuredSizes = (run, how) => (isNested(run, how) ? measured(run, how, "faithfulness").map((point) => point.requested) : []);

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
  byId("least").addEventListener("change", () => change({ least: Number(byId("least").value) }));
  byId("method-control").hidden = data.runs.length < 2;

  function draw(state) {
    const run = data.runs[state.run];
    segments(byId("methods"), data.runs.map((each, i) => [String(i), each.name]), String(state.run), (i) => change({ run: Number(i) }));
    segments(byId("hows"), Object.entries(run.orders).map(([how, { label, title }]) => [how, label, title]), state.how, (how) => change({ how }));
    byId("how-control").hidden = Object.keys(run.orders).length < 2;
    const times = run.orders[state.how].resamples.length;
    byId("least-control").hidden = !times;
    byId("least").replaceChildren(...Array.from({ length: times }, (_, i) => i && i + 1).map((least) =>
      element("option", { value: String(least) }, least ? `at least ${least} of ${times} resamples` : "any resample")));
    stops = stopsOf(run, state.how, data.chosen.edges);
    slider.max = Math.max(0, stops.length - 1);
    const { size, smallest } = run.orders[state.how];
    slider.disabled = box.disabled = size < 2;
    box.min = smallest;
    box.max = Math.max(1, size);
    drawTicks(run, state);
    move(state);
  }

  function move(state) {
    slider.value = nearest(state.n);
    slider.setAttribute("aria-valuetext", plural(state.n, "edge"));
    slider.style.setProperty("--share", `${(100 * slider.value) / Math.max(1, stops.length - 1)}%`);
    if (document.activeElement !== box) box.value = Math.min(state.n, data.runs[state.run].orders[state.how].size); // an empty circuit has 0
    prune.checked = state.prune;
    byId("least").value = String(state.least);
    byId("least").disabled = state.n > data.runs[state.run].orders[state.how].resampled;
  }

  function drawTicks(run, state) {
    const share = (n) => `${(100 * nearest(n)) / Math.max(1, stops.length - 1)}%`;
    const counts = measuredSizes(run, state.how).filter((n) => n <= run.orders[state.how].size);
    byId("ticks").replaceChildren(
      ...counts.map((n) => element("i", { style: `left:${share(n)}`, class: n === data.chosen.edges ? "asked" : null })),
    );
  }
  return { draw, move };
}
