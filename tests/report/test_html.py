"""The HTML report in a real browser: content, sorting, requests and width."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkbench.bench.store.manifest import MachineFacts
from chunkbench.report.book import build_book
from chunkbench.report.formats import render
from tests.invented_runs import case, run_in, table3_in

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
HIDDEN = "getComputedStyle(e, '::before').display === 'none'"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here; `make readers` installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield started
        started.close()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("runs")
    rates = (
        case(name, n_p=2048, n_s=2048, n_c=n_c, us=[us * n_c])
        for n_c, (name, us) in itertools.product((64, 512), (("naive", 9.0), ("chunk_attn", 1.0)))
    )
    words = {"name": "figure3", "title": "Figure 3 & <more>", "figure": "token_rate", "paper": "figure3"}
    return render(build_book([table3_in(folder), run_in(folder, rates, **words)], folder), "html")


@pytest.fixture
def page(text: str, browser, tmp_path: Path) -> Iterator[Any]:
    """The opened page; `page.complaints` lists console messages, errors and requests."""
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    opened = browser.new_page(viewport={"width": 1440, "height": 900})
    opened.complaints = []
    opened.on("console", lambda message: opened.complaints.append(message.text))
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.on("request", lambda request: opened.complaints.append(request.url))
    opened.goto((tmp_path / "report.html").as_uri())
    assert opened.complaints.pop(0).endswith("/report.html")
    yield opened
    opened.close()


def test_the_page_renders_without_errors_or_requests(page) -> None:
    assert page.complaints == []
    assert page.title() == "The ChunkAttention paper, rerun"
    headings = page.locator("h2").all_text_contents()
    assert headings == [
        "Summary",
        "Table 3: attention latency with shared prompts",
        "Figure 3 & <more>",
        "Claims in full",
        "Tables of the paper that no run here measures",
        "Method",
        "How to repeat it",
    ]
    assert page.locator("figure svg").count() == 2
    assert 20 < page.locator("#claims tbody tr").count() < 91, "claims without a run are lines below the table"
    assert page.locator("#claims li").count() > 5


@pytest.mark.parametrize("width", [700, 1280, 2560])
def test_a_table_that_is_cut_off_says_that_it_scrolls(page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    says = "getComputedStyle(e, '::before').content.includes('scroll it to the side')"
    regions = "[...document.querySelectorAll('.scroll')]"
    page.wait_for_function(f"{regions}.every((e) => {says} === (e.scrollWidth > e.clientWidth))", timeout=5000)
    signs = page.evaluate(f"{regions}.map((e) => {says})")
    assert not all(signs)
    assert any(signs) or width > 1000
    assert page.complaints == []
    page.emulate_media(media="print")
    assert page.evaluate(f"{regions}.every((e) => !e.matches('.wide') || {HIDDEN})")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_page(page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    for width in (380, 1440) if scheme == "light" else (768, 2560):
        page.set_viewport_size({"width": width, "height": 900})
        page.reload()
        page.complaints.clear()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        contents, sheet = (page.locator(name).bounding_box() for name in ("nav", ".sheet"))
        beside = contents["x"] + contents["width"] <= sheet["x"]
        assert beside or contents["y"] + contents["height"] <= sheet["y"], "the contents overlap the report"
        assert beside == (width >= 1280)
        assert page.locator("details.contents").evaluate("e => e.open") == beside
        picture = page.locator("figure svg").first.bounding_box()
        assert picture["width"] >= 0.7 * sheet["width"]
        # Wide content scrolls inside its own region, which a keyboard can reach.
        for region in page.locator(".scroll").all():
            assert region.get_attribute("tabindex") == "0"
            assert region.evaluate("e => e.getBoundingClientRect().right") <= width


def test_a_press_on_a_heading_sorts_and_keeps_the_rows_of_a_point_together(page) -> None:
    for summary in page.locator("#table3 summary").all():
        summary.click()
    latencies = "#table3 table >> nth=0"
    heading = page.locator(latencies).locator("thead th").nth(2)
    before = page.locator(latencies).locator("tbody").all_text_contents()
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"

    def values() -> list[float]:
        cells = page.locator(latencies).locator("tbody > tr:first-child > :nth-child(3)").all_text_contents()
        return [float(cell.strip().strip("~").replace(",", "")) for cell in cells]

    assert values() == sorted(values())
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert values() == sorted(values(), reverse=True)
    assert sorted(page.locator(latencies).locator("tbody").all_text_contents()) == sorted(before)
    ratios = page.locator("#table3 table").nth(1)
    ratios.locator("thead button").nth(1).click()
    assert {body.locator("tr").count() for body in ratios.locator("tbody").all()} == {2}  # "here" and "paper"


def test_the_verdict_and_the_picture_come_before_the_first_table(page) -> None:
    verdict = page.locator(".verdict")
    assert "as fast as the strongest other implementation" in verdict.text_content()
    assert "Of the paper's 20 timed claims 2 hold" in verdict.text_content()
    tops = [page.locator(name).first.bounding_box()["y"] for name in (".verdict", "figure svg", "table")]
    assert tops == sorted(tops)
    assert tops[1] < 400


def test_tables_are_folded_and_links_and_print_open_them(page) -> None:
    folded = page.locator("#table3 details.table")
    assert folded.count() > 2
    assert not any(details.evaluate("e => e.open") for details in folded.all())
    page.evaluate("location.hash = document.querySelector('#table3 details.table caption').id")
    page.wait_for_function("document.querySelector('#table3 details.table').open")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0


def test_the_dark_scheme_is_dark_and_print_is_white(page) -> None:
    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    page.emulate_media(color_scheme="light")
    light = background()
    page.emulate_media(color_scheme="dark")
    assert background() != light == "rgb(255, 255, 255)"
    page.emulate_media(media="print", color_scheme="dark")
    assert background() == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()


def test_the_page_has_landmarks_captions_and_unique_ids(page) -> None:
    assert [page.locator(tag).count() for tag in ("main", "nav", "header", "h1")] == [1, 1, 1, 1]
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    for attribute in ("aria-labelledby", "href"):
        script = "a => [...document.querySelectorAll(`[${a}]`)].map(e => e.getAttribute(a))"
        for value in page.evaluate(script, attribute):
            if attribute == "aria-labelledby" or value.startswith("#"):
                assert value.lstrip("#") in ids, value
    assert all(page.locator("table").evaluate_all("tables => tables.map(t => t.caption.textContent.trim() !== '')"))


def test_a_run_on_two_kinds_of_machines_has_a_chapter_of_each(make_case, make_run) -> None:
    run = make_run([make_case("naive", machine=machine) for machine in "ah"])
    machines = {"a": MachineFacts(kind="A100"), "h": MachineFacts(kind="H100")}
    run.manifest = run.manifest.model_copy(update={"machines": machines})
    book = build_book(run.by_machine_kind(), run.path)
    assert book.title == run.manifest.experiment.title
    assert [chapter.report.title for chapter in book.chapters] == [
        f"{book.title}, on {kind}00" for kind in ("A1", "H1")
    ]
    assert book.machine_kinds == ["A100", "H100"]
