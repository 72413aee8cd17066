"""A run of `kind: serving` with real servers of a tiny model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.store import open_run
from chunkbench.cli.main import cli
from chunkbench.run_error import CannotRunError, RunError
from chunkbench.workloads import register
from chunkbench.workloads.serving import plan
from chunkbench.workloads.serving.budget import Costs, Cut, Part, fit, took_s
from chunkbench.workloads.serving.memory import plan_memory
from chunkbench.workloads.serving.plan import draw_id
from chunkbench.workloads.serving.result import ServerFacts, ServingPoint, ServingResult
from chunkbench.workloads.serving.servers.chunk_llama import StepLog
from tests.conftest import MISSING

if MISSING:
    pytest.skip(f"{', '.join(MISSING)} is not installed", allow_module_level=True)

SYSTEMS = ("vllm", "chunk_llama_no_sharing", "chunk_llama")
EXPERIMENT = """
title: tiny servers
kind: serving
implementations: [vllm, chunk_llama_no_sharing, chunk_llama]
dtype: float32
budget: 10h  # of the default one a stall of a minute leaves nothing to the last points
requests: 6
arrival_seeds: 2
vocabulary: 300
defaults: {model: %s, n_p: 200, n_c: 4, batch_size: 4}
sweep: %s
"""
SWEEP = "[{n_s: 0, load: [50, 150]}, {n_s: n_p, load: 50}]"
POINTS = [(0, 50), (0, 150), (200, 50)]
"""n_s and load."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The experiment's file and its run."""
    folder = tmp_path_factory.mktemp("serving")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = folder / "config.json"
    config.write_text(json.dumps({**sizes, "num_key_value_heads": 2, "head_dim": 16, "model_type": "llama"}))
    file = folder / "tiny.yaml"
    file.write_text(EXPERIMENT % (config, SWEEP))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHUNKBENCH_VLLM_PYTHON", str(folder / "no-python"))
        result = CliRunner().invoke(cli, ["run", str(file), "--out", str(folder / "run")])
        assert result.exit_code == 0, result.output
        yield file, folder / "run"


def facts(path: Path) -> dict[tuple[str, int | None, int | None], ServingResult]:
    register()
    cases = [case for case in open_run(path).cases if isinstance(case, ServingResult)]
    return {(case.implementation, case.n_s, case.load): case for case in cases}


def test_every_system_has_a_row_at_every_point(run: tuple[Path, Path]) -> None:
    assert not (run[1] / "servers").exists()
    rows = facts(run[1])
    assert set(rows) == {(system, n_s, load) for system in SYSTEMS for n_s, load in POINTS}
    for (system, _, _), row in rows.items():
        if system == "vllm":
            assert (row.status, row.measurements) == ("unavailable", ())
            assert "CHUNKBENCH_VLLM_PYTHON names no file" in row.reason
        else:
            assert row.status in ("ok", "noisy"), row.reason


def test_all_requests_are_kept_and_answered(run: tuple[Path, Path]) -> None:
    for (system, n_s, _), row in facts(run[1]).items():
        if system == "vllm":
            continue
        assert [measurement.arrival_seed for measurement in row.measurements] == [0, 1]
        assert len(row.us_per_token) == 2
        for measurement in row.measurements:
            # Above capacity requests grow with the load, so that they arrive for as long.
            assert [request.tokens for request in measurement.requests] == [4] * (9 if row.load == 150 else 6)
            assert {request.prompt_tokens for request in measurement.requests} == {200}
            server = measurement.server
            assert server is not None
            assert server.peak_kv_bytes
            steps = server.every_step
            assert len(steps) == server.steps > 0
            assert max(batch for _, batch, _, _ in steps) == server.peak_batch
            assert sum(tokens for _, _, tokens, _ in steps) == server.computed_tokens
            assert fmean(took for *_, took in steps) == pytest.approx(server.step_s, abs=1e-4)
            if n_s == 0 or system == "chunk_llama_no_sharing":
                assert sum(request.cached_tokens or 0 for request in measurement.requests) == 0


