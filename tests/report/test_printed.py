from __future__ import annotations

import pytest

from chunkbench.report.printed import paper_ratio, paper_us, table3

COLUMNS = {"naive", "xformers", "flash_attn", "paged_attn", "paged_attn_star", "chunk_attn"}


def test_table_3_is_complete() -> None:
    points = {(n_p, quarters * n_p // 4) for n_p in (1024, 2048, 4096) for quarters in (0, 2, 3, 4)}
    assert set(table3()) == {(*point, column) for point in points for column in COLUMNS}


def test_the_last_rows_of_table_3(facts) -> None:
    case = facts("naive", n_p=4096, n_s=4096)
    assert paper_us(case) == 1370.41
    # Section 4.1: at 4096 shared tokens, Naive takes 6.6 times as long as ChunkAttn.
    assert paper_ratio(case, "chunk_attn") == pytest.approx(6.6, abs=0.05)


@pytest.mark.parametrize(("n", "times"), [(1024, 2.76), (2048, 3.06), (4096, 3.22)])
def test_ratio_of_paged_attn_star_with_everything_shared(facts, n: int, times: float) -> None:
    for name in ("paged_attn_star", "vllm_paged_attn_star"):
        assert paper_ratio(facts(name, n_p=n, n_s=n), "chunk_attn") == pytest.approx(times, abs=0.005)


def test_the_unit_is_microseconds(facts) -> None:
    # Table 1: 687.74 us for 32 sequences of 2048 tokens. Over 64 steps the mean context is 2048 + 32 tokens.
    assert paper_us(facts("paged_attn", n_p=2048, n_s=0)) == pytest.approx(687.74 * 2080 / 2048, rel=0.01)


@pytest.mark.parametrize(
    "change",
    [
        {"n_p": 1000},
        {"n_p": (512, 1024)},
        {"n_s": 100},
        {"n_s": None, "tree": ((512, 32),)},
        {"n_c": 32},
        {"batch_size": 16},
        {"heads": 16, "kv_heads": 16},
        {"kv_heads": 8},
        {"head_dim": 64},
        {"chunk_size": 32},
        {"prompts": 2},
    ],
)
def test_another_setup_has_no_number(facts, change: dict[str, object]) -> None:
    assert paper_us(facts(**change)) is None
    assert paper_ratio(facts(**change), "chunk_attn") is None


def test_implementations_that_the_paper_lacks_have_no_number(facts) -> None:
    assert paper_us(facts("shared_prefix_matmul")) is None
    assert paper_ratio(facts("naive"), "shared_prefix_matmul") is None
