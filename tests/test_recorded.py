"""The recorded runs can be read and are complete, and the README quotes them correctly."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from click.testing import CliRunner

from chunkbench.bench import workload
from chunkbench.bench.analysis.derive import derive
from chunkbench.bench.experiment.point import Case
from chunkbench.bench.runner.reproduce import KERNELS
from chunkbench.bench.store import TimedResult, open_run
from chunkbench.cli.main import cli
from chunkbench.report import html, latex
from chunkbench.report.book import Book, build_book
from chunkbench.report.build import build
from chunkbench.report.claims import Claim, claims_by_machine
from chunkbench.report.claims.document import PAPER, document_of, measured, parts_of
from chunkbench.report.claims.evidence import latency_ratio
from chunkbench.report.formats import names, render
from chunkbench.report.numbers import NOTHING, megabytes, percent, significant, span, times
from chunkbench.workloads.answers.metrics import METRICS as ANSWERS
from chunkbench.workloads.decode.head_caches import head_caches
from chunkbench.workloads.decode.latent_report import break_evens
from chunkbench.workloads.decode.query_rows import facts_of, over_limit, over_single, single_rows
from chunkbench.workloads.replay import metrics as replay
from chunkbench.workloads.replay.printed import stated_by_paged_attention
from chunkbench.workloads.serving.layout import saved_by_sharing
from chunkbench.workloads.serving.machine_share import best_rates, bound_by, machine_share, parts_of_step
from chunkbench.workloads.serving.metrics import METRICS

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "results" / "recorded"
FOLDER = RECORDED / "epyc-zen3-2-cores"
MACHINES = sorted({RECORDED / path.relative_to(RECORDED).parts[0] for path in RECORDED.rglob("manifest.json")})
RUNS = sorted(path.parent for path in RECORDED.rglob("manifest.json"))
"""Most lie in the folder of a machine; one is the folder itself."""

PARTIAL = {"nvidia-h200/gpu-kernels", "nvidia-h200/figure4"}
"""The GPU went back before these runs had ended; their finished points are complete."""
DIRTY = {"epyc-zen3-2-cores-authors"}
TIMED = (PAPER, "timed")
MACHINE_NAMES = {
    "AMD EPYC (Zen 3)": "EPYC Zen 3",
    "AMD EPYC (Zen 4)": "EPYC Zen 4",
    "AMD EPYC (Zen 5)": "EPYC Zen 5",
    "NVIDIA H200, Intel(R) Xeon(R) Processor (Emerald Rapids)": "NVIDIA H200",
    "Intel(R) Xeon(R) Processor, AMX": "Xeon, AMX",
    "Intel(R) Xeon(R) Processor (Emerald Rapids)": "Xeon, AVX512-BF16",
}
AXES_OF_LIMITS = {
    "n_c": 1,
    "batch_size": 32,
    "prompts": 1,
    "heads": 32,
    "kv_heads": 32,
    "head_dim": 128,
    "dtype": "bfloat16",
}
"""The points of `cpu-kernels` whose share of the roofline stands on the page on kernels."""
KEPT = ROOT / "tests" / "recorded"
"""What the commands print of recorded runs, as text, so that a change shows in review."""


def name_of(path: Path) -> str:
    return str(path.relative_to(RECORDED))


def check(name: str, text: str, accept: bool) -> None:
    """Compare a text with the kept one: a section of a file. After an intended change, keep it with
    `pytest tests/test_recorded.py --accept`."""
    file, _, section = name.partition("/")
    kept = KEPT / f"{file}.txt"
    sections = dict(part.split("\n", 1) for part in kept.read_text().split("==== ")[1:]) if kept.exists() else {}
    if accept:
        sections[section] = text
        kept.write_text("".join(f"==== {title}\n{sections[title]}" for title in sorted(sections)))
    assert text.splitlines() == sections[section].splitlines()


def printed(path: Path) -> str:
    """What `chunkbench report` prints of a run: as Markdown, the keys of CSV, and a hash of every other format."""
    run = open_run(path)
    report = build(run)
    texts = {form: render(report, form) for form in names("documents", "records", "data")}
    texts["html"] = render(build_book([run], path.parent, [report]), "html")
    texts["latex, one table"] = latex.as_printed(report)
    assert texts["latex"].isascii()
    assert "[U+" not in texts["latex"], "a character that LaTeX cannot print"
    hashes = [f"{form}: {hash_of(text)}" for form, text in texts.items() if form != "markdown"]
    figures = [{name: shown(value) for name, value in vars(row.derived).items()} for row in report.rows]
    known = [name for name in figures[0] if any(row[name] for row in figures)]
    lines = [texts["markdown"], "# CSV", texts["csv"].partition("\n")[0], "# Other formats", *hashes]
    lines += ["# Derived figures", "key,implementation," + ",".join(known)]
    for row, values in zip(report.rows, figures, strict=True):
        lines.append(",".join([row.facts.key[:16], row.facts.implementation, *(values[name] for name in known)]))
    return "\n".join(lines) + "\n"


def hash_of(text: str) -> str:
    """Of the lines in order of the alphabet. Numbers count with ten digits: libraries may add in another order."""
    rounded = re.sub(r"-?\d+\.\d{8,}(e-?\d+)?", lambda number: f"{float(number[0]):.10g}", text)
    return sha256("\n".join(sorted(rounded.splitlines())).encode()).hexdigest()[:16]


def shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("path", RUNS, ids=name_of)
def test_a_recorded_run_is_reported_as_before(path: Path, accept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html.figures, "draw", lambda *_: None)  # pictures take most of the time, and are no text
    check(name_of(path), printed(path), accept)


def test_claims_are_judged_as_before(accept: bool) -> None:
    """Of every machine, and of all of them."""
    opened = {path: open_run(path) for path in RUNS}
    for machine in (*MACHINES, RECORDED):
        output = document_of([run for path, run in opened.items() if path.is_relative_to(machine)])
        text, hashed = f"{render(output, 'markdown')}\n", f"json: {hash_of(render(output, 'json'))}\n"
        if machine == RECORDED:  # readers of the results page get this text
            check_file(RECORDED / "verdicts.md", text, accept)
            text = ""
        check(f"claims/{machine.name}", text + hashed, accept)


COMPARED = {
    "one-schema": ("xeon-amx-2-cores/cpu-kernels", "xeon-amx-2-cores/cpu-kernels-without-amx"),
    "two-schemas": ("epyc-zen4-2-cores/cpu-kernels", "epyc-zen5-2-cores/cpu-kernels"),
    "servers": ("epyc-zen4-2-cores/table4-smollm2-caching", "epyc-zen4-2-cores/table4-smollm2-caching-radix"),
}


@pytest.mark.parametrize("name", COMPARED)
def test_runs_are_compared_as_before(name: str, accept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["chunkbench"])  # the report says how to repeat it
    paths = [str((RECORDED / path).relative_to(ROOT)) for path in COMPARED[name]]
    texts = {form: output_of("compare", *paths, "--format", form) for form in ("markdown", "csv", "json", "junit")}
    kept = [texts.pop("markdown"), *(f"{form}: {hash_of(text)}" for form, text in texts.items())]
    check(f"compare/{name}", "\n".join(kept) + "\n", accept)


def test_what_there_is_is_listed_as_before(accept: bool) -> None:
    kinds = [("--kind", kind) for kind in workload.names()]
    texts = [output_of("list", *kind, "--format", "csv") for kind in ((), *kinds)]
    check("list", "\n".join([*texts, output_of("validate", "--schema")]), accept)


def output_of(*words: str) -> str:
    return CliRunner().invoke(cli, words).stdout


@pytest.fixture(scope="module")
def book() -> Book:
    return build_book([open_run(FOLDER / name) for name in KERNELS], ROOT)


@pytest.mark.parametrize("path", RUNS, ids=name_of)
def test_a_recorded_run_is_complete_and_its_keys_are_those_of_its_points(path: Path) -> None:
    run = open_run(path)
    kind = workload.get(run.manifest.experiment.kind)
    for result in run.cases:
        # A result has the number of threads that was used; a point that swept no threads has none.
        point = kind.point.from_json(result.model_dump() | {"threads": None})
        timing = (result.protocol, result.cache, result.mode) if isinstance(result, TimedResult) else ()
        assert Case(point, result.implementation, *timing).key == result.key
        assert type(result).model_fields.keys() >= kind.point.model_fields.keys()
    assert run.manifest.interrupted is (name_of(path) in PARTIAL)
    assert run.manifest.git.dirty is (name_of(path) in DIRTY)
    assert not run.torn
    # A prediction is no failure: vLLM's copies of 32 shared prompts take longer than the case limit.
    failed = {case.status for case in run.cases if not case.reason.startswith("predicted: ")}
    assert failed <= {"ok", "noisy", "unavailable", "unsupported"}
    assert path.name in ("memory", "razor-answers", "kv8-answers") or all(
        case.rounds for case in run.cases if case.status in ("ok", "noisy")
    )


def test_the_results_quote_the_recorded_runs(book: Book) -> None:
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    summary, *runs, _ = book.documents
    assert summary.headline.rstrip(".") in " ".join((ROOT / "README.md").read_text().split())
    for one in runs:
        quoted = f"**{one.title}**: {one.verdict} {one.headline}".replace(":  ", ": ").rstrip()
        assert f"**{one.title}**" not in text or quoted in text
    for claim in next(iter(book.claims.values())):
        assert f"| {claim.id} |" not in text or f"| {claim.id} | {claim.verdict} |" in text


def test_the_results_rank_the_trees_of_every_machine(accept: bool) -> None:
    """A machine is a folder with runs of `trees-*`; `--accept` puts its table on the page."""
    trees = [open_run(path) for path in RUNS if path.name.startswith("trees-")]
    lines = []
    for table in build_book(trees, ROOT).rankings:
        rows = [[cell.text.replace("*", r"\*") for cell in row] for row in table.rows]
        heading = [column.name for column in table.columns]
        lines += [f"**{table.title}**", "", *map(_line, [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]), ""]
    check_block("rankings", lines, accept)


def test_the_results_have_the_verdicts_of_every_machine(accept: bool) -> None:
    runs = [open_run(path) for path in RUNS]
    counts = document_of(runs).tables[0]
    rows = [[cell.text for cell in row] for row in counts.rows if row[1].text == PAPER]
    rows = [row for row in rows if not re.fullmatch(r"\d+ not measured", row[2])]
    heading = [column.name for column in counts.columns]
    tallies = [[shortened(row[0]), *row[2:4]] for row in rows]
    lines = [_line(row) for row in ([heading[0], *heading[2:4]], ["---"] * 3, *tallies)]
    check_block("verdicts", [*lines, ""], accept)
    parts = [part for run in runs for part in parts_of(run.path.name, run.manifest, derive(run.cases))]
    judged = {
        machine: claims
        for machine, claims in claims_by_machine(parts).items()
        if any((one.text, one.basis) == TIMED and one.verdict != "not measured" for one in claims)
    }
    heading = ["claim", "basis", *map(shortened, judged)]
    lines = [_line(heading), _line(["---"] * len(heading))]
    for of_machines in zip(*judged.values(), strict=True):
        claim = of_machines[0]
        if claim.text == PAPER:
            verdicts = [_told(one) for one in of_machines]
            what = f"{claim.id}: {claim.quantity} ({claim.paper})".replace("*", r"\*")
            lines.append(_line([what, claim.basis, *verdicts]))
    check_block("claims", [*lines, ""], accept)
    timed = {
        shortened(machine): Counter(one.verdict for one in claims if (one.text, one.basis) == TIMED)
        for machine, claims in judged.items()
    }
    lost = ", ".join(
        f"{own['does not hold']} on the {machine}" for machine, own in timed.items() if own["does not hold"]
    )
    other = sum(own["different here"] for own in timed.values())
    readme = (ROOT / "README.md").read_text()
    assert f"Timed claims that do not hold: {lost}; different here: {other}, on all machines (" in readme


def _told(claim: Claim) -> str:
    """Verdict and figure of a claim on a machine; empty if it was not measured. Intervals are left out."""
    if claim.verdict == "not measured":
        return ""
    figure = measured(claim).partition(" (")[0]
    return (
        claim.verdict if claim.basis in ("arithmetic", "remark") or figure == NOTHING else f"{claim.verdict}, {figure}"
    )


def shortened(machine: str) -> str:
    """The name of a recorded machine, as pages say it."""
    return MACHINE_NAMES.get(machine, machine)


def test_the_results_have_the_closed_loop(accept: bool) -> None:
    """Requests per second over those of vLLM with prefix caching, arrival seed by arrival seed."""
    names = ("chunk_llama_radix", "vllm_chunk")
    heading = ["prompt, shared", "clients", "ChunkLlama, radix", "vLLM, our kernels"]
    lines, ratios = [_line(heading), _line(["---", "---:", "---:", "---:"])], dict[tuple[int, int], list[str]]()
    for group in build(open_run(RECORDED / "epyc-zen5-2-cores" / "cpu-servers")).groups:
        rates = {
            name: [one.numbers.requests_per_s for one in row.facts.measurements] for name, row in group.rows.items()
        }
        own = ratios[group.axes["n_s"], group.axes["clients"]] = []
        for name in names:
            own.append(_over(rates[name], rates["vllm_prefix_caching"]))
        lines.append(_line([f"{group.axes['n_p']}, {group.axes['n_s']}", str(group.axes["clients"]), *own]))
    check_block("closed loop", [*lines, ""], accept)
    nothing, short, long = (ratios[shared, 32][1].partition(" ")[0] for shared in (0, 1024, 2048))
    row = f"with our kernels {nothing}x the requests per second where nothing is shared (prompts of 256 tokens), "
    assert f"{row}{short}x and {long}x with 1024 and 2048 shared tokens" in (ROOT / "README.md").read_text()


def _over(ours: Iterable[float | None], theirs: Iterable[float | None]) -> str:
    """Ratios, arrival seed by arrival seed: median (smallest to largest)."""
    ratios = [own / other for own, other in zip(ours, theirs, strict=True) if own and other]
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else NOTHING


def test_the_results_have_the_servers_of_a_cpu(accept: bool) -> None:
    """Gaps between tokens over those of other servers, arrival seed by arrival seed, and the machine's share."""
    names = {
        "openvino_prefix_caching": "OpenVINO",
        "vllm_prefix_caching": "vLLM",
        "openvino": "OpenVINO without caching",
        "llama_cpp": "llama.cpp",
        "llama_cpp_native": "llama.cpp, compiled here",
        "openvino_u8": "OpenVINO, 8-bit K/V",
        "llama_cpp_packed": "llama.cpp, 4-bit weights",
    }
    told = [name for name in names if not name.endswith(("u8", "packed"))]
    heading = ["prompt, shared", "clients", *names.values()]
    lines, shares = [], []
    for run in ("cpu-servers", "cpu-servers-unshared"):
        groups = build(open_run(RECORDED / "epyc-zen3-2-cores" / run)).groups
        best = best_rates(row.facts for group in groups for row in group.rows.values())
        for group in groups:
            point = [f"{group.axes['n_p']}, {group.axes['n_s']}", str(group.axes["clients"])]
            gaps = {name: [one.gap_s for one in row.facts.measurements] for name, row in group.rows.items()}
            ours = gaps["chunk_llama_radix"]
            lines.append(_line([*point, *(_over(ours, gaps[name]) if gaps.get(name) else "" for name in names)]))
            facts = [group.rows[name].facts if name in group.rows else None for name in ("chunk_llama_radix", *told)]
            reached = [percent(machine_share(one, best)) if one is not None else "" for one in facts]
            shares.append(_line([*point, *reached, bound_by(group.rows["chunk_llama_radix"].facts, best) or ""]))
    check_block("servers of a cpu", [_line(heading), _line(["---", *["---:"] * (1 + len(names))]), *lines, ""], accept)
    heading = ["prompt, shared", "clients", "ours", *(names[name] for name in told), "ours is bound by"]
    check_block(
        "machine's share", [_line(heading), _line(["---", *["---:"] * (2 + len(told)), "---"]), *shares, ""], accept
    )


