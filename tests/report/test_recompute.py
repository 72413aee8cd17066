"""The printed table, recomputed from the run directory by the snippet of the documentation."""

from __future__ import annotations

import re
from typing import Any

from chunkbench.report import build, render
from tests.test_recompute import snippet


def four_digits(value: float) -> str:
    return f"{float(f'{value:.4g}'):,.0f}"


def test_every_number_of_the_table_follows_from_the_run_directory(table3, tmp_path) -> None:
    changed = [
        # A second memory group, in which the machine was slower: the ratio must not mix the two groups.
        case.model_copy(
            update={
                "samples_us": (*case.samples_us, *(tuple(2 * x for x in r) for r in case.samples_us)),
                "append_samples_us": case.append_samples_us * 2,
                "plan_samples_us": case.plan_samples_us * 2,
                "peaks": case.peaks * 2,
                "groups": (0, 0, 0, 1, 1, 1),
            }
        )
        if case.implementation == "chunk_attn"
        else case
        for case in table3.cases
    ]
    table3.cases[:] = changed
    (tmp_path / "manifest.json").write_text(table3.manifest.model_dump_json())
    (tmp_path / "cases.jsonl").write_text("".join(case.model_dump_json() + "\n" for case in changed))

    lines = render(build(table3), "table").splitlines()
    starts = [
        next(i for i, line in enumerate(lines) if line.startswith(t)) for t in ("Latency", "Ratio", "ChunkAttn and")
    ]
    latencies, ratios, details = (lines[a:b] for a, b in zip(starts, [*starts[1:], len(lines)], strict=True))
    names: dict[str, Any] = {"RUN": str(tmp_path)}
    exec(snippet(), names)
    assert len(names["cases"]) == 84
    for (n_p, n_s), cases in names["cases"].groupby(["n_p", "n_s"]):
        keys = re.compile(rf" *{n_p} +{n_s} ")
        latency_row = next(line for line in latencies if keys.match(line)).split()
        ratio_row = next(line for line in ratios if keys.match(line)).split()
        detail_row = next(line for line in details if keys.match(line)).split()
        for case in cases.itertuples():
            assert four_digits(case.latency_us) in latency_row
            if case.implementation != "chunk_attn":
                decimals = 2 if case.ratio_to_baseline < 9.995 else 1
                assert f"{case.ratio_to_baseline:.{decimals}f}x" in ratio_row
            else:
                assert four_digits(case.step_us) in detail_row
                assert f"{case.roofline_fraction:.0%}" in detail_row
