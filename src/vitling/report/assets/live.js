"use strict";
// A run in progress: fetch its state every two seconds and draw the charts that have changed.
{
  const { make } = vitling, SECONDS = 2;
  const curves = document.getElementById("curves"), state = document.querySelector(".state");
  const progress = document.querySelector("progress"), log = document.querySelector(".log");

  const figureOf = (chart) => {
    const known = curves.querySelector(`[data-chart="${CSS.escape(chart.id)}"]`);
    if (known) return known;
    const drawing = make("div", { class: "drawing", role: "img", "aria-label": chart.description });
    const figure = make("figure", { class: "chart card", "data-chart": chart.id },
      make("figcaption", {}, chart.title), drawing, make("div", { class: "tools" }));
    curves.append(figure);
    return figure;
  };

  const show = async (found) => {
    progress.value = found.progress;
    if (state.textContent !== found.state) state.textContent = found.state;
    document.querySelector(".finished").hidden = !found.has_report;
    const text = found.log.join("\n"), atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    log.textContent = text;
    if (atEnd) log.scrollTop = log.scrollHeight;
    for (const chart of Object.values(found.charts)) {
      const figure = figureOf(chart), before = vitling.data.charts[chart.id];
      if (before && JSON.stringify(before) === JSON.stringify(chart)) continue;
      const drawing = figure.querySelector(".drawing");
      drawing.style.minHeight = `${drawing.offsetHeight}px`; // the page does not jump while it is drawn again
      vitling.data.charts[chart.id] = chart;
      delete figure.dataset.drawn;
    }
    await vitling.drawCharts();
    document.documentElement.setAttribute("data-ready", "yes");
  };

  const refresh = async () => {
    let found;
    try {
      found = await (await fetch("data.json")).json();
    } catch {
      state.textContent = "No connection: vitling report --watch has ended.";
    }
    if (found) await show(found);
    setTimeout(refresh, 1000 * SECONDS);
  };
  refresh();
}
