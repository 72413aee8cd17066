"""Decode attention over shared prefixes, timed (the paper's Table 3, Figures 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from chunkbench.baselines.registry import KV_DTYPES_OF, LATENT_FORMS, REGISTRY
from chunkbench.bench.contract import Implementation
from chunkbench.bench.experiment import AttentionPoint, SessionExperiment
from chunkbench.bench.experiment.point import passes
from chunkbench.bench.registry import Registry
from chunkbench.bench.runner.sessions import Amounts, SessionWorkload
from chunkbench.bench.store.results import DecodeResult, SessionResult
from chunkbench.workloads.decode.latent_amounts import latent_amounts, shared_prompt_tokens
from chunkbench.workloads.decode.spec import DecodeExperiment

if TYPE_CHECKING:
    from chunkbench.bench.workers.checks import Check
    from chunkbench.bench.workers.inputs import PooledInputs
    from chunkbench.report.layout import Layout

ExperimentT = TypeVar("ExperimentT", bound=SessionExperiment[AttentionPoint])
ResultT = TypeVar("ResultT", bound=SessionResult)


def _as_stored(point: AttentionPoint, implementation: str) -> AttentionPoint:
    """The point with the implementation's own form of K and V, if it has one."""
    if point.latent is not None and LATENT_FORMS.get(implementation) == "expanded":
        mean = (point.latent.key_dim + point.latent.v) // 2
        return point.model_copy(update={"latent": None, "kv_heads": point.heads, "head_dim": mean})
    own = KV_DTYPES_OF.get(implementation)
    return point if own is None else point.model_copy(update={"kv_dtype": own})


class AttentionWorkload(SessionWorkload[ExperimentT, AttentionPoint, ResultT]):
    """Times sessions that hold K and V of all sequences. All implementations of a point compute the same attention."""

    def implementations(self) -> Registry[Implementation]:
        return REGISTRY

    def weight(self, point: AttentionPoint, seed: int) -> int:
        tokens = sum(point.prompt_lengths(seed)) + point.batch_size * point.n_c
        # The absorbed form is bound by arithmetic, which grows with the heads that read a latent.
        reads = 1 if point.latent is None else point.heads
        return tokens * point.given_token_bytes * reads + (1 << 24)

    def needs(self, point: AttentionPoint, seed: int, implementation: str, shares_storage: bool) -> int:
        """Bytes of K and V at the end of a round. On a CPU, planners need 0 bytes, because they read the K and V of
        ChunkAttn."""
        from chunkbench.baselines.planned import PLANNERS
        from chunkbench.bench.runner import memory_guard

        if implementation in PLANNERS and point.device == "cpu":
            return 0
        stored = memory_guard.kv_bytes(_as_stored(point, implementation), seed, shares_storage)
        if LATENT_FORMS.get(implementation) == "both":  # and expanded copies of what is shared
            alone = point.unique_prompt_tokens(seed) - shared_prompt_tokens(point, seed)
            expanded = _as_stored(point, "mla_naive")
            stored += memory_guard.kv_bytes(expanded, seed, True) - alone * expanded.token_bytes
        return stored

    def touched(self, point: AttentionPoint, seed: int, implementation: str, shares_storage: bool) -> int:
        from chunkbench.bench.runner import memory_guard

        return memory_guard.touched_bytes(_as_stored(point, implementation), seed, shares_storage)

    def given(self, inputs: PooledInputs, implementation: str) -> PooledInputs:
        from chunkbench.bench.workers.latent_inputs import LatentInputs

        if isinstance(inputs, LatentInputs):
            return inputs.in_form(LATENT_FORMS.get(implementation, "expanded"))
        own = KV_DTYPES_OF.get(implementation)
        return inputs if own is None else inputs.stored_as(own)

    def definition(self, implementation: str) -> str:
        """The implementation's name if it is a method of `head_methods`, which computes attention over fewer tokens;
        the form of K and V of an implementation with its own form, or of its latent queries; else empty.
        """
        from chunkbench.baselines.head_methods import METHODS

        if implementation in METHODS:
            return implementation
        own: str | None = LATENT_FORMS.get(implementation)
        return KV_DTYPES_OF.get(implementation, "") if own is None else own

    def least_kv_bytes(self, point: AttentionPoint, seed: int, implementation: str) -> int:
        from chunkbench.baselines.head_methods import seen_tokens

        ((distinct, _),) = seen_tokens(point, seed, implementation, [point.n_c])
        return int(distinct * _as_stored(point, implementation).token_bytes)

    def amounts(
        self, point: AttentionPoint, seed: int, implementation: str, reads_shared_once: bool, steps: Sequence[int]
    ) -> Amounts:
        from chunkbench.baselines.head_methods import seen_tokens
        from chunkbench.bench.analysis import roofline

        if point.latent is not None:
            return latent_amounts(point, seed, implementation, reads_shared_once, steps)
        token_bytes = _as_stored(point, implementation).token_bytes
        shape = (token_bytes, point.rows, point.heads, point.head_dim, point.element_bytes)
        seen = seen_tokens(point, seed, implementation, steps)
        unique, total = [int(each) for each, _ in seen], [int(each) for _, each in seen]
        # An implementation reads each sequence's whole context unless it reads shared prefixes once.
        read = unique if reads_shared_once else total
        return Amounts(
            tuple(roofline.moved_bytes(tokens, *shape) for tokens in unique),
            tuple(roofline.moved_bytes(tokens, *shape) for tokens in read),
            tuple(roofline.flops(point.pairs(t), point.heads, point.head_dim) for t in total),
        )

    def inputs(self, point: AttentionPoint, seed: int) -> PooledInputs:
        from chunkbench.bench.workers.inputs import PooledInputs
        from chunkbench.bench.workers.latent_inputs import LatentInputs

        return PooledInputs(point, seed) if point.latent is None else LatentInputs(point, seed)

    def check(self, inputs: PooledInputs, implementation: str, steps: int, nonce: int, sample: bool) -> Check:
        from chunkbench.baselines.head_methods import METHODS
        from chunkbench.bench.workers.checks import make_check
        from chunkbench.bench.workers.latent_inputs import LatentInputs, make_latent_check

        if isinstance(inputs, LatentInputs):
            return make_latent_check(inputs, steps, nonce, sample)
        method = METHODS.get(implementation)
        losses = None if method is None else (method.policy(inputs.point), method.lost(inputs.point, steps))
        return make_check(inputs, steps, nonce, sample, losses)


class DecodeWorkload(AttentionWorkload[DecodeExperiment, DecodeResult]):
    """Times decode steps that read K and V of all tokens. One pass to the longest n_c also gives the results of shorter
    n_c.
    """

    name = "decode"
    summary = "attention of a decode step"
    experiment = DecodeExperiment
    result = DecodeResult

    def passes(self, points: Iterable[AttentionPoint]) -> list[tuple[AttentionPoint, ...]]:
        """Group the points that differ only in n_c."""
        return passes(points)

    def layout(self) -> Layout:
        from chunkbench.workloads.decode.layout import LAYOUT

        return LAYOUT
