/* Should the circuit be believed? Each test with its number, what that is by chance, what it has to be, and what it means. */

const DECISIONS = { yes: ["pass", "passed"], no: ["fail", "failed"], undecided: ["none", "undecided"] };

function drawVerdict(data) {
  const { verdict } = data;
  byId("verdict-card").hidden = !verdict;
  if (!verdict) return;
  byId("verdict-title").textContent = `Should the circuit of ${plural(requestedEdges(data), "edge")} be believed?`;
  byId("verdict-said").textContent = verdict.sentence;
  const figure = (label, value) => element("dd", { class: "figure" }, element("span", {}, label), typeof value === "string" ? value || "–" : number(value));
  byId("checks").replaceChildren(...verdict.checks.map((check) => {
    const [kind, word] = check.value === null ? ["none", "not run"] : !check.limit ? ["none", "no test"] : DECISIONS[check.decision];
    return element("div", { class: "testrow", id: `check-${check.name}` },
      element("dt", {}, element("i", { class: `sign ${kind}` }, word), element("b", {}, check.question), element("span", {}, check.name)),
      figure("result", check.value), figure(check.null_is || "by chance", check.null_is ? check.null : ""), figure("to pass", check.limit), element("dd", { class: "told" }, check.about));
  }));
  if (verdict.effects) byId("checks").append(effectsRow(verdict.effects));
  byId("verdict-note").replaceChildren(verdict.note, ...(verdict.command ? [element("code", {}, verdict.command)] : []));
}

/* The effects of some edges, as gradients estimate them and as measured: on the diagonal the two are equal. */
function effectsRow(effects) {
  return element("div", { class: "testrow", id: "effects" },
    element("dt", {}, element("i", { class: "sign none" }, "no test"), element("b", {}, "How exact are its edges?"), element("span", {}, "effects")),
    element("dd", { class: "figure" }, element("span", {}, "correlation"), number(effects.correlation)),
    element("dd"),
    element("dd", { class: "figure" }, element("span", {}, "others"), `at most ${number(effects.bound)}`),
    element("dd", { class: "told" }, effects.about, effects.estimated ? scatter(effects) : null));
}

function scatter({ edges, measured, estimated }) {
  const size = 150, pad = 16;
  const all = [...measured, ...estimated];
  const [low, high] = [Math.min(0, ...all), Math.max(1e-6, ...all)];
  const at = (value) => pad + ((value - low) / (high - low)) * (size - 2 * pad);
  const svg = svgElement("svg", { viewBox: `0 0 ${size} ${size}`, class: "scatter", role: "img", "aria-label": `Estimated against measured effects of ${plural(edges.length, "edge")}` });
  svg.append(svgElement("line", { x1: at(low), y1: size - at(low), x2: at(high), y2: size - at(high) }));
  edges.forEach((edge, i) => {
    const dot = svgElement("circle", { cx: at(measured[i]), cy: size - at(estimated[i]), r: 2.6 });
    dot.append(svgElement("title", {}, `${edge}: measured ${number(measured[i], 3)}, estimated ${number(estimated[i], 3)}`));
    svg.append(dot);
  });
  svg.append(svgElement("text", { x: size - pad, y: size - 3, class: "end" }, "measured"), svgElement("text", { x: 3, y: 9 }, "estimated"));
  return svg;
}
