/* The picture: edges from the faintest to the strongest, then the nodes over them.

   It is drawn with a pen, of which there are two: one for the canvas, one that writes SVG. So what is
   downloaded is what is seen. */

const LEVELS = 12;

function canvasPen(context) {
  const set = ({ alpha = 1, width = 1, dashed = false }) => {
    context.globalAlpha = alpha;
    context.lineWidth = width;
    context.setLineDash(dashed ? [2.5 + 1.5 * width, 2 + 1.5 * width] : []);
  };
  return {
    curves(points, ids, style) {
      set(style);
      context.strokeStyle = style.colour;
      // Many curves in one path are quick; too many in one slow the rasteriser down.
      for (let from = 0; from < ids.length; from += 64) {
        context.beginPath();
        for (const id of ids.slice(from, from + 64)) {
          const at = 8 * id;
          context.moveTo(points[at], points[at + 1]);
          context.bezierCurveTo(points[at + 2], points[at + 3], points[at + 4], points[at + 5], points[at + 6], points[at + 7]);
        }
        context.stroke();
      }
    },
    box(x, y, w, h, radius, style) {
      set(style);
      context.beginPath();
      context.roundRect(x - w / 2, y - h / 2, w, h, radius);
      if (style.fill) { context.fillStyle = style.fill; context.fill(); }
      if (style.stroke) { context.strokeStyle = style.stroke; context.stroke(); }
    },
    text(text, x, y, style) {
      set(style);
      context.font = `${style.weight || 400} ${style.size}px ${FONT}`;
      context.textAlign = style.align || "center";
      context.textBaseline = "middle";
      context.fillStyle = style.colour;
      context.fillText(text, x, y);
    },
  };
}

const FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";

/* How strong an edge looks, from 0 to 1, by its size relative to the largest one shown. */
const strength = (size, most) => (most > 0 ? Math.sqrt(size / most) : 1);

function edgeStyle(t, shown) {
  // The more edges there are the fainter the faint ones get: they become a texture, not a hairball.
  const faint = Math.min(0.5, Math.max(0.035, 2.4 / Math.sqrt(shown)));
  return { alpha: faint + (0.92 - faint) * t ** 1.35, width: 0.7 + 4.6 * t ** 1.7 };
}

/* Edge numbers in groups of one look: level of strength, resamples that have the edge, colour, sign. Weak levels come first. */
function groupsOf(scene, ids) {
  const { colours, colour } = scene.edges;
  const groups = new Map();
  for (const id of ids) {
    const e = scene.kept[id];
    const level = Math.min(LEVELS - 1, Math.floor(LEVELS * strength(scene.edges.size[e], scene.most)));
    const times = scene.frequency ? scene.frequency[e] : scene.resamples;
    const key = ((level * (scene.resamples + 1) + times) * colours.length + colour[e]) * 2 + (scene.edges.score[e] < 0 ? 1 : 0);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(id);
  }
  return [...groups].sort(([a], [b]) => a - b).map(([key, members]) => ({
    negative: key % 2 === 1,
    colour: colours[Math.floor(key / 2) % colours.length],
    level: Math.floor(key / 2 / colours.length / (scene.resamples + 1)),
    steady: scene.resamples ? (Math.floor(key / 2 / colours.length) % (scene.resamples + 1)) / scene.resamples : 1,
    members,
  }));
}

/* `ids` are positions in scene.kept; `lit` marks those that stay bright, or is null for all. */
function paintEdges(pen, scene, ids, lit) {
  const draw = (members, dim) => {
    for (const group of groupsOf(scene, members)) {
      const look = edgeStyle((group.level + 0.5) / LEVELS, lit && !dim ? scene.litCount : ids.length);
      // An edge that few resamples have is faint.
      const alpha = (dim ? look.alpha * 0.1 : lit ? Math.max(0.45, look.alpha) : look.alpha) * (0.25 + 0.75 * group.steady);
      const width = lit && !dim ? Math.max(1.2, look.width) : look.width;
      pen.curves(scene.points, group.members, {
        colour: scene.colours[group.colour], alpha, width: width * scene.thin, dashed: group.negative,
      });
    }
  };
  if (!lit) return draw(ids, false);
  draw(ids.filter((id) => !lit[id]).slice(0, 4000), true);
  draw(ids.filter((id) => lit[id]), false);
}

