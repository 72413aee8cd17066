"""The schemes that experiments of `kind: ring` can name. Some are our own, others belong to other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chunkbench.bench.contract import YES, Answer
from chunkbench.bench.experiment.terms import Line, Style
from chunkbench.bench.registry import Registry
from chunkbench.workloads.ring.placement import Scheme
from chunkbench.workloads.ring.result import RingPoint

_BALANCED = "balances the work of a causal mask; a full mask needs no balance"
_PYTORCH = ("pytorch-ring", "pytorch-tree")


@dataclass(frozen=True)
class RingMethod:
    """A scheme with its name and its style in reports."""

    label: str
    scheme: Scheme
    style: Style
    phases: tuple[str, ...] = ("prefill",)
    compiles: bool = False

    @property
    def is_peer(self) -> bool:
        """Whether another library computes the attention or moves the bytes."""
        return self.scheme.kernel not in ("native", "flash")

    def availability(self, device: str) -> Answer:
        if device != "cpu" and self.scheme.kernel not in ("flash", "torch-ring", "sdpa"):
            return Answer(False, "its kernel is for CPUs")
        # This import loads torch.
        from chunkbench.workloads.ring.schemes import missing

        lacking = missing(self.scheme)
        return Answer(False, lacking) if lacking else YES

    def supports(self, point: RingPoint) -> str:
        """Why the scheme does not support a point. Empty if it does."""
        scheme = self.scheme
        if point.phase not in self.phases:
            return f"is for phase: {self.phases[0]}"
        if point.mask == "full" and scheme.movement == "ring" and scheme.layout != "contiguous":
            return _BALANCED
        if point.mask == "full" and scheme.kernel == "torch-ring" and scheme.layout != "contiguous":
            return _BALANCED
        if point.link is not None and self.is_peer and scheme.ranks is None:
            return "its transfers cannot be slowed down"
        if scheme.kernel in _PYTORCH and point.dtype != "float32":
            return "ring-attention-pytorch computes in float32"
        if scheme.kernel == "pytorch-tree" and (point.n_s != point.n_p or point.heads != point.kv_heads):
            return "has one context for all sequences, and as many K/V heads as query heads"
        if scheme.kernel == "pytorch-ring" and point.kv_heads not in (1, point.heads):
            return "ring-attention-pytorch gives query heads to K/V heads in another order"
        if scheme.kernel == "pytorch-ring" and (each := point.n_p // point.ranks) > 1024 and each % 1024:
            return "needs a multiple of 1024 tokens for each rank"
        return ""


_BOTH = ("prefill", "decode")


def _style(heading: str, colour: str, marker: str, order: int, line: Line = "solid", meaning: str = "") -> Style:
    return Style(
        heading=tuple(heading.split()), colour=colour, marker=marker, line=line, column_order=order, meaning=meaning
    )


CHOICES: Mapping[str, RingMethod] = {
    "one_process": RingMethod(
        "One process",
        Scheme("contiguous", "none", "native", ranks=1),
        _style("one process", "#555555", "s", 110, meaning="our kernel on the first rank alone"),
        _BOTH,
    ),
    "sdpa": RingMethod(
        "SDPA (one process)",
        Scheme("contiguous", "none", "sdpa", ranks=1),
        _style("SDPA", "#555555", "P", 120, "dashed", "PyTorch's attention on the first rank alone"),
    ),
    "no_exchange": RingMethod(
        "No exchange",
        Scheme("zigzag", "none", "native"),
        _style(
            "no exchange",
            "#999999",
            "x",
            130,
            meaning=("every rank holds all K/V from the start: an upper bound of speed"),
        ),
        _BOTH,
    ),
    "ring": RingMethod(
        "Ring",
        Scheme("contiguous", "ring", "native"),
        _style("Ring", "#D55E00", "^", 200, meaning="RingAttention: one block of consecutive tokens for each rank"),
        _BOTH,
    ),
    "striped": RingMethod(
        "Striped ring",
        Scheme("striped", "ring", "native"),
        _style("Striped ring", "#009E73", "v", 210, meaning="rank r holds the tokens r, r + N, r + 2N, ..."),
    ),
    "zigzag": RingMethod(
        "Zigzag ring",
        Scheme("zigzag", "ring", "native"),
        _style("Zigzag ring", "#0072B2", "o", 220, meaning="rank r holds the blocks r and 2N - 1 - r of 2N blocks"),
    ),
    "all_gather": RingMethod(
        "All-gather",
        Scheme("zigzag", "gather", "native"),
        _style("All gather", "#CC79A7", "D", 230, meaning="every rank first gathers all K/V, then computes"),
        _BOTH,
    ),
    "tree_decode": RingMethod(
        "Tree decode",
        Scheme("contiguous", "merge", "native"),
        _style("Tree decode", "#882255", "*", 240, meaning="partial results are merged by three all-reduces"),
        ("decode",),
    ),
    "ring_flash": RingMethod(
        "Ring (PyTorch kernel)",
        Scheme("contiguous", "ring", "flash"),
        _style("Ring flash", "#D55E00", "^", 300, "dashed", "our ring around PyTorch's flash attention"),
    ),
    "zigzag_flash": RingMethod(
        "Zigzag (PyTorch kernel)",
        Scheme("zigzag", "ring", "flash"),
        _style("Zigzag flash", "#0072B2", "o", 310, "dashed", "our zigzag ring around PyTorch's flash attention"),
    ),
    "torch_ring": RingMethod(
        "PyTorch ring",
        Scheme("contiguous", "ring", "torch-ring"),
        _style("PyTorch ring", "#E69F00", "<", 400, meaning="PyTorch's private ring, not balanced"),
    ),
    "torch_zigzag": RingMethod(
        "PyTorch zigzag",
        Scheme("zigzag", "ring", "torch-ring"),
        _style("PyTorch zigzag", "#E69F00", ">", 410, "dashed", "PyTorch's private ring, balanced, blocks travel"),
    ),
    "torch_all_gather": RingMethod(
        "PyTorch all-gather",
        Scheme("zigzag", "gather", "torch-ring"),
        _style("PyTorch all gather", "#E69F00", "p", 420, "dotted", "PyTorch's private ring as it comes"),
    ),
    "pytorch_ring": RingMethod(
        "ring-attention-pytorch",
        Scheme("contiguous", "ring", "pytorch-ring"),
        _style("RAP ring", "#56B4E9", "h", 500, meaning="ring-attention-pytorch's ring"),
    ),
    "pytorch_striped": RingMethod(
        "ring-attention-pytorch (striped)",
        Scheme("striped", "ring", "pytorch-ring"),
        _style("RAP striped", "#56B4E9", "8", 510, "dashed", "ring-attention-pytorch, striped"),
    ),
    "pytorch_tree": RingMethod(
        "ring-attention-pytorch (tree)",
        Scheme("contiguous", "merge", "pytorch-tree"),
        _style("RAP tree", "#56B4E9", "d", 520, "dotted", "ring-attention-pytorch's tree decoding"),
        ("decode",),
    ),
}

METHODS: Registry[RingMethod] = Registry(CHOICES)
"""The schemes that experiments of `kind: ring` can name."""
