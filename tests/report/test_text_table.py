from __future__ import annotations

import itertools
import re

import pytest

from chunkbench.bench.store import Manifest
from chunkbench.report import build, text_table
from chunkbench.report.model import Column, Table
from tests.workloads.drawings import drawn

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def lines_of(run) -> list[str]:
    return text_table.render(build(run)).splitlines()


def row_after(lines: list[str], title: str, key: str) -> list[str]:
    start = next(i for i, line in enumerate(lines) if line.startswith(title))
    return next(line.split() for line in lines[start:] if re.match(rf"\s*{key}\s", line))


def test_table_3_fits_100_columns(table3) -> None:
    lines = lines_of(table3)
    assert max(map(len, lines)) <= 100
    assert not any("continued" in line for line in lines)


def test_slow_noisy_machines_fit_100_columns(make_case, make_run) -> None:
    names = ["naive", "flash_attn", "vllm_paged_attn", "chunk_attn", *(f"a_very_long_name_{i}" for i in range(6))]
    cases = [
        make_case(name, n_p=4096, n_s=n_s, us=[9_876_543.2] * 3, status="noisy", reason="x " * 300)
        for name in names
        for n_s in (0, 4096)
    ]
    lines = lines_of(make_run(cases))
    assert max(map(len, lines)) <= 100
    # The table is split, not cut: every number is there, and each part begins with the keys.
    assert sum(line.count("~9,877,000") for line in lines) >= 2 * len(names)
    assert any("continued" in line for line in lines)


