/* A pen that writes SVG: the same picture as on the canvas, one path for each edge, with its name. */

function svgPen(scene) {
  const out = [];
  const short = (value) => Number(value.toFixed(2));
  const escape = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
  const dash = (width) => `stroke-dasharray="${short(2.5 + 1.5 * width)} ${short(2 + 1.5 * width)}"`;
  return {
    curves(points, ids, { colour, alpha = 1, width = 1, dashed = false }) {
      out.push(`<g fill="none" stroke="${colour}" stroke-opacity="${short(alpha)}" stroke-width="${short(width)}" ${dashed ? dash(width) : ""}>`);
      for (const id of ids) {
        const p = Array.from(points.subarray(8 * id, 8 * id + 8), short);
        const e = scene.kept[id];
        const title = escape(`${scene.edges.name(e)} ${signed(scene.edges.score[e])}`);
        out.push(`<path d="M${p[0]} ${p[1]}C${p.slice(2).join(" ")}"><title>${title}</title></path>`);
      }
      out.push("</g>");
    },
    box(x, y, w, h, radius, { fill = "none", stroke = "none", width = 1, alpha = 1 }) {
      out.push(`<rect x="${short(x - w / 2)}" y="${short(y - h / 2)}" width="${short(w)}" height="${short(h)}" rx="${short(radius)}" fill="${fill}" stroke="${stroke}" stroke-width="${width}" opacity="${alpha}"/>`);
    },
    text(text, x, y, { size, colour, align = "center", weight = 400, alpha = 1 }) {
      const anchor = { center: "middle", left: "start", right: "end" }[align];
      out.push(`<text x="${short(x)}" y="${short(y)}" font-size="${short(size)}" font-weight="${weight}" fill="${colour}" opacity="${alpha}" text-anchor="${anchor}" dominant-baseline="central">${escape(text)}</text>`);
    },
    body: () => out.join("\n"),
  };
}

/* The current view as the text of an SVG file, with a legend under it. */
function svgOf(scene, view) {
  const { place, colours } = scene;
  const pen = svgPen(scene);
  paintEdges(pen, scene, scene.drawn, scene.lit);
  paintNodes(pen, scene);
  const key = svgPen(scene);
  const legend = scene.edges.legend;
  legend.forEach(([name, label], i) => {
    key.box(30 + 90 * i, place.height + 16, 22, 3, 1.5, { fill: colours[name] });
    key.text(label, 47 + 90 * i, place.height + 16, { size: 11, colour: colours.ink, align: "left" });
  });
  key.text("dashed: negative score", 30 + 90 * legend.length, place.height + 16, { size: 11, colour: colours.muted, align: "left" });
  const size = `${place.width} ${place.height + 32}`;
  const family = FONT.replace(/'/g, "");
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${size}" width="${place.width}" height="${place.height + 32}" font-family="${family}">
<rect width="100%" height="100%" fill="${colours.card}"/>
<clipPath id="stage"><rect width="${place.width}" height="${place.height}"/></clipPath>
<g clip-path="url(#stage)"><g transform="translate(${view.x} ${view.y}) scale(${view.k})">
${pen.body()}
</g></g>
${key.body()}
</svg>
`;
}
