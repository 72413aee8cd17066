from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

def cpu_features() -> dict[str, bool]: ...
def isas() -> list[str]: ...
def read_pass(buffer: Tensor | NDArray[Any], threads: int, isa: str = "") -> tuple[float, float]: ...
def matrix_flops_per_s(dtype: str, threads: int, milliseconds: float, isa: str = "") -> float: ...
def pack(
    dtype: str,
    kv_heads: int,
    head_dim: int,
    chunk_size: int,
    kv_dtype: str,
    k: int,
    v: int,
    chunks: NDArray[np.int64],
    slots: NDArray[np.int64],
    threads: int,
    kv_scales: int = 0,
    value_dim: int = 0,
) -> None: ...
def cut(
    dtype: str,
    kv_heads: int,
    head_dim: int,
    chunk_size: int,
    kv_dtype: str,
    chunk: int,
    tokens: int,
    held: int,
    value_dim: int = 0,
) -> None: ...
def use_tensors_of(type: type) -> bool: ...
def dense_address(tensor: object, shape: tuple[int, ...], dtype: str) -> int: ...

class DecodePlan:
    def __init__(
        self,
        dtype: str,
        heads: int,
        kv_heads: int,
        head_dim: int,
        chunk_size: int,
        kv_dtype: str,
        columns: Sequence[str],
        items: NDArray[np.int64],
        chunks: NDArray[np.int64],
        rows: NDArray[np.int64],
        folds: NDArray[np.int64],
        partial_items: int,
        batch: int,
        partials: int,
        threads: int,
        fetch_early: bool,
        side_by_side: bool,
        isa: str,
        value_dim: int = 0,
    ) -> None: ...
    def set_last_tokens(self, tokens: NDArray[np.int64]) -> None: ...
    def decode(
        self,
        q: int,
        out: int,
        scale: float,
        threads: int,
        shift: int = 0,
        sums: int = 0,
        kv_scales: int = 0,
        cap: float = 0,
        sinks: int = 0,
    ) -> None: ...
    def take_memory(self, before: DecodePlan) -> None: ...
    def set_sights(self, sights: NDArray[np.int64]) -> None: ...
    def accumulate(self, q: int, outputs: int, stats: int, scale: float, threads: int) -> None: ...
    def reserve_results(self) -> None: ...
    def decode_beside(
        self,
        q: int,
        out: int,
        other: DecodePlan | None,
        other_q: int,
        other_out: int,
        other_bytes: int,
        scale: float,
        threads: int,
    ) -> None: ...
    def run_layers(
        self,
        layers: Sequence[Any],
        step: Any,
        chunks: NDArray[np.int64],
        slots: NDArray[np.int64],
        layer_bytes: int,
        scale: float,
        threads: int,
    ) -> list[float]: ...
    def set_compensation(
        self,
        entries: NDArray[np.int64],
        shares: NDArray[np.float32],
        biases: NDArray[np.float32],
        count: int,
        stride: int,
    ) -> None: ...
    def decode_dense(self, q: Tensor, out: Tensor, scale: float, threads: int, shift: int = 0) -> bool: ...
    def read(self, threads: int) -> None: ...
    def trace(self, q: int, out: int, scale: float, threads: int) -> NDArray[np.float64]: ...