def test_the_baseline_comes_first_and_the_others_have_the_papers_order(table3) -> None:
    lines = lines_of(table3)
    assert row_after(lines, "Latency", "1024 +1024") == (
        ["1024", "1024", "2,982", "25,870", "n/a", "106,700", "n/a", "n/a", "26,290", "6,019", "4,346", "6,982"]
    )
    start = next(i for i, line in enumerate(lines) if line.startswith("Latency"))
    assert lines[start + 2].split() == [
        "n_p",
        "n_s",
        "Attn",
        "Naive",
        "xformers",
        "Attn",
        "Attn",
        "Attn*",
        "vLLM",
        "vLLM*",
        "matmul",
        "no",
        "TPP",
    ]
    points = [line.split()[:2] for line in lines[start + 4 : start + 18] if line.strip()]
    assert [(int(n_p), int(n_s)) for n_p, n_s in points] == [
        (n_p, quarters * n_p // 4) for n_p in (1024, 2048, 4096) for quarters in (0, 2, 3, 4)
    ]


def test_the_verdict_comes_before_the_headline_and_both_before_the_tables(table3) -> None:
    text = "\n".join(lines_of(table3))
    verdict, headline, table = (
        text.index(part) for part in ("ChunkAttn is slower", "as fast as the strongest", "Latency per")
    )
    assert verdict < headline < table


def test_measured_ratios_stand_above_the_papers(table3) -> None:
    lines = lines_of(table3)
    start = next(i for i, line in enumerate(lines) if line.startswith("Ratio to"))
    here = next(i for i in range(start, len(lines)) if re.match(r"1024 +1024 +here", lines[i]))
    assert lines[here].split()[3:] == ["8.67x", "n/a", "35.8x", "n/a", "n/a", "8.82x", "2.02x", "1.46x", "2.34x"]
    # 154.46 / 56.00 = 2.76 is in the column of PagedAttn* and in that of vLLM*.
    assert lines[here + 1].split() == ["paper", "6.46x", "6.77x", "28.3x", "6.35x", "2.76x", "6.35x", "2.76x", "-", "-"]


def test_statuses_are_words_and_each_reason_appears_once(make_case, make_run) -> None:
    failures = {
        "naive": ("error", "RuntimeError: no luck"),
        "flash_attn": ("timeout", "40 s a step, the limit is 10 s"),
        "vllm_paged_attn": ("crashed", "signal 11"),
        "shared_prefix_matmul": ("incorrect", "NaN in out"),
        "paged_attn": ("unsupported", "head_dim 80"),
        "third_party": ("oom", "predicted: needs 40.1 GiB of 20 GiB"),
    }
    cases = [make_case("chunk_attn", n_s=n_s) for n_s in (0, 512)]
    for name, (status, reason) in failures.items():
        cases += [make_case(name, n_s=n_s, status=status, reason=reason, us=[]) for n_s in (0, 512)]
    text = text_table.render(build(make_run(cases)))
    words = row_after(text.splitlines(), "Latency", "0")
    assert words[2:] == ["error", "timeout", "unsupp.", "crashed", "wrong", "oom"]
    for _, reason in failures.values():
        assert text.count(reason) == 1
    assert "wrong (incorrect) at every point: NaN in out" in text


def test_reasons_that_differ_only_in_figures_are_one_reason(make_case, make_run) -> None:
    cases = [make_case("chunk_attn", n_s=n_s) for n_s in (0, 256, 512)]
    cases += [
        make_case("naive", n_s=n_s, status="oom", reason=f"needs {gigabytes} GiB", us=[])
        for n_s, gigabytes in ((0, 40.5), (256, 30))
    ]
    text = text_table.render(build(make_run(cases)))
    assert text.count("needs") == 1
    assert "Naive: oom at 0, 256 (2 of 3 points): needs 40.5 GiB (figures of the first" in text


def test_a_reason_of_several_implementations_appears_once(table3) -> None:
    text = " ".join(" ".join(lines_of(table3)).split())
    assert text.count("come with the next version") == 1
    assert "PagedAttn, PagedAttn*: n/a (unavailable) at every point" in text


def test_noisy_cells_are_marked_and_noise_is_explained_once(make_case, make_run) -> None:
    busy, scatter = "other processes kept {} CPUs busy", "rounds lie up to {}% from their middle"
    cases = [
        make_case("chunk_attn"),
        make_case("naive", status="noisy", reason=busy.format(1.2)),
        make_case("flash_attn", status="noisy", reason=f"{busy.format(0.9)}; {scatter.format(9)}"),
        make_case("vllm_paged_attn", status="noisy", reason=f"{busy.format(1.1)}; {scatter.format(12)}"),
    ]
    text = text_table.render(build(make_run(cases)))
    assert "~25,870" in text
    line = f"~ noisy, 3 of 4 cases; at worst: {busy.format(1.2)} (3); {scatter.format(12)} (2)"
    assert line in " ".join(text.split())


def test_impossible_fractions_are_reported_as_an_error_of_the_probe(make_case, make_run) -> None:
    fast = {"chunk_attn": 100.0, "flash_attn": 50.0, "naive": 20000.0}
    report = build(make_run([make_case(name, us=[us]) for name, us in fast.items()]))
    assert re.search(r"\d%!", text_table.render(report))
    (warning,) = report.warnings
    assert warning.startswith(
        "! No limit of the machine, so no merit of the kernel, in 2 cases; the worst is FlashAttn"
    )


def test_the_footer_describes_machine_software_data_and_timing(table3) -> None:
    text = " ".join(" ".join(lines_of(table3)).split())
    for part in (
        "Invented CPU 9000, 2 cores, 24 GiB",
        "torch 2.13.0",
        "bfloat16; inputs standard normal; seed 0",
        "protocol strict",
        "caches cold",
        "rounds a point: 3",
        "2 of 64 steps timed",
        "threads 2",
        "range: too few rounds",
        "header of the paper's Table 3 says ms",
        "687.74",
        "A100 80 GB in float16",
        "MKL takes its generic path",
    ):
        assert part in text, part


def test_the_note_on_the_paper_is_left_out_without_its_numbers(make_case, make_run) -> None:
    text = text_table.render(build(make_run([make_case("chunk_attn", n_s=100), make_case("naive", n_s=100)])))
    assert "A100" not in text
    assert "paper" not in text


def test_a_note_of_an_implementation_appears_once(make_case, make_run) -> None:
    cases = [make_case("flash_attn", n_s=n_s, note="shaped for prefill") for n_s in (0, 512)]
    text = text_table.render(build(make_run(cases)))
    assert text.count("shaped for prefill") == 1
    assert "FlashAttn: shaped for prefill" in text


def test_a_partial_run_has_a_warning(table3) -> None:
    table3.cases[:] = [case for case in table3.cases if case.n_p == 1024]
    table3.manifest = table3.manifest.model_copy(update={"interrupted": True})
    lines = lines_of(table3)
    assert lines[1] == "Partial run (interrupted): 4 of 12 points; resume it to measure the others."
    assert "4 points" in " ".join(lines)


def test_a_point_with_missing_cases_shows_dashes(make_case, make_run) -> None:
    cases = [make_case("chunk_attn", n_s=0), make_case("naive", n_s=0), make_case("chunk_attn", n_s=512)]
    assert row_after(lines_of(make_run(cases)), "Latency", "512")[2] == "-"


def test_a_run_without_cases_renders(make_run) -> None:
    run = make_run([])
    run.manifest = run.manifest.model_copy(update={"points": 12, "finished_at": None})
    lines = lines_of(run)
    assert "0 of 12 points" in lines[1]


def test_leading_columns_are_the_axes_that_vary(make_case, make_run) -> None:
    trees = [((512, ((64, 8), (0, 8))), (128, 16)), ((1024, 32),)]
    cases = [
        make_case(name, n_s=None, tree=tree, batch_size=batch, us=[10.0 * batch])
        for tree, batch in itertools.product(trees, (16, 32))
        for name in ("naive", "chunk_attn")
    ]
    lines = lines_of(make_run(cases))
    start = next(i for i, line in enumerate(lines) if line.startswith("Latency"))
    assert lines[start + 2].split()[:4] == ["batch_size", "tree", "Attn", "Naive"]
    assert any(line.startswith("tree 1 = ") for line in lines)
    assert "1024x32" in "\n".join(lines)


def test_expectations_are_counted(make_case, make_run) -> None:
    expectation = {
        "where": {},
        "implementation": "chunk_attn",
        "metric": "speedup",
        "against": "naive",
        "bar": 1.5,
        "aim": 3,
    }
    cases = [
        make_case(name, n_s=n_s, us=[us])
        for n_s, chunk_us, naive_us in ((0, 10.0, 9.0), (512, 10.0, 20.0), (1024, 10.0, 90.0))
        for name, us in (("chunk_attn", chunk_us), ("naive", naive_us))
    ]
    lines = lines_of(make_run(cases, expect=[expectation]))
    row = next(line for line in lines if line.startswith("speedup of ChunkAttn over Naive"))
    assert row.split()[-9:] == [">=", "1.5", ">=", "3", "0.9000", "1", "1", "1", "0"]


def test_colour_only_when_asked_for(table3) -> None:
    report = build(table3)
    plain, coloured = text_table.render(report), text_table.render(report, text_table.Screen(colour=True))
    assert not ANSI.search(plain)
    assert ANSI.search(coloured)
    assert ANSI.sub("", coloured).split() == plain.split()


def test_brackets_in_reasons_are_text_not_markup(make_case, make_run) -> None:
    cases = [make_case("chunk_attn"), make_case("naive", status="error", reason="[red]index [0][/red] :bug:", us=[])]
    assert "[red]index [0][/red] :bug:" in text_table.render(build(make_run(cases)))


@pytest.mark.parametrize("missing", ["machines", "git", "chunkbench_version", "experiment", "points"])
def test_a_manifest_without_a_field_still_renders(table3, missing: str) -> None:
    values = table3.manifest.model_dump(mode="json")
    del values[missing]
    table3.manifest = Manifest.model_validate(values)
    assert "Latency per decode step" in "\n".join(lines_of(table3))


def test_points_of_every_kind_in_one_run(make_case, make_run) -> None:
    """The kinds of points of the bundled smoke experiment: shares, grouped heads, prompts, ragged lengths, a tree."""
    shapes = [
        *({"n_p": 96, "n_s": n_s, "kv_heads": kv} for n_s in (0, 80, 96) for kv in (4, 2)),
        {"n_p": 256, "n_s": 128, "prompts": 2},
        {"n_p": (96, 256), "n_s": 64},
        {"n_p": 192, "n_s": None, "tree": ((64, ((64, 2), (0, 1))), (0, 1))},
    ]
    cases = [
        make_case(name, heads=4, batch_size=4, us=[us], **shape)
        for shape in shapes
        for name, us in (("chunk_attn", 10.0), ("naive", 20.0))
    ]
    run = make_run(cases)
    lines = lines_of(run)
    assert max(map(len, lines)) <= 100
    assert "2.00x to 2.00x as fast as the strongest other implementation at each of 9 points" in " ".join(lines)
    assert row_after(lines, "Latency", "96-256")[1:] == ["64", "1", "-", "32", "10.00", "20.00"]
    # A range of lengths and a tree have no n_s / n_p, so the figure leaves them out.
    titles = [plot.get_title() for plot in drawn(run).axes if plot.get_visible()]
    assert len(titles) == 3
    assert all("tree" not in title and "-" not in title for title in titles)


@pytest.mark.parametrize(("width", "sizes"), [(200, [9]), (100, [5, 4]), (60, [3, 3, 3]), (10, [1] * 9)])
def test_parts_of_a_table_are_equally_wide(width: int, sizes: list[int]) -> None:
    columns = tuple(Column(f"c{number}", lambda text: text) for number in range(9))
    table = Table("T", (Column("k", lambda _: "1"), *columns), ["x" * 12])
    assert [len(part.columns) - 1 for part in text_table._split(table, width)] == sizes