def test_the_results_have_the_levels_of_sharing(accept: bool) -> None:
    """What 2048 shared tokens cost 32 clients, over the least time to read them once for each client."""
    heading = ["system", "cached prompt tokens", "peak K/V, MB", "growth of the gap"]
    lines = [_line(heading), _line(["---", *["---:"] * 3])]
    groups = build(open_run(RECORDED / "epyc-zen3-2-cores" / "cpu-servers")).groups
    short, long = (
        next(one for one in groups if (one.axes["n_s"], one.axes["clients"]) == (shared, 32)) for shared in (0, 2048)
    )
    best = best_rates(row.facts for group in groups for row in group.rows.values())
    for name in ("openvino_prefix_caching", "vllm_prefix_caching", "chunk_llama_radix"):
        rows = [group.rows[name].facts for group in (short, long)]
        apart = [
            one.model_copy(update={"machine_limits": one.machine_limits.model_copy(update={"shared_reads": False})})
            for one in rows
        ]
        gaps = [METRICS["gap_s"].value(one) for one in rows]
        least = [parts_of_step(one, best)[1].least_s for one in apart]
        cells = [percent(METRICS["cached_share"].value(rows[1])), megabytes(METRICS["peak_kv_bytes"].value(rows[1]))]
        growth = (gaps[1] - gaps[0]) / (least[1] - least[0])
        lines.append(_line([long.rows[name].facts.label, *cells, f"{growth:.2f}"]))
    check_block("levels of sharing", [*lines, ""], accept)


