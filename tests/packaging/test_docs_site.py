"""What the site's builder does to links."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import build_docs as builder

ROOT = Path(__file__).parents[2]


def test_links_fit_the_site() -> None:
    readme, page = ROOT / "README.md", ROOT / "docs" / "serving.md"
    assert builder.moved(readme, "docs/regression.md#in-ci") == "regression.md#in-ci"
    assert builder.moved(readme, "docs/images/table3.svg") == "images/table3.svg"
    assert builder.moved(page, "../README.md") == "index.md"
    assert builder.moved(page, "#the-engine") == "#the-engine"
    assert builder.moved(page, "../examples/my-kernel") is None
    assert builder.moved(page, "notes/design.md#the-cache") is None
    assert builder.moved(page, "../../elsewhere") is None


def test_what_comes_from_another_host_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "SITE", tmp_path)
    (tmp_path / "good.html").write_text('<link rel="canonical" href="https://a.example/"><a href="https://b.example">')
    assert builder.loaded_from_elsewhere() == []
    (tmp_path / "bad.html").write_text('<script src="https://c.example/x.js"></script>')
    (tmp_path / "bad.css").write_text("@font-face { src: url(https://d.example/f.woff2) }")
    assert builder.loaded_from_elsewhere() == ["bad.css: https://d.example/f.woff2", "bad.html: https://c.example/x.js"]


def test_every_recorded_machine_has_a_page() -> None:
    folders = {path.name for path in builder.RECORDED.iterdir() if any(path.glob("*/manifest.json"))}
    assert folders == builder.REPORTS.keys()