def test_systems_get_the_same_requests_at_the_same_times(run: tuple[Path, Path]) -> None:
    """The reference, vllm, is not here: the first system that runs takes its place, and the facts say so."""
    rows = facts(run[1])
    for n_s, load in POINTS:
        ours, other = rows["chunk_llama", n_s, load], rows["chunk_llama_no_sharing", n_s, load]
        dues = [[[r.due for r in m.requests] for m in row.measurements] for row in (ours, other)]
        assert dues[0] == dues[1]
        assert dues[0][0] != dues[0][1]
        assert ours.requests_per_s == other.requests_per_s
    half, over = rows["chunk_llama", 0, 50], rows["chunk_llama", 0, 150]
    assert half.reference == "chunk_llama_no_sharing"
    assert half.capacity_per_s == over.capacity_per_s
    assert half.requests_per_s == pytest.approx(0.5 * (half.capacity_per_s or 0))


def test_the_report_shows_it(run: tuple[Path, Path], tmp_path: Path) -> None:
    printed = CliRunner().invoke(cli, ["report", str(run[1]), "--detail"]).output
    for text in (
        "Latency under load",
        "Memory, batch and steps of the servers",
        "peak K/V, MB",
        "vLLM: n/a (unavailable)",
        "Chunk",
    ):
        assert text in printed
    assert "load is a share of the capacity of chunk_llama_no_sharing" in " ".join(printed.split())
    svg = tmp_path / "figure.svg"
    written = CliRunner().invoke(cli, ["report", str(run[1]), "--out", str(svg)])
    assert written.exit_code == 0, written.output
    assert "requests per second" in svg.read_text()


def test_a_finished_run_is_not_measured_again(run: tuple[Path, Path]) -> None:
    before = (run[1] / "cases.jsonl").read_bytes()
    result = CliRunner().invoke(cli, ["run", str(run[0]), "--out", str(run[1]), "--resume"])
    assert result.exit_code == 0, result.output
    assert (run[1] / "cases.jsonl").read_bytes() == before


@pytest.mark.slow
def test_what_does_not_fit_is_named_before_and_left_out(run: tuple[Path, Path], tmp_path: Path) -> None:
    """The budget has no room: the first point has what a comparison needs, the others are rows that say why."""
    file = tmp_path / "short.yaml"
    text = run[0].read_text().replace("requests: 6", "requests: 12").replace("arrival_seeds: 2", "arrival_seeds: 3")
    file.write_text(text.replace("[vllm, chunk_llama_no_sharing, chunk_llama]", "[chunk_llama, chunk_llama_radix]"))
    short = ["run", str(file), "--budget", "1s"]
    told = CliRunner().invoke(cli, [*short, "--dry-run"]).output
    result = CliRunner().invoke(cli, [*short, "--out", str(tmp_path / "run"), "-q"])
    assert result.exit_code == 0, result.output
    assert "requests of an arrival seed: 8 in place of 12" in told
    assert "arrival seeds: 2 in place of 3" in told
    left_out = "left out: model=llama n_p=200 n_s=200 b=4 load=50: chunk_llama, chunk_llama_radix"
    assert left_out in told
    rows = facts(tmp_path / "run")
    measured = {key: [len(one.requests) for one in row.measurements] for key, row in rows.items() if row.measurements}
    assert measured == {(system, 0, 50): [8, 8] for system in ("chunk_llama", "chunk_llama_radix")}
    for key, row in rows.items():
        if key not in measured:
            assert row.status == "unsupported"
            assert row.reason.startswith("left out: the budget of 1 s ends before")