def test_the_pages_have_latent_attention(accept: bool) -> None:
    heading = ["heads", "F, GFLOP/s", "B, GB/s", "sequences, predicted", "measured"]
    lines = [_line(heading), _line(["---:"] * 5)]
    for one in break_evens(build(open_run(RECORDED / "epyc-zen3-2-cores" / "mla-break-even")).groups):
        rates = significant(one.flops_per_s / 1e9, 3), significant(one.bytes_per_s / 1e9, 3)
        told = significant(one.predicted, 2), "" if one.measured is None else significant(one.measured, 2)
        lines.append(_line([str(one.axes["heads"]), *rates, *told]))
    check_block("latent break-even", [*lines, ""], accept, "beyond.md")
    names = ["mla_vllm", "mla_absorb", "mla_absorb_star", "mla_naive", "mla_mixed", "mla_auto"]
    lines = [_line(["heads", "shared", "batch", *names]), _line(["---:"] * (3 + len(names)))]
    for group in build(open_run(RECORDED / "epyc-zen3-2-cores" / "mla")).groups:
        axes, cells = group.axes, []
        if axes["projections"] == "timed":
            continue
        for name in names:
            figure = latency_ratio(group.rows, "mla_absorb_two_phase", name)
            cells.append("" if figure is None else f"{times(figure.value)} ({span(figure.low, figure.high)})")
        lines.append(_line([str(axes["heads"]), f"{axes['n_s']:,}", str(axes["batch_size"]), *cells]))
    check_block("latent attention", [*lines, ""], accept, "beyond.md")


