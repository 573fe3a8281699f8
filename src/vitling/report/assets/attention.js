"use strict";
// Attention: a picture of where each head looks from the chosen patch.
for (const figure of document.querySelectorAll("figure.attention")) {
  const one = vitling.data.runs[Number(figure.dataset.run)].attention[Number(figure.dataset.image)];
  const [rows, columns] = one.grid, [keyRows, keyColumns] = one.keys, keys = keyRows * keyColumns;
  const weights = vitling.unpack(one.weights);
  const patches = figure.querySelector(".patches"), image = patches.querySelector("img"), where = figure.querySelector(".where");
  const SIDE = 112; // px of a head's picture

  const heads = Array.from({ length: one.heads }, (_, head) => {
    const canvas = vitling.make("canvas", { width: SIDE, height: SIDE, role: "img", "aria-label": `head ${head + 1}` });
    figure.querySelector(".heads").append(vitling.make("figure", {}, canvas, vitling.make("figcaption", {}, `head ${head + 1}`)));
    return canvas;
  });

  const show = (patch) => {
    const maps = heads.map((_, head) => {
      const start = (head * rows * columns + patch) * keys;
      return weights.subarray(start, start + keys);
    });
    heads.forEach((canvas, head) => {
      const veil = document.createElement("canvas"), context = canvas.getContext("2d");
      vitling.drawVeil(veil, one.keys, (k) => maps[head][k] / 255);
      context.drawImage(image, 0, 0, SIDE, SIDE);
      context.drawImage(veil, 0, 0, SIDE, SIDE);
    });
    const best = vitling.namePatch(one.keys, maps[0].indexOf(255));
    where.textContent = `Patch in ${vitling.namePatch(one.grid, patch)}; head 1 attends most to ${best} of ${keyRows} x ${keyColumns}.`;
  };

  const centre = Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  image.decode().then(() => vitling.choosePatch(patches, one.grid, centre, show));
}
