"use strict";
// The map of the images, the panel beside it, and galleries of mistakes.
{
  const { make } = vitling;
  const FEW_CLASSES = 20; // ten colours and eight shapes: more cannot be told apart

  const describe = (run, i) => {
    const { images, classes } = run;
    const label = images.texts.length ? images.texts[i] : classes[images.labels[i]];
    return { name: images.keys[i], label, predicted: classes[images.predicted[i]], confidence: images.confidence[i] };
  };

  const isWrong = (images, i) => images.predicted.length > 0 && images.labels[i] !== -1 && images.labels[i] !== images.predicted[i];

  const percent = (value) => `${(100 * value).toFixed(value > 0.995 ? 1 : 0)}\u00a0%`;

  const thumbnail = vitling.thumbnail = (sprites, tile, text, side = sprites.side) => {
    const box = make("span", { class: "thumb", role: "img", "aria-label": text });
    box.style.width = box.style.height = `${side}px`;
    if (tile < 0) {
      box.classList.add("none");
      return box;
    }
    const at = tile % sprites.per_sheet, scale = side / sprites.side;
    box.style.backgroundImage = `url(${sprites.sheets[Math.floor(tile / sprites.per_sheet)]})`;
    box.style.backgroundSize = `${sprites.columns * sprites.side * scale}px auto`;
    box.style.backgroundPosition = `${-(at % sprites.columns) * side}px ${-Math.floor(at / sprites.columns) * side}px`;
    return box;
  };

  const card = (run, i, onclick) => {
    const about = describe(run, i);
    const text = `${about.label} predicted as ${about.predicted}, ${percent(about.confidence)}`;
    return make("button", { type: "button", class: "tile", title: about.name, onclick },
      thumbnail(run.images.sprites, run.images.tiles[i], about.name),
      make("span", {}, about.label), make("span", { class: isWrong(run.images, i) ? "wrong" : "right" }, about.predicted),
      make("span", { class: "quiet" }, percent(about.confidence)), make("span", { class: "hidden-text" }, text));
  };

  class ImageMap {
    constructor(root) {
      this.root = root;
      this.run = vitling.data.runs[Number(root.dataset.run)];
      this.images = this.run.images;
      this.panel = root.querySelector(".panel");
      this.projection = this.images.tsne.length ? "tsne" : "pca";
      this.colour = this.images.labels.some((label) => label >= 0) || !this.images.predicted.length ? "class" : "error";
      this.choice = root.querySelector(".class-choice");
      this.description = root.querySelector(".drawing").getAttribute("aria-label");
      this.selected = -1;
      const redraw = () => this.draw();
      for (const button of root.querySelectorAll(".map-controls button")) {
        button.addEventListener("click", () => {
          const [kind, value] = Object.entries(button.dataset)[0];
          this[kind] = value;
          for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
          redraw();
        });
      }
      this.choice?.addEventListener("change", redraw);
      for (const button of root.querySelectorAll("button.step")) button.addEventListener("click", () => this.step(button.dataset.step));
    }

    kindOf(i) {
      const { images, run } = this;
      if (this.colour === "error") return isWrong(images, i) ? "wrong" : "correct";
      const label = images.labels[i];
      if (label < 0) return "no class";
      if (run.classes.length <= FEW_CLASSES) return run.classes[label];
      const chosen = Number(this.choice.value);
      if (label === chosen) return "of this class";
      return images.predicted[i] === chosen ? "predicted as it" : "others";
    }

    kinds() {
      if (this.colour === "error") return ["correct", "wrong"];
      const few = this.run.classes.length <= FEW_CLASSES;
      const named = few ? this.run.classes : ["of this class", "predicted as it", "others"];
      return this.images.labels.includes(-1) ? (this.images.labels.some((l) => l >= 0) ? [...named, "no class"] : ["no class"]) : named;
    }

    points() {
      return this.images[this.projection].map(([x, y], i) => ({ i, x, y, kind: this.kindOf(i) }));
    }

    colours(kinds) {
      const palette = vitling.theme().range.category;
      if (this.colour === "error") return [palette[0], palette[1]];
      const grey = palette[8];
      if (kinds.includes("others")) return [palette[0], palette[1], grey, grey].slice(0, kinds.length);
      return kinds.map((kind, k) => (kind === "no class" ? (kinds.length === 1 ? palette[0] : grey) : palette[k % palette.length]));
    }

    async draw() {
      const spec = structuredClone(this.images.spec), kinds = this.kinds(), shapes = vitling.theme().range.symbol;
      spec.description = this.description;
      spec.data.values = this.points();
      // What matters is drawn last, on top.
      const rank = (point) => (point.kind === "others" || point.kind === "correct" ? 0 : 1);
      spec.data.values.sort((a, b) => rank(a) - rank(b));
      spec.encoding.color.scale = { domain: kinds, range: this.colours(kinds) };
      spec.encoding.shape.scale = { domain: kinds, range: kinds.map((_, k) => shapes[k % shapes.length]) };
      const columns = this.root.clientWidth < 480 ? 2 : 4;
      spec.encoding.color.legend.columns = spec.encoding.shape.legend.columns = columns;
      if (kinds.length === 1) spec.encoding.color.legend = spec.encoding.shape.legend = null;
      if (this.choice) this.choice.parentElement.hidden = this.colour === "error";
      this.view = await vitling.draw(this.root.querySelector(".drawing"), spec, "canvas");
      this.view.addEventListener("mouseover", (event, item) => { if (item?.datum?.i !== undefined) this.show(item.datum.i, false); });
      this.view.addEventListener("click", (event, item) => { if (item?.datum?.i !== undefined) this.show(item.datum.i, true); });
      this.root.dataset.drawn = "yes";
      const tools = this.root.querySelector(".tools");
      if (!tools.children.length) vitling.addTools(tools, `map-${this.root.dataset.run}`, () => this.view, this.columns(), () => this.rows());
    }

    columns() {
      const titles = { name: "image", label: "class", predicted: "predicted", confidence: "confidence", x: "x", y: "y" };
      return Object.entries(titles).map(([field, title]) => ({ field, title, format: { confidence: ".1%", x: ".2f", y: ".2f" }[field] || "" }));
    }

    rows() {
      return this.images[this.projection].map(([x, y], i) => ({ ...describe(this.run, i), x, y }));
    }

    step(kind) {
      const { images } = this, n = images.keys.length;
      if (kind === "mistake") {
        const at = images.mistakes.indexOf(this.selected);
        this.show(images.mistakes[(at + 1) % images.mistakes.length], true);
      } else {
        this.show((Math.max(this.selected, Number(kind) > 0 ? -1 : 0) + Number(kind) + n) % n, true);
      }
    }

    // Hovering previews an image; a click keeps it, with its neighbours.
    show(i, keep) {
      const { images, run } = this, about = describe(run, i);
      if (keep) this.selected = i;
      const facts = make("dl", { class: "about" });
      const add = (term, value, kind = "") => facts.append(make("dt", {}, term), make("dd", { class: kind }, value));
      if (about.label !== undefined) add("class", about.label || "none");
      if (about.predicted !== undefined) add("predicted", `${about.predicted}, ${percent(about.confidence)}`, isWrong(images, i) ? "wrong" : "right");
      const picture = thumbnail(images.sprites, images.tiles[i], about.name, 2 * images.sprites.side);
      const parts = [make("div", { class: "chosen" }, picture, facts), make("p", { class: "file" }, about.name)];
      if (images.tiles[i] < 0) parts.push(make("p", { class: "quiet" }, "No thumbnail: the page keeps them for a part of the images."));
      if (keep) parts.push(make("h4", {}, "Nearest training images"), this.neighbours(i));
      this.panel.replaceChildren(...parts);
      this.panel.dataset.image = String(i);
    }

    neighbours(i) {
      const { training, sprites } = this.images, { classes } = this.run;
      return make("div", { class: "gallery small" }, ...this.images.neighbours[i].map((row) => {
        const label = classes[training.labels[row]];
        const own = this.images.labels[i];
        const kind = label === undefined || own < 0 ? "" : training.labels[row] === own ? "right" : "wrong";
        return make("span", { class: "tile", title: training.keys[row] },
          thumbnail(sprites, training.tiles[row], training.keys[row]), make("span", { class: kind }, label ?? ""));
      }));
    }
  }

  const maps = new Map();
  for (const root of document.querySelectorAll(".map")) maps.set(root.dataset.run, new ImageMap(root));
  vitling.maps = maps;

  vitling.drawMaps = async () => {
    for (const map of maps.values()) if (map.root.offsetParent !== null && !map.root.dataset.drawn) await map.draw();
  };

  const fillGallery = (root, rows, title) => {
    const map = maps.get(root.dataset.run), gallery = root.querySelector(".gallery");
    root.querySelector(".gallery-title").textContent = title;
    gallery.replaceChildren(...rows.map((i) => card(map.run, i, () => {
      map.show(i, true);
      map.root.scrollIntoView({ block: "nearest" });
    })));
    if (!rows.length) gallery.replaceChildren(make("p", { class: "quiet" }, "None of the images on the map."));
  };

  const MOST = 36; // tiles in a gallery
  for (const root of document.querySelectorAll(".gallery-card")) {
    const { run } = maps.get(root.dataset.run), { images, classes } = run;
    fillGallery(root, images.mistakes.slice(0, MOST / 2), "Most confident mistakes");
    const choose = (actual, predicted) => {
      const rows = images.keys.map((_, i) => i).filter((i) => images.labels[i] === actual && images.predicted[i] === predicted);
      const title = actual === predicted ? `${classes[actual]}, recognised` : `${classes[actual]} predicted as ${classes[predicted]}`;
      fillGallery(root, rows.slice(0, MOST), `${title}: ${rows.length}`);
      root.querySelector(".gallery-title").focus({ preventScroll: true });
      root.scrollIntoView({ block: "nearest" });
    };
    const block = root.closest(".of-run");
    for (const button of block.querySelectorAll("button.pair")) {
      button.addEventListener("click", () => choose(Number(button.dataset.true), Number(button.dataset.predicted)));
    }
    block.querySelector(`figure[data-chart^="confusion-"]`)?.addEventListener("drawn", (event) => {
      event.detail.addEventListener("click", (_, item) => { if (item?.datum?.t !== undefined) choose(item.datum.t, item.datum.p); });
    });
  }

  document.addEventListener("theme", () => {
    for (const map of maps.values()) delete map.root.dataset.drawn;
    vitling.drawMaps();
  });
}
