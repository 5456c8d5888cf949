/* An attention pattern: tokens on both axes, a row for each token that attends, weights on hover. */

function drawPattern({ n, weight }, tokens) {
  const [left, top, size] = [64, 58, 340];
  const cell = (size - left) / n;
  const svg = svgElement("svg", { viewBox: `0 0 ${size} ${top + cell * n + 2}`, class: "pattern", role: "img", "aria-label": summary(n - 1) });
  const every = Math.ceil(9 / cell); // names that fit
  const names = tokens.map((token) => { const text = shownToken(token); return text.length > 9 ? `${text.slice(0, 8)}…` : text; });
  for (let i = 0; i < n; i += every) {
    const middle = (i + 0.5) * cell;
    svg.append(
      svgElement("text", { x: left - 4, y: top + middle, class: "end" }, names[i]),
      svgElement("text", { x: 0, y: 0, transform: `translate(${left + middle} ${top - 5}) rotate(-52)` }, names[i]),
    );
  }
  svg.append(svgElement("path", { class: "ground", d: triangle() }));
  for (let query = 0; query < n; query++) {
    for (let key = 0; key <= query; key++) {
      const share = weight(query, key);
      if (share < 0.008) continue;
      svg.append(svgElement("rect", { x: left + key * cell, y: top + query * cell, width: cell, height: cell, "fill-opacity": share ** 0.8 }));
    }
  }
  const frame = svgElement("rect", { class: "frame", width: cell, height: cell, visibility: "hidden" });
  svg.append(frame);
  const said = element("p", { class: "note said" }, summary(n - 1));

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const [x, y] = [((event.clientX - box.left) / box.width) * size - left, ((event.clientY - box.top) / box.width) * size - top];
    const [key, query] = [Math.floor(x / cell), Math.floor(y / cell)];
    const inside = key >= 0 && query < n && key <= query;
    frame.setAttribute("visibility", inside ? "visible" : "hidden");
    frame.setAttribute("x", left + key * cell);
    frame.setAttribute("y", top + query * cell);
    said.textContent = inside ? sentence(query, key) : query >= 0 && query < n && x < 0 ? summary(query) : summary(n - 1);
  });
  svg.addEventListener("pointerleave", () => { frame.setAttribute("visibility", "hidden"); said.textContent = summary(n - 1); });

  function sentence(query, key) {
    return `${quoted(query)} attends to ${quoted(key)}: ${weight(query, key).toFixed(2)}`;
  }

  /* Where a token attends most. */
  function summary(query) {
    const best = Array.from({ length: query + 1 }, (_, key) => key).sort((a, b) => weight(query, b) - weight(query, a)).slice(0, 3);
    return `${quoted(query)} attends to ${best.map((key) => `${quoted(key)} ${weight(query, key).toFixed(2)}`).join(", ")}`;
  }

  function quoted(at) {
    return `“${shownToken(tokens[at])}” (${at})`;
  }

  function triangle() {
    const steps = Array.from({ length: n }, (_, i) => `H${left + (i + 1) * cell}V${top + (i + 1) * cell}`).join("");
    return `M${left} ${top}${steps}H${left}Z`;
  }
  return element("figure", { class: "attention" }, svg, said);
}
