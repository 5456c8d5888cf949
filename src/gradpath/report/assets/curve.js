/* The faithfulness curve: the measured circuits of every method, and the position of the slider. */

const CURVE = { width: 360, height: 240, left: 48, right: 14, top: 24, bottom: 42 };
const METHOD_COLOURS = ["m0", "m1", "m2", "m3", "m4", "m5"];

/* The measured points of a run for one order, by number of edges, without gaps. */
function measured(run, how, of) {
  const selection = run.orders[how] ? run.orders[how].how : how;
  return run.curve.filter((point) => point.how === selection && point[of] !== null).sort((a, b) => a.requested - b.requested);
}

/* The measured point of the requested circuit, and the number of its edges. */
function requestedPoint({ runs, chosen }) {
  return measured(runs[chosen.run], chosen.how, "faithfulness").find((point) => point.requested === chosen.requested);
}
const requestedEdges = (data) => (requestedPoint(data) || { kept: data.chosen.edges }).kept;

/* Whether every first n edges of the order are a circuit of its selection. */
const isNested = (run, how) => run.orders[how].requested === null;

/* The position of the slider on the curve's axis. A part of a saved circuit has none, because only the
   complete circuit was requested. */
function requestedNow(run, state) {
  if (isNested(run, state.how)) return state.n;
  const { size, requested } = run.orders[state.how];
  return state.n === size ? requested : NaN;
}

/* The value at n edges: measured, or on the straight line (in log n) between two that were. */
function readCurve(points, n, of) {
  const exact = points.find((point) => point.requested === n);
  if (exact) return { value: exact[of], exact, between: [] };
  const above = points.findIndex((point) => point.requested > n);
  if (above <= 0) return null;
  const [a, b] = [points[above - 1], points[above]];
  const share = Math.log(n / a.requested) / Math.log(b.requested / a.requested);
  return { value: a[of] + share * (b[of] - a[of]), exact: null, between: [a, b] };
}

function makeCurve(holder, data, pick) {
  function draw(state) {
    const of = state.curveOf;
    const lines = data.runs.map((run, i) => ({ run, i, how: state.how, points: measured(run, state.how, of) }));
    lines.push(...otherSelections(data.runs[state.run], state, of));
    const all = lines.flatMap((line) => line.points);
    if (!all.length) return holder.replaceChildren();
    const random = randomBand(data.runs[state.run], of);
    const scale = scaleOf([...all, ...random], of, data, state);
    const svg = svgElement("svg", { viewBox: `0 0 ${CURVE.width} ${CURVE.height}`, role: "img", "aria-label": spoken(lines, of) });
    drawAxes(svg, scale, of, data);
    drawRandom(svg, scale, random);
    drawAsked(svg, scale, data);
    for (const line of lines) if (line !== lines[state.run]) drawLine(svg, scale, line, of, false, pick);
    drawLine(svg, scale, lines[state.run], of, true, pick);
    drawHere(svg, scale, lines[state.run], of, state);
    const key = lines.length > 1 || random.length ? [keyOf(lines, state, random)] : [];
    return holder.replaceChildren(svg, ...key);
  }
  return draw;
}

/* The curves of the other selections of a run, to compare with. */
function otherSelections(run, state, of) {
  const hows = Object.keys(run.orders).filter((how) => how !== state.how);
  const lines = hows.map((how) => ({ run, i: state.run, how, other: true, points: measured(run, how, of) }));
  return lines.filter((line) => line.points.length);
}

