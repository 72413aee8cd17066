"""Defines methods whose KV heads keep different parts of a sequence, and counts their tokens. Does not import torch.

The methods are RazorAttention (arXiv 2407.15891), DuoAttention (2410.10819), StreamingLLM (2309.17453), and layers with
a sliding window, as models have them.
`head_caches` runs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from chunkbench.attention.windows import Compress, HeadPolicy
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.experiment.terms import Compensation
from chunkbench.kv_dtype import kv_bytes

_SUM_BYTES = 4
"""Bytes of one number (float32) in the sums of K and V. The sums replace the chunks that window heads lost."""


@dataclass(frozen=True)
class HeadMethod:
    """A method: the share of heads that keep all tokens, and the compensation for the tokens that the other heads
    lose."""

    retrieval: int
    """Percent of the KV heads that keep everything, rounded up."""
    compensation: Compensation = "none"
    """The compensation at points that name none. A method with `none` has no compensation token at any point."""
    share: bool = True
    compress: Compress = "all"
    exact: bool = False
    """Whether a query reads exactly the last `window` tokens, its own included, without sinks: a sliding window."""

    def full_heads(self, point: AttentionPoint) -> int:
        """Number of KV heads that keep everything. A point's `retrieval` counts only for methods with a compensation
        token."""
        given = point.retrieval if self.compensation != "none" else None
        return ceil((self.retrieval if given is None else given) * point.kv_heads / 100)

    def policy(self, point: AttentionPoint) -> HeadPolicy:
        """The policy of the cache at a point.

        If the point has `kv_share`, the heads may hold this percentage of the bytes of full caches. The window is then
        the largest possible, but at least one token.
        """
        compensation = self._compensation(point)
        window = point.window if point.kv_share is None else max(1, self._window(point, point.kv_share))
        heads = tuple(head < self.full_heads(point) for head in range(point.kv_heads))
        if self.exact:
            return HeadPolicy.of_layers([True], point.kv_heads, window or 1)
        return HeadPolicy((heads,), window, compensation=compensation, compress=self.compress)

    def obstacle(self, point: AttentionPoint) -> str:
        """Why the method cannot compute this point; empty if it can."""
        if point.chunk_size % 16:
            return f"the kernel takes chunks of a multiple of 16 tokens, not {point.chunk_size}"
        if point.tree is not None or not isinstance(point.n_p, int):
            return "its heads lose parts of shared prefixes, which is exact for prompts of one length only"
        if self.exact and point.window is None:
            return "a sliding window needs the axis window"
        if point.kv_share is not None and self._window(point, point.kv_share) < point.chunk_size:
            heads = f"{self.full_heads(point)} of {point.kv_heads} KV heads keep everything"
            return f"{heads}: with one chunk for the others this is over {point.kv_share}% of the bytes"
        return ""

    def lost(self, point: AttentionPoint, step: int) -> slice:
        """Positions of the tokens that the window heads of each sequence have lost after `step` completion tokens."""
        assert isinstance(point.n_p, int)
        if self.exact:
            return slice(0, max(0, point.n_p + step - (point.window or 0)))
        shared = point.n_s or 0 if self.share and point.batch_size > point.prompts else 0
        return self.policy(point).lost(point.n_p + step, point.chunk_size, shared)

    def tokens(self, point: AttentionPoint, seed: int, step: int) -> tuple[float, float]:
        """Numbers of tokens that a step reads, averaged over the heads. The first number counts a shared token once.
        The second counts it once for every sequence."""
        assert isinstance(point.n_p, int)
        full, of_all = self.full_heads(point) / point.kv_heads, self.lost(point, step)
        begin, end = of_all.start, of_all.stop
        lost = {}
        for path in point.paths(seed):
            first = 0
            for segment in path:
                lost[segment.id] = max(0, min(end, first + segment.tokens) - max(begin, first))
                first += segment.tokens
        own = max(0, end - max(begin, point.n_p)) * point.batch_size
        unique = point.unique_prompt_tokens(seed) + step * point.batch_size
        total = (point.n_p + step) * point.batch_size
        windows = 1 - full
        return unique - windows * (sum(lost.values()) + own), total - windows * (end - begin) * point.batch_size

    def _compensation(self, point: AttentionPoint) -> Compensation:
        chosen = point.compensation if self.compensation != "none" else None
        return self.compensation if chosen is None else chosen

    def _window(self, point: AttentionPoint, percent: int) -> int:
        """The largest window, in tokens of whole chunks, with which the heads hold at most `percent` of the bytes of
        full caches."""
        assert isinstance(point.n_p, int)
        full, tokens, c = self.full_heads(point) / point.kv_heads, point.n_p + point.n_c, point.chunk_size
        if full == 1:
            return tokens if percent == 100 else 0
        of_chunk = c * kv_bytes(point.head_dim, point.element_bytes, point.kv_dtype)
        sums = 2 * point.head_dim * _SUM_BYTES / of_chunk if self._compensation(point) != "none" else 0.0
        kept = ((percent / 100 - full) / (1 - full) - sums) / (1 - sums)
        return (int(kept * tokens) // c - 2) * c  # a head also has the sinks' chunk and one that is not full yet


METHODS: Mapping[str, HeadMethod] = {
    "razor_attn": HeadMethod(15, "weighted"),
    "razor_attn_own": HeadMethod(15, "weighted", compress="own"),
    "razor_paged": HeadMethod(15, "weighted", share=False),
    "duo_attn": HeadMethod(25),
    "duo_attn_50": HeadMethod(50),
    "streaming_llm": HeadMethod(0),
    "sliding_window": HeadMethod(0, exact=True),
    "vllm_sliding_window": HeadMethod(0, exact=True),
}
"""Id of an implementation -> its method."""


def seen_tokens(
    point: AttentionPoint, seed: int, implementation: str, steps: Sequence[int]
) -> list[tuple[float, float]]:
    """For each step, two numbers of tokens that an implementation reads. The first counts a shared token once. The
    second counts it once for every sequence."""
    method = METHODS.get(implementation)
    if method is not None and not method.obstacle(point):
        return [method.tokens(point, seed, step) for step in steps]
    unique, total = point.unique_prompt_tokens(seed), sum(point.prompt_lengths(seed))
    return [(unique + step * point.batch_size, total + step * point.batch_size) for step in steps]