function paintNodes(pen, scene) {
  const { graph, place, colours } = scene;
  paintLayerNames(pen, scene);
  for (let node = 0; node < place.n; node++) {
    const active = scene.shown[node] || node === 0 || node === graph.logits || node === scene.selected && scene.weight[node] > 0;
    if (active) paintNode(pen, scene, node);
    else pen.box(place.x[node], place.y[node], 3, 3, 1.5, { fill: colours.faint });
  }
}

function paintLayerNames(pen, scene) {
  const { graph, place, colours } = scene;
  const size = Math.min(11, place.row * 0.62);
  const every = Math.ceil(9 / (place.row * scene.zoom));
  for (let layer = 0; layer < graph.layers; layer += every) {
    pen.text(String(layer), place.left - 10, place.rowY(layer), { size, colour: colours.muted, align: "right" });
  }
}

function paintNode(pen, scene, node) {
  const { graph, place, colours } = scene;
  const [x, y, w, h] = [place.x[node], place.y[node], place.w[node], place.h[node]];
  const dim = scene.litNodes && !scene.litNodes[node];
  const chosen = node === scene.selected;
  const t = scene.heaviest > 0 ? Math.sqrt(scene.weight[node] / scene.heaviest) : 0;
  const own = scene.notes && !scene.edges.sides ? scene.notes.colourOf(node) : "";
  pen.box(x, y, w, h, Math.min(5, h / 3), {
    fill: own ? mix(colours.card, own, 0.32) : mix(colours.card, colours.ink, chosen ? 0.3 : 0.05 + 0.2 * t),
    stroke: chosen ? colours.accent : own ? mix(colours.card, own, dim ? 0.3 : 1) : mix(colours.card, colours[scene.nodeColour(node)], dim ? 0.14 : scene.edges.sides ? 0.9 : 0.28 + 0.4 * t),
    width: chosen ? 2 : 1,
    alpha: dim ? 0.6 : 1,
  });
  paintPorts(pen, scene, node, dim);
  const label = labelFor(graph, node, w * scene.zoom, h * scene.zoom, scene.notes);
  if (label) {
    const size = Math.min(11.5, h * 0.62, (w * 0.92) / (label.length * 0.56));
    pen.text(label, x, y + 0.5, { size, colour: colours.ink, weight: chosen ? 700 : 500, alpha: dim ? 0.45 : 1 });
  }
}

/* A mark at the foot of a head for each of q, k and v that is fed. */
function paintPorts(pen, scene, node, dim) {
  const { place, colours } = scene;
  if (place.w[node] * scene.zoom < 20 || dim) return;
  for (let kind = 0; kind < 3; kind++) {
    if (!scene.ports[3 * node + kind]) continue;
    const x = place.x[node] + (kind - 1) * place.w[node] * 0.29;
    pen.box(x, place.y[node] + place.h[node] / 2, Math.min(8, place.w[node] * 0.16), 2.4, 1, { fill: scene.edges.sides ? colours.muted : colours[KINDS[kind]] });
  }
}

/* The longest name that can be read in a cell of this many pixels. */
function labelFor(graph, node, w, h, notes) {
  if (h < 8) return "";
  const name = graph.nodeName(node);
  const fits = (text) => text.length * 5.2 < w;
  const given = notes ? notes.labelOf(node) : name;
  if (given !== name && given) return fits(given) ? given : `${given.slice(0, Math.max(1, Math.floor(w / 5.2) - 1))}…`;
  const short = name.startsWith("a") ? name.split(".")[1] : name;
  return fits(name) ? name : fits(short) ? short : "";
}

/* A colour between two: both as #rrggbb. */
function mix(from, to, share) {
  const part = (text, at) => parseInt(text.slice(at, at + 2), 16);
  const channel = (at) => Math.round(part(from, at) + (part(to, at) - part(from, at)) * share);
  return `#${[1, 3, 5].map((at) => channel(at).toString(16).padStart(2, "0")).join("")}`;
}
