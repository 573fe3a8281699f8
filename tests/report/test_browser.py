"""The page in headless Chromium: no error, no request, hover and click do what they say, names stay text."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.report.made import HOSTILE, make_dense_run, make_full_run, make_images, make_matches, make_report, make_run
from vitling.data.config import DataConfig
from vitling.data.sources.table import read_rows
from vitling.files import make_csv
from vitling.report.page import render_page

OPENING_SECONDS = 3  # of the page's main thread, to open 10,000 images
WAITING_SECONDS = 60  # on a busy machine
SIZE_LIMIT = 15_000_000  # bytes


@contextmanager
def opened(browser, path: Path, **settings):
    """Open a page; fail if it reports an error or a warning, or asks for anything outside of itself.

    The page gets a method cpu_seconds: processor time of its main thread, which is the same on a busy machine.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True, **settings)
    page, problems = context.new_page(), []
    page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: problems.append(request.url) if _is_outside(request.url, path) else None)
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.cpu_seconds = lambda: {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}[
        "TaskDuration"
    ]
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", timeout=1000 * WAITING_SECONDS)
    yield page
    context.close()
    assert not problems


def _is_outside(url: str, path: Path) -> bool:
    return not url.startswith(("data:", "blob:")) and url.partition("#")[0] != path.as_uri()


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_page(make_report(make_full_run())), encoding="utf-8")
    return path


@pytest.fixture
def page(browser, full):
    with opened(browser, full) as page:
        yield page


def wait_until(page, condition: str, tries: int = 100) -> None:
    """Wait for a condition; playwright's own way needs eval, which the page forbids."""
    for _ in range(tries):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never true: {condition}")


def point_of(page, i: int) -> tuple[float, float]:
    """Return where the map shows image i, in pixels of the window."""
    x, y = page.evaluate(
        """i => { const view = vitling.maps.get("0").view, point = view.data("points").find((p) => p.i === i);
        const [x, y] = view.origin(), { left, top } = view.padding();
        return [view.scale("x")(point.x) + x + left, view.scale("y")(point.y) + y + top]; }""",
        i,
    )
    canvas = page.locator(".map canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    return box["x"] + x, box["y"] + y


def test_every_chart_is_drawn_and_has_a_table(page):
    figures = page.locator("figure[data-chart]")
    assert figures.count() == 7
    assert page.locator("figure[data-chart] svg.marks").count() == 7
    for i in range(figures.count()):
        figures.nth(i).locator("summary").click()
        figures.nth(i).locator("tbody tr").nth(1).wait_for()


def test_hovering_shows_an_image_and_a_click_its_neighbours(page):
    page.mouse.move(*point_of(page, 9))
    panel = page.locator(".panel")
    page.locator(".panel[data-image='9']").wait_for()
    assert f"test/9{HOSTILE}.png" in panel.text_content()
    assert "predicted" in panel.text_content()
    assert panel.locator(".gallery .tile").count() == 0
    page.mouse.click(*point_of(page, 9))
    page.wait_for_selector(".panel .gallery .tile")
    names = [tile.get_attribute("title") for tile in panel.locator(".gallery .tile").all()]
    assert names == [f"train/{k}{HOSTILE}.png" for k in (9, 10, 11, 0, 1, 2)]
    image = panel.locator(".chosen .thumb").evaluate("e => getComputedStyle(e).backgroundImage")
    assert image.startswith('url("data:image/webp')


def test_map_changes_projection_and_colour(page):
    before = page.evaluate("vitling.maps.get('0').view.data('points')[0].x")
    page.get_by_role("button", name="PCA").click()
    wait_until(page, f"vitling.maps.get('0').view.data('points')[0].x !== {before}")
    page.get_by_role("button", name="by error").click()
    wait_until(page, "vitling.maps.get('0').view.data('points').some((p) => p.kind === 'wrong')")
    assert page.locator('[data-projection="pca"]').get_attribute("aria-pressed") == "true"


def test_symbols_of_the_map_have_an_area(page):
    """Vega fills the symbols; one that is a line would be invisible."""
    shapes = page.evaluate("vitling.theme().range.symbol")
    assert len(shapes) >= 8
    assert "stroke" not in shapes


def test_map_can_be_used_by_keyboard(page):
    page.get_by_role("button", name="Next mistake").focus()
    page.keyboard.press("Enter")
    assert page.locator(".panel").get_attribute("data-image") == "27"  # the most confident mistake
    page.get_by_role("button", name="Next", exact=True).focus()
    page.keyboard.press("Enter")
    assert page.locator(".panel").get_attribute("data-image") == "28"


def test_a_cell_and_a_pair_show_their_images(page):
    title = page.locator(".gallery-title")
    assert title.text_content() == "Most confident mistakes"
    assert page.locator(".gallery-card .tile").count() == 4
    page.locator("button.pair").first.click()
    assert title.text_content() == f"cat predicted as {HOSTILE}: 4"
    cell = page.locator('figure[data-chart="confusion-0"] svg .mark-rect path').last  # of the last class, correct
    cell.scroll_into_view_if_needed()
    cell.click(force=True)
    assert title.text_content() == "dog, recognised: 12"
    assert page.locator(".gallery-card .tile").count() == 12


def test_corrections_of_suspects_are_saved_as_labels(page, tmp_path):
    root = page.locator(".suspects")
    assert root.locator("tbody tr").count() == root.locator(".thumb").count() == 3
    assert root.locator(".thumb.none").count() == 1
    assert "The first 3 of 5 suspects" in root.text_content()
    save = root.get_by_role("button", name="Save corrections.csv")
    assert save.is_disabled()
    root.locator("select").nth(0).select_option(HOSTILE)
    root.locator("select").nth(2).select_option(label="leave out")
    assert root.locator(".correction-count").text_content() == "2 corrections"
    with page.expect_download() as download:
        save.click()
    download.value.save_as(tmp_path / "corrections.csv")
    rows, columns = read_rows(tmp_path / "corrections.csv", DataConfig())
    assert columns == ["path", "split", "label"]
    assert [row["path"] for row in rows] == [f"'={i}{HOSTILE}.png" for i in (0, 2)]  # no formulas
    assert [row["label"] for row in rows] == [HOSTILE, ""]


def test_no_cell_of_a_csv_is_a_formula(page):
    cells = ["=1", "+a", "@b", "-x", "-0.5", "'=1", "a\tb", "\t=1", 'q"uote', -1.5]
    found = page.evaluate("""cells => vitling.toCsv([{ field: "v", title: "-v" }], cells.map((v) => ({ v })))""", cells)
    assert found == make_csv([["-v"], *([str(cell)] for cell in cells)]).replace("\n", "\r\n")


def test_attention_follows_the_pointer_and_the_arrow_keys(page):
    patches = page.locator(".attention .patches")
    patches.scroll_into_view_if_needed()
    box = patches.bounding_box()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 0.1 * box["height"])
    where = page.locator(".attention .where")
    assert where.text_content() == "Patch in row 1, column 5; head 1 attends most to row 1, column 5 of 4 x 5."
    brightness = """canvas => { const d = canvas.getContext("2d").getImageData(100, 10, 1, 1).data; return d[0]; }"""
    heads = page.locator(".heads canvas")
    assert heads.nth(0).evaluate(brightness) > 2 * heads.nth(1).evaluate(brightness)
    patches.focus()
    page.keyboard.press("ArrowDown")
    assert where.text_content().startswith("Patch in row 2, column 5")


