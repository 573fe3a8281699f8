"use strict";
// Matching regions: how similar each region of the second view is to the chosen patch of the first, and the most similar.
for (const figure of document.querySelectorAll("figure.matches")) {
  const one = vitling.data.runs[Number(figure.dataset.run)].matches[Number(figure.dataset.image)];
  const [rows, columns] = one.grid, regions = rows * columns;
  const similarities = new Int8Array(vitling.unpack(one.similarities).buffer); // hundredths
  const best = figure.querySelector(".best"), place = figure.querySelector(".place");
  const veil = figure.querySelector(".veil"), where = figure.querySelector(".where");

  const VERDICTS = new Map([
    [true, "Both show the same place of the image."],
    [false, "They show different places; the dashed frame shows where the patch lies in the right view."],
    [null, "The right view does not show the place of this patch."],
    [undefined, ""],
  ]);

  // Frame the part of the second view that shows the same place as the patch, cut off at its edges.
  const framePlace = (patch) => {
    const [left, width, top, height] = one.shift;
    const side = (offset, scale, from, to) => {
      const ends = [offset + scale * from, offset + scale * to].map((end) => Math.min(Math.max(end, 0), 1));
      return [Math.min(...ends), Math.abs(ends[1] - ends[0])];
    };
    const row = Math.floor(patch / columns), column = patch % columns;
    const [x, w] = side(left, width, column / columns, (column + 1) / columns);
    const [y, h] = side(top, height, row / rows, (row + 1) / rows);
    vitling.frame(place, x, y, w, h);
  };

  const show = (patch) => {
    const found = one.nearest[patch], verdict = one.same_place[patch];
    const row = similarities.subarray(patch * regions, (patch + 1) * regions);
    const least = Math.min(...row), most = row[found];
    vitling.drawVeil(veil, one.grid, (k) => (row[k] - least) / Math.max(most - least, 1));
    vitling.framePatch(best, one.grid, found);
    place.hidden = typeof verdict !== "boolean";
    if (!place.hidden) framePlace(patch);
    where.textContent = `Patch in ${vitling.namePatch(one.grid, patch)}; most similar in the right view: ${vitling.namePatch(one.grid, found)} ` +
      `of ${rows} x ${columns}, cosine ${(most / 100).toFixed(2)} (least similar: ${(least / 100).toFixed(2)}). ${VERDICTS.get(verdict)}`;
  };

  // Start with the most similar pair, if possible one whose place both views show.
  const rank = (patch) => similarities[patch * regions + one.nearest[patch]] + (one.same_place[patch] == null ? 0 : 1000);
  const first = one.nearest.reduce((top, _, patch) => (rank(patch) > rank(top) ? patch : top), 0);
  vitling.choosePatch(figure.querySelector(".patches"), one.grid, first, show);
}