function scaleOf(points, of, data, state) {
  const counts = [...points.map((point) => point.requested), ...(data.chosen.found ? [data.chosen.requested || 1] : [])];
  const [first, last] = [Math.min(...counts), Math.max(...counts, Math.min(...counts) + 1)];
  const ends = points.flatMap((point) => (of === "faithfulness" ? [point.low ?? point[of], point.high ?? point[of]] : [point[of]]));
  const low = Math.max(-1, Math.min(0, ...ends));
  const high = Math.min(3, Math.max(of === "faithfulness" ? 1.05 : 0.5, ...ends));
  const spanX = CURVE.width - CURVE.left - CURVE.right;
  const spanY = CURVE.height - CURVE.top - CURVE.bottom;
  const clamp = (value, a, b) => Math.max(a, Math.min(b, value));
  return {
    first, last, low, high,
    x: (n) => CURVE.left + spanX * (Math.log(clamp(n, first, last) / first) / Math.log(last / first)),
    y: (value) => CURVE.top + spanY * (1 - (clamp(value, low, high) - low) / (high - low)),
  };
}

function drawAxes(svg, scale, of, data) {
  const step = scale.high - scale.low > 1.6 ? 0.5 : 0.25;
  for (let value = Math.ceil(scale.low / step) * step; value <= scale.high + 1e-9; value += step) {
    const y = scale.y(value);
    const strong = of === "faithfulness" && Math.abs(value - 1) < 1e-9;
    svg.append(
      svgElement("line", { x1: CURVE.left, x2: CURVE.width - CURVE.right, y1: y, y2: y, class: strong ? "grid strong" : "grid" }),
      svgElement("text", { x: CURVE.left - 7, y, class: "tick end" }, of === "faithfulness" ? percent(value) : number(value)),
    );
  }
  for (const n of ticksOf(scale)) {
    svg.append(svgElement("text", { x: scale.x(n), y: CURVE.height - CURVE.bottom + 14, class: "tick middle" }, n >= 1000 ? `${Number((n / 1000).toPrecision(2))}k` : String(n)));
  }
  svg.append(svgElement("text", { x: CURVE.width - CURVE.right, y: CURVE.height - 8, class: "tick end" }, `edges selected, of ${count(data.edges_total)}`));
}

/* Round numbers on the axis, far enough from each other to be read. */
function ticksOf(scale) {
  const ticks = [];
  for (let power = 0; power < 8; power++) {
    for (const digit of [1, 2, 5]) {
      const n = digit * 10 ** power;
      const fits = n >= scale.first && n <= scale.last;
      if (fits && (!ticks.length || scale.x(n) - scale.x(ticks[ticks.length - 1]) > 34)) ticks.push(n);
    }
  }
  // Where fewer than two fit, the ends of the axis; of a single size the last is made up.
  return ticks.length > 1 ? ticks : [scale.first, scale.last].slice(0, scale.last > scale.first + 1 ? 2 : 1);
}

function drawAsked(svg, scale, data) {
  if (!data.chosen.requested || !data.chosen.found) return;
  const x = scale.x(data.chosen.requested);
  const right = x > CURVE.width * 0.6;
  const text = `requested: ${sparsityText(1 - data.chosen.requested / data.edges_total)} sparse`;
  svg.append(
    svgElement("line", { x1: x, x2: x, y1: CURVE.top - 3, y2: CURVE.height - CURVE.bottom, class: "asked" }),
    svgElement("text", { x: right ? Math.min(x + 8, CURVE.width - CURVE.right) : Math.max(x - 8, CURVE.left), y: CURVE.top - 10, class: right ? "tick end" : "tick" }, text),
  );
}

const colourOf = ({ i, other }) => (other ? "other" : METHOD_COLOURS[i % METHOD_COLOURS.length]);