def frame_of(page, selector: str) -> list[float]:
    """Return left, top, width and height of a frame in fractions of its picture."""
    return page.locator(selector).evaluate(
        """e => { const a = e.getBoundingClientRect(), b = e.parentElement.getBoundingClientRect();
        return [(a.left - b.left) / b.width, (a.top - b.top) / b.height, a.width / b.width, a.height / b.height]; }"""
    )


def test_matching_region_follows_the_pointer_and_the_arrow_keys(page):
    patches = page.locator(".matches .patches")
    patches.scroll_into_view_if_needed()
    box = patches.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.3 * box["height"])
    where = page.locator(".matches .where")
    assert where.text_content() == (
        "Patch in row 2, column 3; most similar in the right view: row 2, column 2 of 4 x 5, cosine 0.75 "
        "(least similar: -0.25). Both show the same place of the image."
    )
    assert frame_of(page, ".matches .patches .cursor") == pytest.approx([0.4, 0.25, 0.2, 0.25], abs=0.01)
    assert frame_of(page, ".matches .best") == pytest.approx([0.2, 0.25, 0.2, 0.25], abs=0.01)
    assert frame_of(page, ".matches .place") == pytest.approx([0.2, 0.25, 0.2, 0.25], abs=0.01)
    opacity = "canvas => [...canvas.getContext('2d').getImageData(0, 1, 3, 1).data].filter((_, i) => i % 4 === 3)"
    assert page.locator(".matches .veil").evaluate(opacity) == [224, 0, 224]
    patches.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert "row 4, column 5; most similar in the right view: row 1, column 1" in where.text_content()
    assert "They show different places" in where.text_content()
    assert frame_of(page, ".matches .place") == pytest.approx([0.6, 0.75, 0.2, 0.25], abs=0.01)
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    assert where.text_content().endswith("The right view does not show the place of this patch.")
    assert page.locator(".matches .place").is_hidden()


def test_matching_without_known_places_says_so(browser, tmp_path):
    unknown = replace(make_matches(), same_place=(), shift=())
    path = tmp_path / "unknown.html"
    path.write_text(render_page(make_report(make_run(matches=(unknown,)))), encoding="utf-8")
    with opened(browser, path) as page:
        assert page.locator(".matches .where").text_content().endswith("(least similar: -0.25). ")
        assert page.locator(".matches .place").is_hidden()
        assert "is unknown" in page.locator("#matches").text_content()


