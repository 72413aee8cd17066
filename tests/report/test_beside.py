from __future__ import annotations

from chunkbench.report.printed import rows


def test_rows_at_points_of_the_paper_have_its_figures(facts) -> None:
    absent = facts("xformers", status="unavailable", samples_us=())
    chunk_attn, xformers = (row.derived for row in rows([facts(), absent], "chunk_attn", 0.95))
    assert (chunk_attn.latency_us, chunk_attn.paper_us, chunk_attn.paper_ratio) == (15.0, 198.87, 1.0)
    assert (xformers.latency_us, xformers.paper_us, xformers.paper_ratio) == (None, 385.79, 385.79 / 198.87)


def test_rows_at_other_points_have_no_figures_of_the_paper(facts) -> None:
    (row,) = rows([facts(n_s=511)], "chunk_attn", 0.95)
    assert (row.derived.latency_us, row.derived.paper_us, row.derived.paper_ratio) == (15.0, None, None)
