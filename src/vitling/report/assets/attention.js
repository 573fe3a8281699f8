"use strict";
// Attention: the patch under the pointer or chosen by arrow keys, and a picture of where each head looks from there.
for (const figure of document.querySelectorAll("figure.attention")) {
  const one = vitling.data.runs[Number(figure.dataset.run)].attention[Number(figure.dataset.image)];
  const [rows, columns] = one.grid, [keyRows, keyColumns] = one.keys, keys = keyRows * keyColumns;
  const weights = Uint8Array.from(atob(one.weights), (c) => c.charCodeAt(0));
  const patches = figure.querySelector(".patches"), image = patches.querySelector("img");
  const cursor = patches.querySelector(".cursor"), where = figure.querySelector(".where");
  const SIDE = 112; // px of a head's picture
  let row = Math.floor(rows / 2), column = Math.floor(columns / 2);

  const heads = Array.from({ length: one.heads }, (_, head) => {
    const canvas = vitling.make("canvas", { width: SIDE, height: SIDE, role: "img", "aria-label": `head ${head + 1}` });
    figure.querySelector(".heads").append(vitling.make("figure", {}, canvas, vitling.make("figcaption", {}, `head ${head + 1}`)));
    return canvas;
  });

  const drawHead = (canvas, head) => {
    const start = (head * rows * columns + row * columns + column) * keys;
    const veil = document.createElement("canvas");
    [veil.width, veil.height] = [keyColumns, keyRows];
    const pixels = new ImageData(keyColumns, keyRows);
    for (let k = 0; k < keys; k++) pixels.data[4 * k + 3] = 0.88 * (255 - weights[start + k]); // black, less where it attends
    veil.getContext("2d").putImageData(pixels, 0, 0);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0, SIDE, SIDE);
    context.drawImage(veil, 0, 0, SIDE, SIDE);
  };

  const update = () => {
    cursor.style.left = `${(100 * column) / columns}%`;
    cursor.style.top = `${(100 * row) / rows}%`;
    cursor.style.width = `${100 / columns}%`;
    cursor.style.height = `${100 / rows}%`;
    heads.forEach(drawHead);
    const start = (row * columns + column) * keys, map = weights.subarray(start, start + keys);
    const best = map.indexOf(255);
    where.textContent = `Patch in row ${row + 1}, column ${column + 1}; head 1 attends most to row ${Math.floor(best / keyColumns) + 1}, ` +
      `column ${(best % keyColumns) + 1} of ${keyRows} x ${keyColumns}.`;
  };

  const choose = (r, c) => {
    const wanted = [Math.min(Math.max(r, 0), rows - 1), Math.min(Math.max(c, 0), columns - 1)];
    if (wanted[0] === row && wanted[1] === column) return;
    [row, column] = wanted;
    update();
  };

  patches.addEventListener("pointermove", (event) => {
    const box = patches.getBoundingClientRect();
    choose(Math.floor(((event.clientY - box.top) / box.height) * rows), Math.floor(((event.clientX - box.left) / box.width) * columns));
  });
  patches.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    choose(row + move[0], column + move[1]);
  });
  image.decode().then(update);
}
