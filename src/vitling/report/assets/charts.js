"use strict";
// Charts: draw the Vega-Lite specifications, and offer each as a table, CSV, PNG and SVG.
const vitling = { data: JSON.parse(document.getElementById("report-data").textContent), views: new Map() };

vitling.make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children); // strings become text, never HTML
  return element;
};

vitling.save = (name, url) => {
  const link = vitling.make("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
};

{
  const { make } = vitling;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  // Petroff (2021), ten colours that colour-blind people can tell apart; the dark theme has lighter ones of some.
  const LIGHT = ["#3f90da", "#e76300", "#832db6", "#717581", "#bd1f01", "#ffa90e", "#a96b59", "#92dadd", "#94a4a2", "#b9ac70"];
  const DARK = ["#5fa8ea", "#ff8a3c", "#b57fe0", "#a9adb8", "#ff6a50", "#ffc04d", "#c98f7e", "#92dadd", "#7f918e", "#cdc28c"];
  const SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left"];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  vitling.theme = () => {
    const [ink, quiet, line] = [colour("--ink"), colour("--quiet"), colour("--line")];
    const category = dark.matches ? DARK : LIGHT;
    return {
      background: colour("--card"),
      font: "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif",
      view: { stroke: null },
      axis: {
        labelColor: quiet, titleColor: quiet, gridColor: line, domainColor: line, tickColor: line,
        labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", labelPadding: 5,
      },
      legend: { labelColor: ink, titleColor: quiet, labelFontSize: 12 },
      title: { color: ink },
      mark: { color: category[0] },
      text: { color: ink },
      rule: { color: category[0] },
      line: { strokeWidth: 2 },
      range: {
        category, symbol: SHAPES,
        heatmap: dark.matches ? ["#222b38", "#27507d", "#2f78bd"] : ["#f3f6fa", "#4f8fd0", "#0b3d75"],
        ramp: dark.matches ? ["#222b38", "#27507d", "#2f78bd"] : ["#f3f6fa", "#4f8fd0", "#0b3d75"],
      },
    };
  };

  // The expressions are interpreted (ast), because the page's policy forbids eval. Vega labels the drawing with the
  // description of the specification.
  vitling.draw = async (element, spec, renderer = "svg") => {
    const result = await vegaEmbed(element, spec, {
      mode: "vega-lite", renderer, actions: false, ast: true, config: vitling.theme(),
      tooltip: { theme: dark.matches ? "dark" : "light" },
    });
    return result.view;
  };

  const format = (column, value) => {
    if (value === null || value === undefined) return "";
    return column.format && typeof value === "number" ? vega.defaultLocale().format(column.format)(value) : String(value);
  };

  vitling.makeTable = (columns, rows, most = 500) => {
    const head = make("tr", {}, ...columns.map((c) => make("th", { scope: "col" }, c.title)));
    const body = rows.slice(0, most).map((row) =>
      make("tr", {}, ...columns.map((c) => {
        const kind = typeof row[c.field] === "number" ? { class: "number" } : {};
        return make("td", kind, format(c, row[c.field]));
      })));
    const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
    const box = make("div", { class: "scroll tall", tabindex: "0", role: "group", "aria-label": "Table" }, table);
    if (rows.length > most) box.append(make("p", { class: "quiet" }, `The first ${most} of ${rows.length} rows; the CSV has all.`));
    return box;
  };

  // A cell that a spreadsheet would take for a formula gets a ' in front, as in the CSV files of vitling.
  const FORMULA = /^'*(?!-[\d.]+$)[=+\-@\t\r]/;

  vitling.toCsv = (columns, rows) => {
    const quote = (value) => {
      const plain = value === null || value === undefined ? "" : String(value);
      const text = typeof value === "string" && FORMULA.test(plain) ? `'${plain}` : plain;
      return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const lines = [columns.map((c) => quote(c.title)), ...rows.map((row) => columns.map((c) => quote(row[c.field])))];
    return lines.map((line) => line.join(",")).join("\r\n") + "\r\n";
  };

  vitling.saveCsv = (name, columns, rows) => {
    const url = URL.createObjectURL(new Blob([vitling.toCsv(columns, rows)], { type: "text/csv" }));
    vitling.save(name, url);
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };

  vitling.addTools = (tools, name, getView, columns, getRows) => {
    const label = (kind) => [kind, make("span", { class: "hidden-text" }, ` of ${name}`)];
    const picture = (kind) => async () => vitling.save(`${name}.${kind}`, await getView().toImageURL(kind, kind === "png" ? 2 : 1));
    const csv = () => vitling.saveCsv(`${name}.csv`, columns, getRows());
    const table = make("details", {}, make("summary", {}, ...label("Table")));
    table.addEventListener("toggle", () => {
      if (table.open && table.children.length === 1) table.append(vitling.makeTable(columns, getRows()));
    });
    tools.append(
      make("button", { type: "button", onclick: picture("png") }, ...label("PNG")),
      make("button", { type: "button", onclick: picture("svg") }, ...label("SVG")),
      make("button", { type: "button", onclick: csv }, ...label("CSV")),
      table,
    );
  };

  const drawFigure = async (figure) => {
    const chart = vitling.data.charts[figure.dataset.chart];
    const spec = { ...structuredClone(chart.spec), description: chart.description };
    const view = await vitling.draw(figure.querySelector(".drawing"), spec);
    vitling.views.set(chart.id, view);
    figure.dispatchEvent(new CustomEvent("drawn", { detail: view }));
    const tools = figure.querySelector(".tools");
    if (!tools.children.length) {
      vitling.addTools(tools, chart.id, () => vitling.views.get(chart.id), chart.columns, () => vitling.data.charts[chart.id].spec.data.values);
    }
  };

  // Draw what is visible: a chart in a hidden block has no width. Others are drawn when their run is chosen.
  vitling.drawCharts = async () => {
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      if (figure.offsetParent === null || figure.dataset.drawn) continue;
      figure.dataset.drawn = "yes";
      await drawFigure(figure);
    }
  };

  dark.addEventListener("change", () => {
    for (const figure of document.querySelectorAll("[data-drawn]")) delete figure.dataset.drawn;
    document.dispatchEvent(new Event("theme"));
    vitling.drawCharts();
  });
}
