"use strict";
// Buttons that copy, the choice of a run, and the start of everything else.
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("pre");
    let done = true;
    try {
      await navigator.clipboard.writeText(text.textContent);
    } catch { // some browsers refuse it for files: select the text instead
      getSelection().selectAllChildren(text);
      done = document.execCommand("copy");
    }
    const label = button.firstChild.textContent;
    button.firstChild.textContent = done ? "Copied" : "Selected";
    setTimeout(() => { button.firstChild.textContent = label; }, 1500);
  });
}

const choice = document.getElementById("run-choice");
choice?.addEventListener("change", () => {
  for (const block of document.querySelectorAll(".of-run")) block.hidden = block.dataset.run !== choice.value;
  vitling.drawCharts();
  vitling.drawMaps();
});

for (const more of document.querySelectorAll("details.more")) more.addEventListener("toggle", vitling.drawCharts);

vitling.ready = vitling.drawMaps().then(vitling.drawCharts).then(() => document.documentElement.setAttribute("data-ready", "yes"));
