"""Implementations as columns: their order, short headings, and which of them are ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chunkbench.analysis.derive import Row
from chunkbench.experiment.names import BUILT_IN
from chunkbench.report.model import Column

CHUNK_ATTN = "chunk_attn"
ABLATIONS = frozenset({"chunk_attn_torch", "chunk_attn_no_tpp"})
"""Ours as well: beating them says nothing about what others can do."""

_BEFORE = BUILT_IN[: BUILT_IN.index("shared_prefix_matmul")]
_AFTER = ("chunk_attn_torch", "chunk_attn_no_tpp", CHUNK_ATTN)

_SHORT: Mapping[str, tuple[str, ...]] = {
    "naive": ("Naive",),
    "xformers": ("xformers",),
    "flash_attn": ("Flash", "Attn"),
    "sdpa_efficient": ("SDPA", "effic."),
    "cudnn": ("SDPA", "cuDNN"),
    "flash_attn_package": ("Flash", "Attn-2"),
    "flash_attn_package_paged": ("Flash", "Attn-2", "paged"),
    "flash_attn_3": ("Flash", "Attn-3"),
    "flex_attention": ("Flex", "Attn"),
    "flashinfer_paged": ("FlashInf.", "paged"),
    "flashinfer_cascade": ("FlashInf.", "cascade", "fa2"),
    "flashinfer_cascade_fa3": ("FlashInf.", "cascade", "fa3"),
    "flashinfer_flat": ("FlashInf.", "flat"),
    "paged_attn": ("Paged", "Attn"),
    "paged_attn_star": ("Paged", "Attn*"),
    "vllm_paged_attn": ("vLLM",),
    "vllm_paged_attn_star": ("vLLM*",),
    "shared_prefix_matmul": ("Shared", "matmul"),
    "chunk_attn_torch": ("Chunk", "torch"),
    "chunk_attn_no_tpp": ("Chunk", "no TPP"),
    CHUNK_ATTN: ("Chunk", "Attn"),
    "qkv_projection": ("QKV", "proj."),
    "self_attention": ("Self-", "attention"),
    "mlp": ("MLP",),
}

_MEANING: Mapping[str, str] = {
    "vllm_paged_attn": "every sequence in blocks of its own",
    "vllm_paged_attn_star": "block tables share the prompt's blocks",
    "flashinfer_cascade": "one call for each level of the prefix tree",
    "flashinfer_cascade_fa3": "one call for each level of the prefix tree",
    "flashinfer_flat": "all segments of the prefix tree in one call",
    "flex_attention": "all distinct K and V as one sequence under a mask",
    "paged_attn_star": "PagedAttn whose block tables share the prompt's blocks",
    "chunk_attn_torch": "ChunkAttn's algorithm in PyTorch operations",
    "chunk_attn_no_tpp": "ChunkAttn's cache without the chunk-first phase",
}

_WIDEST_SHORT = 9


def ordered(implementations: Iterable[str]) -> list[str]:
    """Columns in the paper's order, vLLM's beside the paper's paged ones, then others as they come, ours last."""
    names = list(dict.fromkeys(implementations))
    others = [name for name in names if name not in _BEFORE and name not in _AFTER]
    return [*(n for n in _BEFORE if n in names), *others, *(n for n in _AFTER if n in names)]


def is_other(implementation: str, baseline: str) -> bool:
    """Whether an implementation competes with the baseline. Where that is ChunkAttn, its ablations do not."""
    return implementation != baseline and not (baseline == CHUNK_ATTN and implementation in ABLATIONS)


def column(implementation: str, label: str) -> Column:
    """The column of an implementation."""
    return Column(name(implementation, label), short(implementation, label))


def name(implementation: str, label: str) -> str:
    """What running text calls it: the label, or the short name where the label is a description (vLLM's)."""
    return "".join(_SHORT[implementation]) if implementation.startswith("vllm_paged_attn") else label


def short(implementation: str, label: str) -> tuple[str, ...]:
    """Heading lines, each at most nine columns wide."""
    known = _SHORT.get(implementation)
    if known:
        return known
    words = label.replace("_", " ").replace("-", " ").split() or [implementation]
    cut = [word if len(word) <= _WIDEST_SHORT else word[: _WIDEST_SHORT - 1] + "." for word in words]
    return tuple(cut[:3])


def legend(implementations: Iterable[str], rows: Mapping[str, Row]) -> list[str]:
    """What headings stand for that are not the label itself; `rows` has one row of each implementation."""
    lines = []
    for implementation in implementations:
        label = rows[implementation].facts.label
        heading = " ".join(short(implementation, label))
        meaning = _MEANING.get(implementation, "")
        same = heading.replace(" ", "") == label.replace(" ", "")
        text = ": ".join(part for part in ("" if same else label, meaning) if part)
        if text:
            lines.append(f"{label if same else heading} = {text}")
    return lines
