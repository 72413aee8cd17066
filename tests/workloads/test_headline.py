from __future__ import annotations

import pytest

from chunkbench.report import build


def at(make_case, n_s: int, **us: list[float]):
    return [make_case(name, n_s=n_s, us=means) for name, means in us.items()]


def test_the_strongest_other_counts_and_our_own_ablations_do_not(make_case, make_run) -> None:
    report = build(
        make_run(
            [
                *at(make_case, 0, chunk_attn=[100.0], naive=[91.0], flash_attn=[900.0], chunk_attn_no_tpp=[50.0]),
                *at(make_case, 512, chunk_attn=[100.0], naive=[400.0], flash_attn=[190.0], chunk_attn_torch=[10.0]),
            ]
        )
    )
    assert report.headline == (  # sqrt(0.91 * 1.9) = 1.315
        "ChunkAttn is 0.91x to 1.90x as fast as the strongest other implementation at each of 2 points, "
        "geometric mean 1.31x. Variants of ChunkAttn are not counted as others: chunk_attn_torch is faster at 1 "
        "point, ChunkAttn, no TPP is faster at 1 point."
    )


@pytest.mark.parametrize(
    ("us", "told"),
    [
        ([99.0], True),
        ([90.0, 91.0, 92.0, 90.0, 91.0, 92.0], True),
        ([101.0], False),
        ([90.0, 120.0, 80.0, 115.0, 95.0, 105.0], False),
    ],
)
@pytest.mark.parametrize("variant", ["chunk_attn_no_tpp", "flash_attn"])
def test_a_variant_that_is_ahead_is_said_to_be_no_other(
    make_case, make_run, us: list[float], told: bool, variant: str
) -> None:
    cases = at(make_case, 0, chunk_attn=[100.0] * len(us), naive=[200.0] * len(us), **{variant: us})
    headline = build(make_run(cases)).headline
    assert ("Variants of ChunkAttn are not counted as others" in headline) == (told and variant == "chunk_attn_no_tpp")


def test_losses_name_point_other_implementation_and_ratio_worst_first(make_case, make_run) -> None:
    report = build(
        make_run(
            [
                *at(make_case, 0, chunk_attn=[100.0], naive=[91.0]),
                *at(make_case, 256, chunk_attn=[100.0], vllm_paged_attn=[80.0]),
                *at(make_case, 512, chunk_attn=[100.0], naive=[400.0]),
            ]
        )
    )
    assert report.verdict == "ChunkAttn is slower at 2 of 3 points (n_s): 256 than vLLM (0.80x), 0 than Naive (0.91x)."


def test_without_losses_there_is_no_line(make_case, make_run) -> None:
    report = build(make_run(at(make_case, 0, chunk_attn=[100.0], naive=[200.0])))
    assert report.verdict == ""


@pytest.mark.parametrize("status", ["incorrect", "error", "timeout", "crashed"])
def test_a_fast_wrong_answer_is_not_the_strongest(make_case, make_run, status: str) -> None:
    cases = at(make_case, 0, chunk_attn=[100.0], naive=[200.0])
    cases.append(make_case("flash_attn", n_s=0, us=[1.0], status=status, reason="because"))
    report = build(make_run(cases))
    assert "2.00x as fast as the strongest other" in report.headline


def test_an_implementation_without_a_common_memory_group_is_not_compared(make_case, make_run) -> None:
    cases = [
        make_case("chunk_attn", n_s=0, us=[100.0, 200.0], groups=(0, 1)),
        make_case("naive", n_s=0, us=[300.0], groups=(1,)),
        make_case("flash_attn", n_s=0, us=[10.0], groups=(2,)),
    ]
    report = build(make_run(cases))
    assert "is 1.50x as fast as the strongest other implementation at the one point" in report.headline


def test_doubtful_points_are_counted(make_case, make_run) -> None:
    cases = at(make_case, 0, chunk_attn=[100.0, 100.0, 100.0], naive=[98.0, 99.0, 103.0])
    report = build(make_run(cases))
    assert "1 ratio is not significantly different from 1" in report.headline
    assert ", not significantly different from 1" in report.verdict


def test_points_without_the_baseline_are_left_out_of_the_count(make_case, make_run) -> None:
    cases = at(make_case, 0, chunk_attn=[100.0], naive=[200.0])
    cases += [make_case("naive", n_s=512, us=[100.0]), make_case("chunk_attn", n_s=512, status="oom", reason="40 GB")]
    report = build(make_run(cases))
    assert "at one point" in report.headline


def test_headline_without_a_second_implementation(make_case, make_run) -> None:
    report = build(make_run([make_case("chunk_attn")]))
    assert report.verdict == ""
    assert "At no point was" in report.headline


def test_losses_of_another_baseline(make_case, make_run) -> None:
    cases = at(make_case, 0, chunk_attn=[100.0], naive=[150.0], chunk_attn_no_tpp=[120.0])
    report = build(make_run(cases, baseline="naive"))
    assert report.verdict == "Naive is slower at 1 of 1 point: than ChunkAttn (0.67x)."
