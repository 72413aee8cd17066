"""FLOPs and bytes of a layer; the claim T1-arith compares them with every digit of the paper's Table 1."""

from __future__ import annotations

from chunkbench.llama import shape_of
from chunkbench.workloads.modules.layer_costs import MODULES


def test_grouped_heads_read_less_and_compute_the_same() -> None:
    llama2, llama3 = (MODULES["self_attention"](shape_of(name), 8, 4096) for name in ("llama2-7b", "llama3-8b"))
    assert llama2.flops == llama3.flops
    assert 3 < llama2.bytes / llama3.bytes < 4
