"""The claim on the costs of a decoder layer (Table 1), which follow from the shapes."""

from __future__ import annotations

from collections.abc import Mapping

from chunkbench.llama import SHAPES
from chunkbench.report.claims.evidence import Judge
from chunkbench.report.claims.judgement import Judgement, held
from chunkbench.report.printed import paper_rows
from chunkbench.workloads.modules.layer_costs import FIGURES, MODULES


def table1() -> Judgement:
    """Llama2-7B, 2048 tokens, 16-bit numbers; the paper prints two decimals."""
    shape = SHAPES["llama2-7b"]
    wrong, count = [], 0
    for row in paper_rows("table1"):
        metric, batch_size = row["metric"], int(row["batch_size"])
        if metric not in FIGURES:
            continue
        for module, cost in MODULES.items():
            computed = f"{FIGURES[metric](cost(shape, batch_size, 2048)):.2f}"
            count += 1
            if computed != row[module]:
                wrong.append(f"{metric} of {module} at b = {batch_size}: {computed}, not {row[module]}")
    reason = "; ".join([f"{count - len(wrong)} of {count} printed figures follow from the shapes", *wrong])
    return Judgement(held(not wrong), reason, float(count - len(wrong)))


JUDGES: Mapping[str, Judge] = {"T1-arith": lambda _: table1()}
