"""FLOPs and bytes of the modules of a decoder layer while it decodes one token, computed from shapes (the paper's Table
1).

Counting rules: a multiply-add is two FLOPs. Every matrix is read once. Input and output of every product count once.
Attention moves K, V, queries and output. It also writes and reads the scores of the context. Left out: element-wise
work (softmax, activation, rotary positions), the new token's own score, biases, norms and the output projection. These
rules reproduce every printed digit of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chunkbench.llama import LlamaShape


@dataclass(frozen=True)
class Cost:
    """FLOPs of one call, and the bytes that it moves."""

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, in FLOPs per byte."""
        return self.flops / self.bytes


FIGURES: Mapping[str, Callable[[Cost], float]] = {
    "flops": lambda cost: cost.flops / 1e6,
    "bytes": lambda cost: cost.bytes / 1e6,
    "arithmetic_intensity": lambda cost: cost.intensity,
}
"""Name of a column of the paper's Table 1 -> its value, in the table's unit."""


def qkv_projection(shape: LlamaShape, batch_size: int, context: int, element_bytes: int = 2) -> Cost:
    """One product with the matrices of Q, K and V side by side. The cost does not depend on the context."""
    del context
    columns = shape.qkv_size
    weights = shape.hidden_size * columns
    return Cost(2 * batch_size * weights, element_bytes * (weights + batch_size * (shape.hidden_size + columns)))


def self_attention(shape: LlamaShape, batch_size: int, context: int, element_bytes: int = 2) -> Cost:
    """Attention of one new token per sequence over itself and `context` earlier tokens. No K/V is shared."""
    tokens, width = context + 1, shape.num_attention_heads * shape.head_dim
    keys_and_values = 2 * tokens * shape.num_key_value_heads * shape.head_dim
    scores = 2 * context * shape.num_attention_heads
    moved = keys_and_values + scores + 2 * width
    return Cost(4 * batch_size * tokens * width, element_bytes * batch_size * moved)


def mlp(shape: LlamaShape, batch_size: int, context: int, element_bytes: int = 2) -> Cost:
    """Gate, up and down projection. The cost does not depend on the context."""
    del context
    weights = 3 * shape.hidden_size * shape.intermediate_size
    activations = 3 * (shape.hidden_size + shape.intermediate_size)
    return Cost(2 * batch_size * weights, element_bytes * (weights + batch_size * activations))


MODULES: Mapping[str, Callable[..., Cost]] = {
    "qkv_projection": qkv_projection,
    "self_attention": self_attention,
    "mlp": mlp,
}