def test_the_pages_have_query_rows(accept: bool) -> None:
    """Latency over that of one query row, and of ChunkAttn over the machine's limit."""
    heading = ["tokens, shared", "batch", "KV heads", "draft", "ChunkAttn", "over the limit", "vLLM*", "SDPA"]
    lines = [_line(heading), _line(["---", "---:", "---:", "---", *["---:"] * 4])]
    groups = build(open_run(RECORDED / "xeon-avx512-bf16-2-cores" / "query-rows")).groups
    singles = single_rows(groups)
    for group in groups:
        facts = facts_of(group)
        assert facts is not None
        rows = [over_single(group, singles, one) for one in ("chunk_attn", "vllm_paged_attn_star", "flash_attn")]
        own, *others = ["" if one is None or facts.query_rows == 1 else times(one) for one in rows]
        limit = over_limit(group.rows["chunk_attn"])
        draft = f"{facts.query_rows} rows" if facts.draft == "chain" else f"tree {facts.draft}"
        axes = [f"{facts.n_p:,}, {facts.n_s:,}", str(facts.batch_size), str(facts.kv_heads), draft]
        lines.append(_line([*axes, own, "" if limit is None else times(limit), *others]))
    check_block("query rows", [*lines, ""], accept, "beyond.md")


def test_the_pages_have_sliding_windows(accept: bool) -> None:
    heading = ["tokens, shared", "batch", "KV heads", "window", "K/V", "time of full attention over it", "vLLM's"]
    lines = [_line(heading), _line(["---", *["---:"] * 6])]
    for group in build(open_run(RECORDED / "xeon-avx512-bf16-2-cores" / "windows")).groups:
        caches = {cache.row.facts.implementation: cache for cache in head_caches([group])}
        own, axes = caches["sliding_window"], group.axes
        found = [f"{times(one.speedup)} ({span(one.low, one.high)})" for one in (own, caches["vllm_sliding_window"])]
        place = [
            f"{axes['n_p']:,}, {axes['n_s']:,}",
            str(axes["batch_size"]),
            str(axes["kv_heads"]),
            str(axes["window"]),
        ]
        lines.append(_line([*place, percent(own.bytes), *found]))
    check_block("sliding windows", [*lines, ""], accept, "beyond.md")