function drawLine(svg, scale, line, of, front, pick) {
  const { i, how, points } = line;
  if (!points.length) return;
  const group = svgElement("g", { class: `line ${colourOf(line)}${front ? " front" : ""}` });
  const banded = of === "faithfulness" && points.every((point) => point.low !== null && point.high !== null);
  if (banded && front) {
    const ends = [...points.map((p) => `${scale.x(p.requested)},${scale.y(p.high)}`), ...points.slice().reverse().map((p) => `${scale.x(p.requested)},${scale.y(p.low)}`)];
    group.append(svgElement("polygon", { points: ends.join(" "), class: "band" }));
    // A band has no width at one size.
    if (points.length === 1) group.append(svgElement("line", { x1: scale.x(points[0].requested), x2: scale.x(points[0].requested), y1: scale.y(points[0].low), y2: scale.y(points[0].high), class: "interval" }));
  }
  group.append(svgElement("polyline", { points: points.map((p) => `${scale.x(p.requested)},${scale.y(p[of])}`).join(" ") }));
  for (const p of points) {
    const dot = svgElement("circle", { cx: scale.x(p.requested), cy: scale.y(p[of]), r: front ? 3.2 : 2.2 });
    dot.append(svgElement("title", {}, `${labelOf(line.run, how)}, ${count(p.requested)} edges: ${of === "faithfulness" ? percent(p[of], 1) : number(p[of])}`));
    dot.addEventListener("click", () => pick(i, p.requested, how));
    group.append(dot);
  }
  svg.append(group);
}

/* The position of the slider: filled if that circuit was measured, hollow if it is interpolated. */
function drawHere(svg, scale, { run, i, points }, of, state) {
  const n = requestedNow(run, state);
  if (Number.isNaN(n)) return;
  const here = readCurve(points, n, of);
  const x = scale.x(n);
  svg.append(svgElement("line", { x1: x, x2: x, y1: CURVE.top, y2: CURVE.height - CURVE.bottom, class: "here" }));
  if (!here) return;
  const colour = METHOD_COLOURS[i % METHOD_COLOURS.length];
  svg.append(svgElement("circle", { id: "here", cx: x, cy: scale.y(here.value), r: 6, class: `marker ${colour}${here.exact ? "" : " hollow"}` }));
}

/* What random circuits of a few sizes have, from the worst to the best: a circuit has to be better than that. */
function randomBand(run, of) {
  const points = run.curve.filter((point) => point.how === "random" && point[of] !== null);
  const sizes = [...new Set(points.map((point) => point.requested))].sort((a, b) => a - b);
  return sizes.map((requested) => {
    const values = points.filter((point) => point.requested === requested).map((point) => point[of]);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return { requested, low, high, [of]: high, circuits: values.length };
  });
}

function drawRandom(svg, scale, band) {
  if (!band.length) return;
  const corner = (end) => (part) => `${scale.x(part.requested)},${scale.y(part[end])}`;
  svg.append(svgElement("polygon", { points: [...band.map(corner("high")), ...band.slice().reverse().map(corner("low"))].join(" "), class: "random" }));
}

function randomNote(run) {
  const band = randomBand(run, "faithfulness");
  if (!band.length) return "";
  const [few, many] = [Math.min(...band.map((part) => part.circuits)), Math.max(...band.map((part) => part.circuits))];
  return ` Grey band: random circuits, ${few === many ? few : `${few} to ${many}`} of each of ${plural(band.length, "size")}.`;
}

function keyOf(lines, state, random) {
  const key = element("div", { class: "key" });
  const several = new Set(lines.map((line) => line.i)).size > 1;
  for (const line of lines) {
    const { run, how, points } = line;
    const name = [...(several ? [run.name] : []), ...(several && !line.other ? [] : [labelOf(run, how).toLowerCase()])].join(", ");
    key.append(element("span", { class: `${colourOf(line)}${line === lines[state.run] ? " front" : ""}` }, name, points.length ? "" : " (not measured)"));
  }
  if (random.length) key.append(element("span", { class: "random" }, "random circuits"));
  return key;
}

function spoken(lines, of) {
  const parts = lines.filter((line) => line.points.length).map(({ run, how, points }) => {
    const values = points.map((p) => `${of === "faithfulness" ? percent(p[of]) : number(p[of])} at ${count(p.requested)} edges`);
    return `${run.name}, ${labelOf(run, how).toLowerCase()}: ${values.join(", ")}`;
  });
  return `Curve of ${of}. ${parts.join(". ")}`;
}
