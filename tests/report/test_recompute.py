"""The printed table, recomputed from the run directory with pandas alone, without the code of `chunkbench`."""

from __future__ import annotations

import json
import re

import pandas as pd

from chunkbench.report import build, render


def recompute(folder) -> pd.DataFrame:
    """The computation that docs/measuring.md shows: from facts to the figures of the tables."""
    experiment = json.loads((folder / "manifest.json").read_text())["experiment"]
    cases = pd.read_json(folder / "cases.jsonl", lines=True)
    measured = cases[cases.status.isin(["ok", "noisy"])].copy()

    rounds = measured.explode(["samples_us", "groups", "peaks"])[["key", "samples_us", "groups", "peaks"]]
    rounds["mean_us"] = rounds.samples_us.map(lambda samples: sum(samples) / len(samples))
    measured["latency_us"] = measured.key.map(rounds.groupby("key").mean_us.median())
    for name in ("append", "plan"):
        means = measured[f"{name}_samples_us"].map(lambda all_rounds: [sum(r) / len(r) for r in all_rounds])
        measured[f"{name}_us"] = means.map(lambda values: pd.Series(values).median())
    measured["step_us"] = measured.append_us + measured.plan_us + measured.latency_us

    def roofline_fraction(case) -> float:
        shares = [
            sum(
                max(u / peaks["read_bytes_per_s"], f / peaks["matrix_flops_per_s"])
                for u, f in zip(case.unique_bytes, case.flops, strict=True)
            )
            * 1e6
            / sum(samples)
            for samples, peaks in zip(case.samples_us, case.peaks, strict=True)
        ]
        return float(pd.Series(shares).median())

    measured["roofline_fraction"] = measured.apply(roofline_fraction, axis=1)

    # Ratios use only rounds of the memory groups that both ran in.
    means = rounds.groupby(["key", "groups"]).mean_us.apply(list)
    point = ["n_p", "n_s", "protocol", "cache"]
    base = measured[measured.implementation == experiment["baseline"]].set_index(point).key

    def ratio(case) -> float:
        own, baseline = means[case.key], means[base[tuple(case[point])]]
        shared = own.index.intersection(baseline.index)
        return float(pd.Series(own[shared].sum()).median() / pd.Series(baseline[shared].sum()).median())

    measured["ratio_to_baseline"] = measured.apply(ratio, axis=1)
    return measured


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
    recomputed = recompute(tmp_path)
    assert len(recomputed) == 84
    for (n_p, n_s), cases in recomputed.groupby(["n_p", "n_s"]):
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