def test_the_pages_have_k_and_v_in_8_bits(accept: bool) -> None:
    forms = [f"chunk_attn_{form}" for form in ("int8", "uint8", "fp8")]
    heading = ["tokens, shared", "batch", *(f"{form.removeprefix('chunk_attn_')}: faster, deviation" for form in forms)]
    lines = [_line(heading), _line(["---", *["---:"] * 4])]
    for group in build(open_run(RECORDED / "epyc-zen3-2-cores" / "kv8")).groups:
        caches = {cache.row.facts.implementation: cache for cache in head_caches([group])}
        found = [caches[form] for form in forms]
        cells = [f"{times(one.speedup)} ({span(one.low, one.high)}), {significant(one.deviation, 2)}" for one in found]
        axes = group.axes
        lines.append(_line([f"{axes['n_p']:,}, {axes['n_s']:,}", str(axes["batch_size"]), *cells]))
    check_block("k and v in 8 bits", [*lines, ""], accept, "beyond.md")


def test_the_pages_have_answers_in_8_bits(accept: bool) -> None:
    heading = ["tokens", "K/V in", "needles found", "next token", "log-probability lost", "deviation", "worst head"]
    lines = [_line(heading), _line(["---", "---", *["---:"] * 5])]
    for group in build(open_run(RECORDED / "epyc-zen3-2-cores" / "kv8-answers")).groups:
        facts, kv_dtype = group.rows["all_heads"].facts, group.axes["kv_dtype"]
        found = f"{ANSWERS['found'].text(facts)} of {ANSWERS['findable'].text(facts)}"
        names = "agreement", "logprob_lost", "median_deviation", "worst_deviation"
        cells = [percent(ANSWERS["agreement"].value(facts)), *(ANSWERS[name].text(facts) for name in names[1:])]
        lines.append(_line([f"{group.axes['n_p']:,}", kv_dtype, found, *cells]))
    check_block("answers in 8 bits", [*lines, ""], accept, "beyond.md")


