"use strict";
// Grids of patches over pictures: choosing one with the pointer or the arrow keys, marking some, and veils over others.
vitling.unpack = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

// Place a frame by fractions of the picture.
vitling.frame = (element, x, y, width, height) => {
  for (const [name, value] of Object.entries({ left: x, top: y, width, height })) element.style[name] = `${100 * value}%`;
};

vitling.framePatch = (element, [rows, columns], patch) =>
  vitling.frame(element, (patch % columns) / columns, Math.floor(patch / columns) / rows, 1 / columns, 1 / rows);

vitling.namePatch = ([, columns], patch) => `row ${Math.floor(patch / columns) + 1}, column ${(patch % columns) + 1}`;

// Draw a black veil with one pixel per patch, lighter where the value, from 0 to 1, is higher.
vitling.drawVeil = (canvas, [rows, columns], light) => {
  [canvas.width, canvas.height] = [columns, rows];
  const pixels = new ImageData(columns, rows);
  for (let k = 0; k < rows * columns; k++) pixels.data[4 * k + 3] = 0.88 * 255 * (1 - light(k));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
};

// Frame the patch under the pointer or chosen by arrow keys, and call `show` with its number.
vitling.choosePatch = (patches, [rows, columns], chosen, show) => {
  const update = () => {
    vitling.framePatch(patches.querySelector(".cursor"), [rows, columns], chosen);
    show(chosen);
  };
  const choose = (row, column) => {
    const wanted = Math.min(Math.max(row, 0), rows - 1) * columns + Math.min(Math.max(column, 0), columns - 1);
    if (wanted === chosen) return;
    chosen = wanted;
    update();
  };
  const follow = (event) => {
    const box = patches.getBoundingClientRect();
    choose(Math.floor(((event.clientY - box.top) / box.height) * rows), Math.floor(((event.clientX - box.left) / box.width) * columns));
  };
  patches.addEventListener("pointermove", follow);
  patches.addEventListener("pointerdown", follow);
  patches.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    choose(Math.floor(chosen / columns) + move[0], (chosen % columns) + move[1]);
  });
  update();
};
