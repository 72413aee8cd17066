from __future__ import annotations

from chunkbench.bench.analysis.points import describe, group, varying
from chunkbench.bench.experiment.values import show_value


def test_a_case_without_threads_belongs_to_its_point(facts) -> None:
    ran, absent = (
        facts("chunk_attn", threads=2),
        facts("xformers", threads=None, status="unavailable", samples_us=()),
    )
    ((axes, members),) = group([ran, absent])
    assert members == [ran, absent]
    assert "threads" not in axes


def test_swept_threads_separate_groups(facts) -> None:
    cases = [facts(name, threads=threads) for threads in (2, 1) for name in ("chunk_attn", "naive")]
    groups = group(cases)
    assert [axes["threads"] for axes, _ in groups] == [1, 2]
    assert varying(groups) == ["threads"]


def test_groups_are_sorted_by_their_axes(facts) -> None:
    cases = [
        facts(n_p=n_p, n_s=n_s) for n_p, n_s in [(4096, 0), (1024, 512), (1024, 0), ((512, 1024), 0), (1024, None)]
    ]
    groups = group(cases)
    assert [(axes["n_p"], axes["n_s"]) for axes, _ in groups] == [
        ((512, 1024), 0),
        (1024, None),
        (1024, 0),
        (1024, 512),
        (4096, 0),
    ]
    assert varying(groups) == ["n_p", "n_s"]


def test_protocol_and_cache_separate_groups(facts) -> None:
    groups = group([facts(), facts(protocol="paper", cache="warm")])
    assert varying(groups) == ["protocol", "cache"]


def test_axes_as_text() -> None:
    assert describe({"n_p": 1024, "n_s": None}, ["n_p", "n_s"]) == "n_p=1024 n_s=-"
    assert show_value((512, 1024)) == "512-1024"
    assert show_value(((512, ((64, 2), (0, 2))), (128, 4))) == "512x(64x2 0x2) 128x4"
