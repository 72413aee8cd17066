"""Ids of implementations, known without importing any of them."""

from __future__ import annotations

from importlib.metadata import entry_points

BUILT_IN = (
    "naive",
    "xformers",
    "flash_attn",
    "sdpa_efficient",
    "cudnn",
    "flash_attn_package",
    "flash_attn_package_paged",
    "flash_attn_3",
    "flex_attention",
    "flashinfer_paged",
    "flashinfer_cascade",
    "flashinfer_cascade_fa3",
    "flashinfer_flat",
    "paged_attn",
    "paged_attn_star",
    "vllm_paged_attn",
    "vllm_paged_attn_star",
    "shared_prefix_matmul",
    "chunk_attn",
    "chunk_attn_no_tpp",
    "chunk_attn_torch",
)
"""Ours, in the order of the paper's tables with others of their kind behind them; a checkout that is not installed has
no entry points to read them from."""


MODULES = ("qkv_projection", "self_attention", "mlp")
"""Modules of a decoder layer, measured by experiments of `kind: modules` as implementations are by others."""


def known_implementations() -> tuple[str, ...]:
    """Our own ids, then those that third parties registered under the entry point group `chunkbench.baselines`."""
    registered = {point.name for point in entry_points(group="chunkbench.baselines")}
    return (*BUILT_IN, *sorted(registered - set(BUILT_IN)))
