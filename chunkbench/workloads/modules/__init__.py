"""The modules of a decoder layer: measured times, and costs computed from the shapes (the paper's Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chunkbench.bench.contract import AnyImplementation
from chunkbench.bench.registry import Registry
from chunkbench.bench.runner.sessions import Amounts, SessionWorkload
from chunkbench.llama import LlamaShape
from chunkbench.workloads.modules.methods import MODULES
from chunkbench.workloads.modules.result import ModulesPoint, ModulesResult
from chunkbench.workloads.modules.spec import ModulesExperiment

if TYPE_CHECKING:
    from chunkbench.bench.workers.checks import Check
    from chunkbench.report.layout import Layout
    from chunkbench.workloads.modules.inputs import ModulesInputs


class ModulesWorkload(SessionWorkload[ModulesExperiment, ModulesPoint, ModulesResult, "ModulesInputs"]):
    """Times modules of a decoder layer. All modules take hidden states, but they compute different results. Only
    self-attention keeps K and V.
    """

    name = "modules"
    summary = "the modules of a decoder layer"
    experiment = ModulesExperiment
    result = ModulesResult

    def implementations(self) -> Registry[AnyImplementation]:
        return MODULES

    def definition(self, implementation: str) -> str:
        return implementation

    def weight(self, point: ModulesPoint, seed: int) -> int:
        return point.batch_size * (point.n_p + point.n_c) * point.layer_token_bytes + (1 << 24)

    def needs(self, point: ModulesPoint, seed: int, implementation: str, shares_storage: bool) -> int:
        from chunkbench.bench.runner import memory_guard

        columns = _columns(point.model, implementation)
        if columns is None:
            return memory_guard.kv_bytes(point.layer, seed, shares_storage)
        rows = point.model.hidden_size + point.batch_size
        return int(rows * columns * point.element_bytes * memory_guard.SLACK)

    def touched(self, point: ModulesPoint, seed: int, implementation: str, shares_storage: bool) -> int:
        from chunkbench.bench.runner import memory_guard

        columns = _columns(point.model, implementation)
        if columns is None:
            return memory_guard.touched_bytes(point.layer, seed, shares_storage)
        return point.model.hidden_size * columns * point.element_bytes

    def least_kv_bytes(self, point: ModulesPoint, seed: int, implementation: str) -> int:
        return 0

    def amounts(
        self, point: ModulesPoint, seed: int, implementation: str, reads_shared_once: bool, steps: Sequence[int]
    ) -> Amounts:
        from chunkbench.workloads.modules.layer_costs import MODULES as COSTS

        cost = COSTS[implementation](point.model, point.batch_size, point.n_p, point.element_bytes)
        moved, computed = (cost.bytes,) * len(steps), (cost.flops,) * len(steps)
        return Amounts(moved, moved, computed)

    def inputs(self, point: ModulesPoint, seed: int) -> ModulesInputs:
        from chunkbench.workloads.modules.inputs import ModulesInputs

        return ModulesInputs(point.layer, seed)

    def check(self, inputs: ModulesInputs, implementation: str, steps: int, nonce: int, sample: bool) -> Check:
        from chunkbench.workloads.modules.checks import make_module_check

        return make_module_check(inputs, implementation, nonce)

    def layout(self) -> Layout:
        from chunkbench.workloads.modules.layout import LAYOUT

        return LAYOUT


def _columns(shape: LlamaShape, module: str) -> int | None:
    """Number of columns of all weights of a module; None for self-attention, which has no weights."""
    return {"qkv_projection": shape.qkv_size, "mlp": 3 * shape.intermediate_size}.get(module)
