/* Where nodes and edges lie: input at the bottom, layers upwards, logits on top.

   A layer is a row: its heads from left to right, then its MLP, a little higher because it reads them.
   Coordinates are pixels at zoom 1. */

function makeLayout(graph, width, height) {
  const left = width < 600 ? 26 : 44;
  const flank = Math.min(110, Math.max(24, width * 0.085)); // room for the arcs between MLPs
  const column = (width - left - flank) / (graph.heads + 1.35);
  const row = Math.min(160, (height - 24) / (graph.layers + 2));
  const foot = (height + row * (graph.layers + 2)) / 2; // a small model stands in the middle
  const tall = Math.max(3, Math.min(24, row * 0.56));
  const wide = Math.min(66, column * 0.84);
  const bar = Math.min((graph.heads + 1) * column * 0.5, 420);
  const middle = left + (graph.heads * column) / 2;
  const rowY = (layer) => foot - row * (layer + 1.5);

  const { n } = graph;
  const place = { n, left, width, height, column, row, flank, rowY, x: new Float32Array(n), y: new Float32Array(n), w: new Float32Array(n), h: new Float32Array(n) };
  for (let node = 0; node < n; node++) {
    const layer = graph.layerOf(node);
    const at = graph.columnOf(node);
    place.x[node] = at < 0 ? middle : left + column * (at + 0.5 + (at === graph.heads ? 0.35 : 0));
    place.y[node] = rowY(layer) - (at === graph.heads ? row * 0.16 : 0);
    place.w[node] = at < 0 ? bar : wide;
    place.h[node] = at < 0 ? Math.min(24, Math.max(tall, 14)) : tall;
  }
  return place;
}

/* The four points of an edge's Bezier curve, written into `out` from `at` on. */
function curveOf(graph, place, source, node, kind, out, at) {
  const [sx, ex] = [leaveX(graph, place, source, node), enterX(graph, place, source, node, kind)];
  const sy = place.y[source] - place.h[source] / 2;
  const ey = place.y[node] + place.h[node] / 2;
  if (graph.layerOf(source) === graph.layerOf(node)) {
    const side = place.x[node] - place.w[node] / 2;
    out.set([sx, sy, sx, sy - place.row * 0.3, side - place.column * 0.5, place.y[node], side, place.y[node]], at);
    return;
  }
  const rise = (sy - ey) * 0.42;
  const bow = bowOf(graph, place, source, node, sx, ex);
  out.set([sx, sy, sx + bow, sy - rise, ex + bow, ey + rise, ex, ey], at);
}

/* Input and logits are bars: an edge uses the place on the bar that lies towards its other end. */
function alongBar(place, bar, other) {
  const share = (place.x[other] - place.left) / (place.width - place.left - place.flank);
  return place.x[bar] + (share - 0.5) * place.w[bar] * 0.9;
}

function leaveX(graph, place, source, node) {
  return source === 0 && node !== graph.logits ? alongBar(place, source, node) : place.x[source];
}

function enterX(graph, place, source, node, kind) {
  if (node === graph.logits) return source === 0 ? place.x[node] : alongBar(place, node, source);
  return kind < 3 ? place.x[node] + (kind - 1) * place.w[node] * 0.29 : place.x[node];
}

/* Edges within one column would lie on each other: they bow out, the longer the further. */
function bowOf(graph, place, source, node, sx, ex) {
  if (Math.abs(sx - ex) > place.column * 0.6) return 0;
  const rows = graph.layerOf(node) - graph.layerOf(source);
  if (rows < 2) return 0;
  const isMlp = graph.columnOf(source) === graph.heads;
  const most = isMlp ? place.flank * 1.25 : place.column * 1.4;
  return Math.min(most, most * (0.12 + (0.9 * rows) / Math.max(8, graph.layers)));
}

/* The point at share t of the curve that starts at `at`. */
function pointOn(points, at, t) {
  const s = 1 - t;
  const [a, b, c, d] = [s * s * s, 3 * s * s * t, 3 * s * t * t, t * t * t];
  return [
    a * points[at] + b * points[at + 2] + c * points[at + 4] + d * points[at + 6],
    a * points[at + 1] + b * points[at + 3] + c * points[at + 5] + d * points[at + 7],
  ];
}

/* Distance from a point to a curve, or Infinity when it is out of reach. */
function distanceTo(points, at, x, y, reach) {
  const xs = [points[at], points[at + 2], points[at + 4], points[at + 6]];
  const ys = [points[at + 1], points[at + 3], points[at + 5], points[at + 7]];
  if (x < Math.min(...xs) - reach || x > Math.max(...xs) + reach) return Infinity;
  if (y < Math.min(...ys) - reach || y > Math.max(...ys) + reach) return Infinity;
  let best = Infinity;
  let [px, py] = [xs[0], ys[0]];
  for (let step = 1; step <= 16; step++) {
    const [qx, qy] = pointOn(points, at, step / 16);
    best = Math.min(best, distanceToLine(x, y, px, py, qx, qy));
    [px, py] = [qx, qy];
  }
  return best;
}

function distanceToLine(x, y, ax, ay, bx, by) {
  const [dx, dy] = [bx - ax, by - ay];
  const t = Math.max(0, Math.min(1, ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1)));
  return Math.hypot(x - ax - t * dx, y - ay - t * dy);
}
