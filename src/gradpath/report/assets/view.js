/* The stage: the canvas, zoom and pan, and what the pointer or the keyboard is on.

   Two canvases lie on each other: the picture, and over it what is hovered or focused, so that moving
   the pointer never redraws thousands of edges. */

const QUICK = 2500; // edges drawn while something moves; the rest follow when it stops

function makeView(holder, canvas, on) {
  const over = element("canvas", { class: "over", "aria-hidden": "true" });
  holder.insertBefore(over, canvas.nextSibling);
  const view = { k: 1, x: 0, y: 0 };
  let scene = null;
  let [pending, settle] = [0, 0];
  let hot = null; // {node} or {id}: what is pointed at

  function fitSize(width, height) {
    for (const each of [canvas, over]) {
      const ratio = window.devicePixelRatio || 1;
      each.width = Math.round(width * ratio);
      each.height = Math.round(height * ratio);
      each.style.height = `${height}px`;
    }
  }

  function prepared(target) {
    const context = target.getContext("2d");
    const ratio = target.width / scene.place.width;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, target.width, target.height);
    context.setTransform(ratio * view.k, 0, 0, ratio * view.k, ratio * view.x, ratio * view.y);
    return canvasPen(context);
  }

  function paint(quick) {
    scene.zoom = view.k;
    scene.thin = 1 / Math.sqrt(view.k); // lines grow slower than the cells
    const ids = quick ? scene.drawn.slice(-QUICK) : scene.drawn;
    const pen = prepared(canvas);
    paintEdges(pen, scene, ids, scene.lit);
    paintNodes(pen, scene);
    paintHot();
  }

  function redraw(quick = false) {
    cancelAnimationFrame(pending);
    clearTimeout(settle);
    pending = requestAnimationFrame(() => {
      if (!scene) return;
      paint(quick);
      if (quick && scene.drawn.length > QUICK) settle = setTimeout(() => paint(false), 140);
    });
  }

  function paintHot() {
    const pen = prepared(over);
    if (!hot) return;
    const { colours, place } = scene;
    if (hot.id !== undefined) {
      const e = scene.kept[hot.id];
      pen.curves(scene.points, [hot.id], { colour: colours.card, width: 8 * scene.thin, alpha: 0.9 });
      pen.curves(scene.points, [hot.id], {
        colour: colours[scene.edges.colours[scene.edges.colour[e]]], width: 3.6 * scene.thin, dashed: scene.edges.score[e] < 0,
      });
      [scene.edges.source[e], scene.edges.node[e]].forEach((node) => paintNode(pen, scene, node));
    } else {
      const { node } = hot;
      pen.box(place.x[node], place.y[node], place.w[node] + 5, place.h[node] + 5, 7, { stroke: colours.accent, width: 2 / view.k });
    }
  }

  const toWorld = (x, y) => [(x - view.x) / view.k, (y - view.y) / view.k];
  const toScreen = (x, y) => [x * view.k + view.x, y * view.k + view.y];

  function nodeAt(x, y) {
    const { place } = scene;
    const slack = 2 / view.k;
    for (let node = 0; node < place.n; node++) {
      const inside = Math.abs(x - place.x[node]) <= place.w[node] / 2 + slack && Math.abs(y - place.y[node]) <= place.h[node] / 2 + slack;
      if (inside) return node;
    }
    return -1;
  }

  function edgeAt(x, y) {
    const reach = 6 / view.k;
    let [best, least] = [-1, Infinity];
    for (const id of scene.drawn) {
      if (scene.lit && !scene.lit[id]) continue;
      const away = distanceTo(scene.points, 8 * id, x, y, reach);
      // Of two edges under the pointer the stronger one is meant.
      const cost = away - reach * strength(scene.edges.size[scene.kept[id]], scene.most);
      if (away <= reach && cost < least) [best, least] = [id, cost];
    }
    return best;
  }

  function thingAt(px, py) {
    const [x, y] = toWorld(px, py);
    const node = nodeAt(x, y);
    if (node >= 0) return { node };
    const id = edgeAt(x, y);
    return id >= 0 ? { id } : null;
  }

  function point(thing, at) {
    hot = thing;
    if (scene) paintHot();
    on.point(thing, at);
  }

  function zoomBy(factor, cx = scene.place.width / 2, cy = scene.place.height / 2) {
    const k = Math.min(12, Math.max(1, view.k * factor));
    const [x, y] = toWorld(cx, cy);
    moveTo(k, cx - x * k, cy - y * k);
  }

  /* Set the view, never further than the picture's own edges. */
  function moveTo(k, x, y) {
    const { width, height } = scene.place;
    view.k = k;
    view.x = Math.min(0, Math.max(width - width * k, x));
    view.y = Math.min(0, Math.max(height - height * k, y));
    holder.classList.toggle("zoomed", k > 1);
    redraw(true);
  }

  function centreOn(node) {
    const k = Math.max(view.k, 1);
    const { place } = scene;
    moveTo(k, place.width / 2 - place.x[node] * k, place.height / 2 - place.y[node] * k);
  }

  function show(next, quick) {
    scene = next;
    hot = null;
    redraw(quick);
  }

  listenToPointers(canvas, { view, thingAt, point, zoomBy, moveTo, on, ready: () => scene !== null });
  return {
    view, show, redraw, fitSize, zoomBy, centreOn, point,
    fit: () => moveTo(1, 0, 0),
    screenOf: (node) => toScreen(scene.place.x[node], scene.place.y[node]),
    scene: () => scene,
  };
}

/* Hover, click, drag, pinch and wheel. A plain wheel scrolls the page, as people expect of a document. */
function listenToPointers(canvas, { view, thingAt, point, zoomBy, moveTo, on, ready }) {
  const down = new Map();
  let [moved, spread, waiting] = [0, 0, 0];
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const gap = () => {
    const [a, b] = [...down.values()];
    return Math.hypot(a[0] - b[0], a[1] - b[1]);
  };
  canvas.addEventListener("pointerdown", (event) => {
    down.set(event.pointerId, at(event));
    moved = 0;
    if (down.size === 2) spread = gap();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!ready()) return;
    const [x, y] = at(event);
    const last = down.get(event.pointerId);
    if (!last) {
      cancelAnimationFrame(waiting);
      waiting = requestAnimationFrame(() => point(thingAt(x, y), [x, y]));
      return;
    }
    moved += Math.abs(x - last[0]) + Math.abs(y - last[1]);
    down.set(event.pointerId, [x, y]);
    if (down.size === 2) {
      const now = gap();
      zoomBy(now / (spread || now), x, y);
      spread = now;
    } else if (moved > 4 && view.k > 1) {
      canvas.setPointerCapture(event.pointerId);
      moveTo(view.k, view.x + x - last[0], view.y + y - last[1]);
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (down.delete(event.pointerId) && moved <= 4) on.pick(thingAt(...at(event)));
  });
  canvas.addEventListener("pointercancel", (event) => down.delete(event.pointerId));
  canvas.addEventListener("pointerleave", () => {
    cancelAnimationFrame(waiting);
    down.clear();
    point(null);
  });
  canvas.addEventListener("dblclick", (event) => zoomBy(1.8, ...at(event)));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return on.plainWheel();
    event.preventDefault();
    return zoomBy(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0022)), ...at(event));
  }, { passive: false });
}
