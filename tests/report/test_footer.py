"""The footer has one error per dtype, no interval where there is none, and the pages that the system granted."""

from __future__ import annotations

from chunkbench.report import build


def test_each_dtype_has_its_error_and_its_tolerance(make_case, make_run) -> None:
    run = make_run(
        [
            make_case("chunk_attn", dtype="float32", max_error=9e-6, tolerance=1e-5),
            make_case("chunk_attn", dtype="bfloat16", max_error=3e-3, tolerance=2e-2),
        ]
    )
    data = dict(build(run).footer)["data"]
    assert "in float32 9.0e-06 (tolerance 1e-05)" in data
    assert "in bfloat16 3.0e-03 (tolerance 2e-02)" in data


def test_a_single_round_has_no_interval(make_case, make_run) -> None:
    report = build(make_run([make_case("chunk_attn", us=[100.0]), make_case("naive", us=[200.0])]))
    assert "interval" not in dict(report.footer)
    detail = report.tables[2]
    index = [column.name for column in detail.columns].index("interval µs")
    assert [row[index].text for row in detail.rows] == ["-", "-"]


def test_the_version_of_chunkbench_appears_once(make_case, make_run) -> None:
    run = make_run([make_case("chunk_attn", package_version="chunkbench 0.1.0")])
    assert dict(build(run).footer)["software"].count("chunkbench") == 1


def test_the_pages_that_were_granted_are_named(make_case, make_run) -> None:
    def pages(*shares: float | None) -> str | None:
        cases = [make_case(name, huge_share=share) for name, share in zip(("naive", "chunk_attn"), shares, strict=True)]
        return dict(build(make_run(cases)).footer).get("pages")

    assert pages(0.91, 0.982) == "91 to 98% of the implementations' memory in huge pages"
    assert pages(0.0, 0.0) == "small, for all implementations"
    assert pages(None, None) is None