def test_names_are_text_everywhere(page):
    assert page.locator("img[src='x']").count() == 0
    labels = page.locator('figure[data-chart="confusion-0"] svg').inner_html()
    assert "&lt;/script&gt;" in labels
    page.locator('figure[data-chart="confusion-0"] .mark-rect path').nth(1).hover(force=True)
    tooltip = page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    assert "</script>" in tooltip.text_content()


def test_charts_are_saved_as_files(page, tmp_path):
    figure = page.locator('figure[data-chart="confusion-0"]')
    for kind, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg"), ("CSV", b"true class,predicted class")):
        with page.expect_download() as download:
            figure.get_by_role("button", name=kind).click()
        download.value.save_as(tmp_path / kind)
        assert (tmp_path / kind).read_bytes().startswith(start)


def test_phone_in_the_dark_has_no_sideways_scrolling(browser, full):
    with opened(browser, full, color_scheme="dark") as page:
        page.set_viewport_size({"width": 360, "height": 740})
        wait_until(page, "document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 29)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_counts_in_the_confusion_matrix_can_be_read(browser, full, scheme):
    """The contrast of WCAG 2.1 between each count and its cell is at least 3."""
    contrast = """() => { const svg = document.querySelector('figure[data-chart="confusion-0"] svg');
      const rgb = (c) => { const e = document.createElement("i"); e.style.color = c; document.body.append(e);
        const found = getComputedStyle(e).color.match(/[\\d.]+/g).map(Number); e.remove(); return found; };
      const luminance = (c) => { const [r, g, b] = rgb(c).map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92
        : ((v / 255 + 0.055) / 1.055) ** 2.4)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const cells = [...svg.querySelectorAll(".mark-rect path")].filter((e) => e.__data__.datum.n);
      const texts = [...svg.querySelectorAll(".mark-text.role-mark text")];
      return cells.map((cell, i) => { const [a, b] = [cell, texts[i]].map((e) => luminance(e.getAttribute("fill")));
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }); }"""
    with opened(browser, full, color_scheme=scheme) as page:
        found = page.evaluate(contrast)
        assert len(found) == 4
        assert min(found) >= 3


def test_controls_and_pictures_have_names(page):
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, select, summary, img, canvas, [role=img]")].filter((e) =>
        !(e.getAttribute("aria-label") || e.alt || e.textContent.trim() || e.parentElement.closest("[aria-label]")))
        .map((e) => e.outerHTML.slice(0, 100))"""
    )
    assert not unnamed
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((e) => Number(e.tagName[1]))")
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_choosing_a_run_shows_its_images(browser, tmp_path):
    second = replace(make_full_run(name="b"), images=make_images(18))
    (tmp_path / "two.html").write_text(render_page(make_report(make_full_run(name="a"), second, make_run("c"))))
    with opened(browser, tmp_path / "two.html") as page:
        assert page.locator(".map:visible").count() == 1
        page.select_option("#run-choice", "1")
        page.wait_for_selector('.map[data-run="1"] canvas')
        assert page.locator(".map:visible").get_attribute("data-run") == "1"
        assert page.evaluate("vitling.maps.get('1').view.data('points').length") == 18


@pytest.mark.parametrize(
    ("metrics", "charts"), [(["mIoU"], 2), (["mIoU", "mIoU"], 3), (["box AP", "mIoU"], 3), (["mIoU", "box AP"] * 2, 5)]
)
def test_dense_runs_have_charts_without_warnings(browser, tmp_path, metrics, charts):
    runs = [make_dense_run(f"run{i}", metric) for i, metric in enumerate(metrics)]
    (tmp_path / "dense.html").write_text(render_page(make_report(*runs)), encoding="utf-8")
    with opened(browser, tmp_path / "dense.html") as page:
        assert page.locator("figure[data-chart] svg.marks").count() == charts
        assert page.locator("#dense figure:visible").count() == 1


def test_a_run_keeps_its_colour_where_it_is_alone(browser, tmp_path):
    runs = make_dense_run("a"), make_dense_run("b", "box AP")
    (tmp_path / "two.html").write_text(render_page(make_report(*runs)), encoding="utf-8")
    strokes = """id => [...document.querySelectorAll(`figure[data-chart="${id}"] svg .mark-line path`)]
        .map((e) => e.getAttribute("stroke"))"""
    with opened(browser, tmp_path / "two.html") as page:
        both = page.evaluate(strokes, "curve-training-loss")
        assert len(set(both)) == 2
        assert page.evaluate(strokes, "curve-validation-ap-of-boxes") == both[1:]
        legend = page.locator('figure[data-chart="curve-validation-ap-of-boxes"] .mark-text.role-legend-label')
        assert legend.all_text_contents() == ["b"]


def test_ten_thousand_images_open_fast_and_fit(browser, tmp_path):
    path = tmp_path / "large.html"
    path.write_text(render_page(make_report(make_full_run(10_000))))
    assert path.stat().st_size < SIZE_LIMIT
    with opened(browser, path) as page:
        assert page.evaluate("vitling.maps.get('0').view.data('points').length") == 10_000
        assert page.cpu_seconds() < OPENING_SECONDS
