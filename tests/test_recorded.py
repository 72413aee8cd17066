"""The recorded runs can be read and are complete, and the README quotes them correctly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chunkbench.report import build, build_book
from chunkbench.report.book import Book
from chunkbench.runner.reproduce import KERNELS
from chunkbench.store import open_run

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "results" / "recorded"
FOLDER = RECORDED / "epyc-zen3-2-cores"
RUNS = sorted(path.parent for path in RECORDED.glob("*/*/manifest.json"))

PARTIAL = {"nvidia-h200/gpu-kernels", "nvidia-h200/figure4"}
"""The GPU went back before these runs had ended; their finished points are complete."""
NUMBERS = ROOT / "tests" / "recorded"
"""What each recorded run says, as text, so that a change shows in review."""


def numbers(path: Path) -> str:
    """Every table of a run, and every derived figure of every case."""
    report = build(open_run(path))
    lines = []
    for table in report.tables:
        lines += [f"# {table.title}", *(" | ".join(cell.text for cell in row) for row in table.rows)]
    figures = [{name: shown(value) for name, value in vars(row.derived).items()} for row in report.rows]
    names = [name for name in figures[0] if any(row[name] for row in figures)]
    lines += ["# Derived figures", "key,implementation," + ",".join(names)]
    for row, values in zip(report.rows, figures, strict=True):
        lines.append(",".join([row.facts.key[:16], row.facts.implementation, *(values[name] for name in names)]))
    return "\n".join(lines) + "\n"


def shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_recorded_run_still_gives_the_same_numbers(path: Path, request: pytest.FixtureRequest) -> None:
    """After an intended change, `pytest tests/test_recorded.py --accept` stores what the runs say now."""
    kept = NUMBERS / path.parent.name / f"{path.name}.txt"
    if request.config.getoption("--accept"):
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(numbers(path))
    assert numbers(path).splitlines() == kept.read_text().splitlines()


@pytest.fixture(scope="module")
def book() -> Book:
    return build_book([open_run(FOLDER / name) for name in KERNELS], ROOT)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_recorded_run_is_complete(path: Path) -> None:
    run = open_run(path)
    assert run.manifest.interrupted is (f"{path.parent.name}/{path.name}" in PARTIAL)
    assert run.manifest.git.dirty is False
    assert not run.torn
    assert {case.status for case in run.cases} <= {"ok", "noisy", "unavailable", "unsupported"}
    assert path.name in ("memory", "razor-answers") or all(
        case.rounds for case in run.cases if case.status in ("ok", "noisy")
    )


def test_the_results_quote_the_recorded_runs(book: Book) -> None:
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    summary, *runs, _ = book.documents
    assert summary.headline.rstrip(".") in text
    for document in runs:
        assert f"**{document.title}**: {document.verdict} {document.headline}".replace(":  ", ": ").rstrip() in text
    for claim in book.claims:
        assert f"| {claim.id} |" not in text or f"| {claim.id} | {claim.verdict} |" in text


def test_the_results_rank_the_trees_of_every_machine(request: pytest.FixtureRequest) -> None:
    """A machine is a folder with runs of `trees-*`; `--accept` puts its table on the page."""
    trees = [open_run(path) for path in RUNS if path.name.startswith("trees-")]
    lines = []
    for table in build_book(trees, ROOT).rankings:
        rows = [[cell.text.replace("*", r"\*") for cell in row] for row in table.rows]
        heading = [column.name for column in table.columns]
        lines += [f"**{table.title}**", "", *map(_line, [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]), ""]
    page = ROOT / "docs" / "results.md"
    before, rest = page.read_text().split("<!-- rankings -->\n\n")
    kept, after = rest.split("<!-- end of rankings -->")
    if request.config.getoption("--accept"):
        kept = "\n".join([*lines, ""])
        page.write_text(f"{before}<!-- rankings -->\n\n{kept}<!-- end of rankings -->{after}")
    assert kept.splitlines() == lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def test_the_results_quote_table_4() -> None:
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    assert build(open_run(RECORDED / "xeon-amx-2-cores" / "table4")).headline in text


def test_a_headline_of_servers_names_our_variant_that_is_ahead() -> None:
    headline = build(open_run(RECORDED / "epyc-zen4-2-cores" / "table4-smollm2")).headline
    assert headline.endswith(
        " Variants of ChunkLlama are not counted as others: ChunkLlama, radix is faster at 2 points."
    )


def test_the_results_quote_table_3_on_avx512_bf16() -> None:
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    book = build_book([open_run(RECORDED / "epyc-zen5-2-cores" / "table3")], ROOT)
    (document,) = [document for document in book.documents if document.title.startswith("Table 3")]
    assert f"{document.verdict} {document.headline}" in text


def test_the_results_quote_the_gpu() -> None:
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    for name in ("table3-gpu", "gpu-kernels"):
        report = build(open_run(RECORDED / "nvidia-h200" / name))
        assert f"{report.verdict} {report.headline}".strip() in text
        for group in report.groups if name == "table3-gpu" else []:
            rows = {id_: row.derived.latency_us for id_, row in group.rows.items() if row.derived.latency_us}
            ours, cudnn, strongest = rows.pop("chunk_attn"), rows["cudnn"], min(rows.values())
            line = f"| {group.axes['n_p']}/{group.axes['n_s']} | {ours:#.3g} | {cudnn:#.3g} |".replace(". |", " |")
            assert line in text
            assert f"{text.partition(line)[2].partition('x |')[0].rpartition(' ')[2]}" == f"{strongest / ours:.2f}"


def test_the_results_and_docs_quote_the_plug_in_for_vllm() -> None:
    report = build(open_run(RECORDED / "epyc-zen4-2-cores" / "vllm-plugin"))
    latency = {
        (group.axes["n_p"], group.axes["n_s"], group.axes["load"]): [
            f"{group.rows[name].derived.latency_us / 1e3:#.3g}".rstrip(".")
            for name in ("vllm_prefix_caching", "vllm_chunk")
        ]
        for group in report.groups
    }
    results, docs = ((ROOT / path).read_text() for path in ("docs/results.md", "docs/vllm.md"))
    lines = [f"| {vllm} | {ours} | {float(ours) / float(vllm):.2f} |" for vllm, ours in latency.values()]
    assert len(lines) == 8
    assert all(line in docs for line in lines)
    assert sum(line in results for line in lines) == 4