def test_the_results_have_several_answers(accept: bool) -> None:
    """Requests per second over those of vLLM, and the K/V memory that sharing saves: here, replayed, in the paper."""
    heading = ["prompt, answer", "answers", "over vLLM, prefix caching", "over vLLM", "K/V saved", "vLLM's", "replayed"]
    lines = [_line([*heading, "PagedAttention"]), _line(["---"] * 2 + ["---:"] * 6)]
    replays = build(open_run(RECORDED / "replays" / "replay-paged-answers")).groups
    for group in build(open_run(RECORDED / "epyc-zen5-2-cores" / "several-answers")).groups:
        axes, rows = group.axes, group.rows
        rates = {name: [one.numbers.requests_per_s for one in row.facts.measurements] for name, row in rows.items()}
        ratios = []
        for name in ("vllm_prefix_caching", "vllm"):
            ratios.append(_over(rates["chunk_llama"], rates[name]))
        saved = [percent(saved_by_sharing(group, rows[name])) for name in ("chunk_llama", "vllm_prefix_caching")]
        answers = f"{axes['samples']} sampled" if axes["samples"] else f"{axes['beams']} beams"
        same = [one for one in replays if all(one.axes[name] == axes[name] for name in ("samples", "beams"))]
        known = [replay.METRICS["saved"].value(one.rows["paged"].facts) for one in same]
        paper = {stated_by_paged_attention(one.axes, "paged", "saved") for one in same}
        told = [percent(median(known)), *map(percent, paper)] if known else [NOTHING, NOTHING]
        lines.append(_line([f"{axes['n_p']}, {axes['n_c']}", answers, *ratios, *saved, *told]))
    check_block("several answers", [*lines, ""], accept)