@pytest.mark.slow
def test_servers_that_do_not_fit_together_are_measured_in_groups(
    run: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "groups.yaml"
    text = run[0].read_text().replace("[vllm, chunk_llama_no_sharing,", "[chunk_llama_no_sharing, chunk_llama_radix,")
    file.write_text(text.replace(SWEEP, "[{n_s: 0, load: 50}]").replace("requests: 6", "requests: 2"))
    monkeypatch.setattr(plan, "available_memory", lambda: 2_200_000_000)
    result = CliRunner().invoke(cli, ["run", str(file), "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    told = "in groups, one after the other: chunk_llama, chunk_llama_no_sharing; chunk_llama, chunk_llama_radix"
    assert told in result.output
    rows = {system: row for (system, _, _), row in facts(tmp_path / "run").items()}
    seeds = {system: [one.arrival_seed for one in row.measurements] for system, row in rows.items()}
    assert seeds == {"chunk_llama_no_sharing": [0, 1], "chunk_llama_radix": [2, 3], "chunk_llama": [0, 1, 2, 3]}
    assert all(told in row.note for row in rows.values())
    assert {row.reference for row in rows.values()} == {"chunk_llama_no_sharing"}
    assert len({row.requests_per_s for row in rows.values()}) == 1


def test_servers_that_do_not_fit_even_alone_are_refused(run: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    file.write_text(
        run[0].read_text().replace("n_p: 200, n_c: 4, batch_size: 4", "n_p: 1000000, n_c: 4, batch_size: 4096")
    )
    refused = CliRunner().invoke(cli, ["run", str(file), "--out", str(tmp_path / "refused")])
    assert isinstance(refused.exception, CannotRunError)
    told = str(refused.exception)
    assert "no system of this experiment fits into memory: chunk_llama_no_sharing: needs " in told
    assert "are missing" in told


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("}", "load (percent of the reference's capacity) or rate (requests per minute) is missing"),
        (", load: 50, rate: 3}", "cannot be used together with rate"),
        (", load: 50, clients: 3}", "load: cannot be used together with clients; keep one"),
        (", load: 50, heads: 3}", "follows from model; leave it out"),
        (", load: 50}\ntexts: no.jsonl", "bundled sets are conversations, questions"),
        (", load: 50}\nprotocols: paper", "protocols: is only for `kind: decode`"),
        (", load: 50}\nequal_answers: 3", "equal_answers: needs texts: a set or a file of questions"),
        (", clients: 2, forced: 5}\nconstrained: facts", "forced is an axis of `share` only"),
        (", clients: 2, forced: 5}", "forced is an axis of `share` only"),
        (", clients: 2}\nconstrained: share", "the axis forced (percent) is missing"),
        (", clients: 2, forced: 5}\nconstrained: shares", "is not known here"),
        (", clients: 2, forced: 5}\nconstrained: share\ntexts: questions", "share nothing"),
    ],
)
def test_wrong_files_say_what_is_wrong(tmp_path: Path, axes: str, message: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(EXPERIMENT % ("small-llama", f"\n- {{n_s: 0{axes}"))
    result = CliRunner().invoke(cli, ["validate", str(file)])
    assert result.exit_code == 2
    assert message in result.output


def test_texts_need_a_tokenizer(run: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(run[0].read_text() + "texts: questions\n")
    result = CliRunner().invoke(cli, ["run", str(tmp_path / "t.yaml"), "--dry-run"])
    assert "has no tokenizer for questions; give a checkpoint's folder" in str(result.exception)
    assert isinstance(result.exception, RunError)


def test_a_tree_of_prompts_does_not_set_the_batch(run: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "tree.yaml"
    file.write_text(run[0].read_text().replace(SWEEP, "[{tree: [[64, [[64, 1], [64, 1]]], [100, 1]], load: 50}]"))
    result = CliRunner().invoke(cli, ["run", str(file), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "1 points, 2 arrival seeds of 6 requests for each system" in result.output
    assert "unavailable: CHUNKBENCH_VLLM_PYTHON names no file" in result.output
    assert "n_p=200 tree=64x(64x1 64x1) 100x1 b=4 load=50" in result.output
    # Requests are drawn from this text: another one would draw others when a recorded run is resumed.
    (point,) = load_experiment(file).points("cpu", "float32")
    axes = "n_p=200 n_s=- n_c=4 batch_size=4 prompts=1"
    assert f"{axes} tree=64x(64x1 64x1) 100x1 load=50%" in draw_id(point)


GIB = 1 << 30
seconds = st.floats(0, 100)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    fewest_requests, fewest_seeds = draw(st.integers(1, 8)), draw(st.integers(0, 2))
    requests, seeds = fewest_requests + draw(st.integers(0, 40)), fewest_seeds + draw(st.integers(0, 3))
    return Part(requests, fewest_requests, seeds, fewest_seeds, draw(seconds), draw(seconds), draw(seconds))


@given(st.lists(parts(), max_size=6), st.floats(0, 20_000))
def test_what_is_kept_fits_and_is_cut_in_order(left: list[Part], left_s: float) -> None:
    cuts = fit(left, left_s)
    assert len(cuts) == len(left)
    kept = [number for number, cut in enumerate(cuts) if cut != Cut(0, 0)]
    assert kept == list(range(len(kept)))  # points go from the last on
    assert took_s(left, cuts) <= left_s or not kept
    for part, cut in zip(left[: len(kept)], cuts, strict=False):
        assert part.fewest_requests <= cut.requests <= part.requests
        assert part.fewest_seeds <= cut.seeds <= part.seeds
    chosen = list(zip(left, cuts, strict=True))[: len(kept)]
    if any(cut.seeds < part.seeds for part, cut in chosen):  # seeds go only when the fewest requests are too many
        assert took_s(left, [part.cut(0, 0) for part in left[: len(kept)]]) > left_s
    if len(kept) < len(left):  # and points only at the fewest requests and seeds
        assert took_s(left, [part.cut(0, part.seeds) for part in left[: len(kept) + 1]]) > left_s
    assert fit(left, 1e9) == [Cut(part.requests, part.seeds) for part in left]


@pytest.mark.parametrize(
    ("left_s", "cuts"),
    [(176, [(24, 3)] * 2), (80, [(8, 3)] * 2), (79, [(12, 2)] * 2), (60, [(8, 2)] * 2), (59, [(14, 3), (0, 0)])],
)
def test_the_order_of_cuts(left_s: float, cuts: list[tuple[int, int]]) -> None:
    """Two points; each request of a seed takes a second, each seed two more, each point ten more."""
    assert fit([Part(24, 8, 3, 2, once_s=10, seed_s=2, request_s=1)] * 2, left_s) == [Cut(*cut) for cut in cuts]


def point(load: int, n_s: int = 0) -> ServingPoint:
    return ServingPoint(n_p=100, n_s=n_s, n_c=8, load=load, batch_size=4, device="cpu", dtype="float32")


def test_costs_are_learned() -> None:
    costs = Costs({"a": 15, "b": 15}, lambda point: 2.0)
    assert costs.one_s("r", point(80)) == 2.0
    costs.learn_capacity("r", point(80), 2.0)  # four times as fast as assumed
    assert costs.one_s("r", point(80)) == 0.5
    assert costs.one_s("other", point(80)) == 0.5
    assert costs.gap_s("r", point(50)) == 1.0
    # A system that keeps up: a request adds the gap to the next one; the last answer takes as long as any.
    costs.learn_turn("a", "r", point(50), 8, last_due=7.0, took_s=9.0, fastest_s=2.0)
    assert costs.turn("a", "r", point(50)) == pytest.approx((2.0, 1.0))
    # One that does not: what it is behind at the end grows with the requests.
    costs.learn_turn("b", "r", point(200), 8, last_due=1.75, took_s=9.75, fastest_s=2.0)
    assert costs.turn("b", "r", point(200)) == pytest.approx((2.0, 1.0))
    # Elsewhere a system is as slow as it was seen, in requests of the reference.
    assert costs.turn("b", "other", point(200)) == pytest.approx((2.0, 1.0))
    costs.learn_capacity("other", point(200), 1.0)
    assert costs.turn("b", "other", point(200)) == pytest.approx((4.0, 2.0))


@pytest.mark.parametrize(
    ("room", "needed", "besides", "kv_gib", "groups"),
    [
        (20, 4, {"v": 1, "p": 1, "c": 1, "r": 1}, 4, (("v", "p", "c", "r"),)),
        # What a full batch does not need is cut for all alike.
        (14, 2, {"v": 1, "p": 1, "c": 1, "r": 1}, 2.5, (("v", "p", "c", "r"),)),
        # Groups share the baseline, and the first one has the reference.
        (16, 4, {"v": 1, "p": 1, "c": 1, "r": 1}, 4, (("c", "v", "r"), ("c", "p"))),
        (11, 4, {"p": 1, "v": 1, "c": 1}, 4, (("c", "v"), ("c", "p"))),
        (5, 4, {"c": 1, "e": None}, 4, (("c", "e"),)),  # a server elsewhere takes no memory
    ],
)
def test_servers_fit_together_or_in_groups(
    room: int, needed: int, besides: dict[str, int | None], kv_gib: float, groups: tuple[tuple[str, ...], ...]
) -> None:
    sizes = {name: None if size is None else size * GIB for name, size in besides.items()}
    found = plan_memory(sizes, 4 * GIB, needed * GIB, "c", "v", room * GIB)
    assert (round(found.kv_bytes / GIB, 3), found.groups, dict(found.too_large)) == (kv_gib, groups, {})
    assert bool(found.difference) == ((kv_gib, len(groups)) != (4, 1))


def test_what_does_not_fit_alone_is_named_with_what_is_missing() -> None:
    found = plan_memory({"c": GIB, "v": 4 * GIB}, 4 * GIB, 4 * GIB, "c", "v", 6 * GIB)
    assert found.groups == (("c",),)
    assert found.too_large == {"v": "needs 8.6 GB, 6.4 GB are available: 2.1 GB are missing"}


@given(
    st.lists(st.integers(0, 4 * GIB) | st.none(), min_size=1, max_size=6),
    st.integers(1, 8 * GIB),
    st.integers(1, 8 * GIB),
    st.integers(0, 40 * GIB),
)
def test_no_group_needs_more_than_there_is(sizes: list[int | None], asked: int, needed: int, room: int) -> None:
    besides = dict(zip("cvprst", sizes, strict=False))
    found = plan_memory(besides, asked, needed, "c", "v", room)
    assert min(asked, needed) <= found.kv_bytes <= asked
    for group in found.groups:
        assert sum(size + found.kv_bytes for name in group if (size := besides[name]) is not None) <= room
    measured = [name for group in found.groups for name in group if name != "c"]
    assert sorted([*measured, *(set(found.too_large) - {"c"})]) == sorted(set(besides) - {"c"})


def test_steps_in_a_window_and_the_idle_time_between_them(tmp_path: Path) -> None:
    steps = [(1.0, 1), (2.0, 2), (2.1, 3), (5.0, 4), (9.0, 5)]
    fields = {"s": 0.1, "overhead_s": 0.01, "tree_s": 0.002, "prompt_tokens": 7, "kv_bytes": 64}
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps({**fields, "ended": ended, "batch": batch}) + "\n" for ended, batch in steps))
    moments = StepLog(path).between(1.5, 6.0)
    assert [(moment.at, moment.batch) for moment in moments] == [(2.0, 2), (2.1, 3), (2.1, 0), (4.9, 0), (5.0, 4)]
    assert [moment.kv_bytes for moment in moments] == [64, 64, 0, 0, 64]
    assert [moment.seconds for moment in moments] == [0.1, 0.1, None, None, 0.1]
    facts = ServerFacts.of(moments, 1.5, sampled=False)
    assert facts is not None
    assert (facts.steps, facts.overhead_s, facts.tree_s) == (3, 0.01, 0.002)
