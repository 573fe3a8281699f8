"use strict";
// Suspicious labels: thumbnails, and a CSV of the corrections that were chosen.
for (const root of document.querySelectorAll(".suspects")) {
  const sprites = vitling.data.runs[Number(root.dataset.run)].suspects;
  const count = root.querySelector(".correction-count"), save = root.querySelector(".save-corrections");
  for (const slot of root.querySelectorAll("[data-tile]")) {
    slot.append(vitling.thumbnail(sprites, Number(slot.dataset.tile), slot.dataset.name));
  }
  const columns = ["path", "split", "label"].map((field) => ({ field, title: field }));
  const list = () => [...root.querySelectorAll("select")].filter((choice) => choice.selectedIndex > 0)
    .map((choice) => ({ path: choice.dataset.path, split: choice.dataset.split, label: choice.value }));
  const update = () => {
    const n = list().length;
    count.textContent = `${n} ${n === 1 ? "correction" : "corrections"}`;
    save.disabled = n === 0;
  };
  root.addEventListener("change", update);
  save.addEventListener("click", () => vitling.saveCsv("corrections.csv", columns, list()));
  update(); // browsers keep choices when a page is loaded again
}