def test_the_page_on_kernels_has_the_share_of_the_roofline(accept: bool) -> None:
    heading = ["machine", "nothing shared", "half to three quarters shared", "everything shared"]
    lines = [_line(heading), _line(["---"] * len(heading))]
    for path in (path for path in RUNS if path.name == "cpu-kernels"):
        report, shares = build(open_run(path)), dict[str, list[float]]()
        for group in report.groups:
            axes = group.axes
            if (
                axes["n_s"] is not None
                and group.rows["chunk_attn"].derived.roofline_fraction
                and AXES_OF_LIMITS.items() <= axes.items()
            ):
                shared = {0: "nothing", axes["n_p"]: "everything"}.get(axes["n_s"], "a part")
                shares.setdefault(shared, []).append(group.rows["chunk_attn"].derived.roofline_fraction or 0.0)
        ranges = [f"{min(shares[key]):.2f} to {max(shares[key]):.2f}" for key in ("nothing", "a part", "everything")]
        lines.append(_line([path.parent.name, *ranges]))
    check_block("roofline", [*lines, ""], accept, "kernels.md")


def check_file(path: Path, text: str, accept: bool) -> None:
    if accept:
        path.write_text(text)
    assert path.read_text() == text


def check_block(name: str, lines: Sequence[str], accept: bool, file: str = "results.md") -> None:
    """Compare lines with a block of a page; `--accept` puts them there."""
    page = ROOT / "docs" / file
    before, rest = page.read_text().split(f"<!-- {name} -->\n\n")
    kept, after = rest.split(f"<!-- end of {name} -->")
    if accept:
        kept = "\n".join([*lines, ""])
        page.write_text(f"{before}<!-- {name} -->\n\n{kept}<!-- end of {name} -->{after}")
    assert kept.splitlines() == lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("name", ["xeon-amx-2-cores/table4", "epyc-zen5-2-cores/table3"])
def test_the_results_quote_single_runs(name: str) -> None:
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    report = build(open_run(RECORDED / name))
    assert f"{report.verdict if 'table3' in name else ''} {report.headline}".strip() in text


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


def test_the_page_quotes_the_plug_in_for_vllm() -> None:
    report = build(open_run(RECORDED / "epyc-zen4-2-cores" / "vllm-plugin"))
    latency = {
        (group.axes["n_p"], group.axes["n_s"], group.axes["load"]): [
            f"{group.rows[name].derived.latency_us / 1e3:#.3g}".rstrip(".")
            for name in ("vllm_prefix_caching", "vllm_chunk")
        ]
        for group in report.groups
    }
    page = (ROOT / "docs" / "vllm.md").read_text()
    lines = [f"| {vllm} | {ours} | {float(ours) / float(vllm):.2f} |" for vllm, ours in latency.values()]
    assert len(lines) == 8
    assert all(line in page for line in lines)
