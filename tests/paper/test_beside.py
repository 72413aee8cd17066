from __future__ import annotations

from chunkbench.paper.beside import rows


def test_rows_of_the_papers_points_have_its_figures(facts) -> None:
    absent = facts("xformers", status="unavailable", samples_us=())
    own, other = (row.derived for row in rows([facts(), absent], "chunk_attn", 0.95))
    assert (own.latency_us, own.paper_us, own.paper_ratio) == (15.0, 198.87, 1.0)
    assert (other.latency_us, other.paper_us, other.paper_ratio) == (None, 385.79, 385.79 / 198.87)


def test_points_that_the_paper_does_not_have_have_none(facts) -> None:
    (row,) = rows([facts(n_s=511)], "chunk_attn", 0.95)
    assert (row.derived.latency_us, row.derived.paper_us, row.derived.paper_ratio) == (15.0, None, None)
