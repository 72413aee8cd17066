"""The implementations of decode attention: one row for each of ours, and those that other packages register. Imports
neither torch nor an adapter.

A row names its adapter: a class of a file in this folder. Variants are rows with the same adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from chunkbench.bench.contract import Implementation, Style
from chunkbench.bench.experiment.terms import Line
from chunkbench.bench.registry import GROUP, Registry
from chunkbench.kv_dtype import KvDtype
from chunkbench.latent import QueryForm


class Row:
    """An implementation: its adapter (`file:Class`), how reports show it, and the attributes that differ from those of
    the adapter's class."""

    def __init__(
        self,
        id_: str,
        adapter: str,
        label: str,
        heading: tuple[str, ...],
        column_order: int,
        colour: str,
        marker: str,
        line: Line = "solid",
        meaning: str = "",
        *,
        name: str = "",
        ablation_of: str = "",
        kv_dtype: KvDtype | None = None,
        **differing: object,
    ) -> None:
        self.style = Style(
            heading=heading,
            name=name,
            meaning=meaning,
            column_order=column_order,
            colour=colour,
            marker=marker,
            line=line,
            ablation_of=ablation_of,
        )
        self.id = id_
        self._file, self._class = adapter.split(":")
        self._stated = {"id": id_, "label": label, "style": self.style}
        self.differing = differing
        self.kv_dtype = kv_dtype
        """How it stores K and V, whatever the point says. None: as the point says."""

    def load(self) -> type[Implementation]:
        """Import the adapter, and return a subclass of its class with the attributes of this row."""
        adapter = getattr(import_module(f"chunkbench.baselines.{self._file}"), self._class)
        return type(self._class, (adapter,), self._stated | self.differing)


_PAGED, _CHUNK, _FLASH, _VLLM, _RAZOR, _DUO = "#0072B2", "#D55E00", "#E69F00", "#CC79A7", "#8C564B", "#17BECF"
_FLASHINFER = "#332288"

_EIGHT_BITS: tuple[tuple[KvDtype, str, int], ...] = (("int8", "s", 991), ("uint8", "D", 992), ("fp8", "^", 993))


def _in_8_bits(kv_dtype: KvDtype, marker: str, order: int) -> Row:
    return Row(
        f"chunk_attn_{kv_dtype}", "chunk_attn:ChunkAttn", f"ChunkAttn, {kv_dtype}", ("Chunk", kv_dtype), order, _CHUNK,
        marker, "dashed", f"ChunkAttn with K and V in {kv_dtype}", ablation_of="chunk_attn", kv_dtype=kv_dtype,
    )  # fmt: skip


ROWS = (
    Row("naive", "naive:Naive", "Naive", ("Naive",), 100, "#6E6E6E", "o"),
    Row("xformers", "xformers_:Xformers", "xformers", ("xformers",), 110, "#8C564B", "v"),
    Row(
        "flash_attn", "flash_attn:FlashAttn", "FlashAttn", ("Flash", "Attn"), 120, _FLASH, "^",
        note="FlashAttn is the FlashAttention backend of PyTorch's SDPA, as in the paper; it is designed for prefill "
        "and uses only a fraction of its capacity with one query per sequence",
    ),
    Row("sdpa_efficient", "sdpa:SdpaEfficient", "SDPA memory-efficient", ("SDPA", "effic."), 130, "#999933", "v"),
    Row("cudnn", "sdpa:Cudnn", "SDPA cuDNN", ("SDPA", "cuDNN"), 140, "#117733", "h"),
    Row(
        "flash_attn_package", "flash_attn_package:FlashAttnPackage", "FlashAttention-2 (flash-attn)",
        ("Flash", "Attn-2"), 150, _FLASH, "<", "dashed",
    ),
    Row(
        "flash_attn_package_paged", "flash_attn_package:FlashAttnPackagePaged", "FlashAttention-2 (flash-attn), paged",
        ("Flash", "Attn-2", "paged"), 160, _FLASH, "d", "dashdot",
    ),
    Row("flash_attn_3", "flash_attn_3:FlashAttn3", "FlashAttention-3", ("Flash", "Attn-3"), 170, _FLASH, "8", "dotted"),
    Row(
        "flex_attention", "flex_attention:FlexAttention", "FlexAttention", ("Flex", "Attn"), 180, "#AA4499", ">",
        meaning="all distinct K and V as one sequence under a mask",
        note="FlexAttention: all distinct K/V form one sequence; a mask says which row sees which token",
    ),
    Row(
        "flashinfer_paged", "flashinfer_:FlashInfer", "FlashInfer paged",
        ("FlashInf.", "paged"), 190, _FLASHINFER, "s", drafts="trees",
    ),
    Row(
        "flashinfer_cascade", "flashinfer_:FlashInfer", "FlashInfer cascade (fa2)",
        ("FlashInf.", "cascade", "fa2"), 200, _FLASHINFER, "^", "dashed", "one call for each level of the prefix tree",
        form="cascade", reads_shared_once=True,
    ),
    Row(
        "flashinfer_cascade_fa3", "flashinfer_:FlashInfer", "FlashInfer cascade (fa3)",
        ("FlashInf.", "cascade", "fa3"), 210, _FLASHINFER, "v", "dashdot", "one call for each level of the prefix tree",
        form="cascade", backend="fa3", reads_shared_once=True, kv_dtypes=("same",),
    ),
    Row(
        "flashinfer_flat", "flashinfer_:FlashInfer", "FlashInfer flat",
        ("FlashInf.", "flat"), 220, _FLASHINFER, "P", "dotted", "all segments of the prefix tree in one call",
        form="flat", reads_shared_once=True,
        note="FlashInfer flat: all segments of the prefix tree are requests of one call, merged by merge_states",
    ),
    Row("paged_attn", "paged_attn:PagedAttn", "PagedAttn", ("Paged", "Attn"), 230, _PAGED, "s"),
    Row(
        "paged_attn_whole", "paged_attn:PagedAttn", "PagedAttn, whole", ("Paged", "whole"), 235, _PAGED, "o", "dotted",
        "PagedAttn with one block for each sequence: contiguous K/V", whole=True,
    ),
    Row(
        "paged_attn_star", "paged_attn:PagedAttn", "PagedAttn*", ("Paged", "Attn*"), 240, _PAGED, "D", "dashed",
        "PagedAttn whose block tables share the prompt's blocks", shares_storage=True,
    ),
    Row(
        "vllm_paged_attn", "vllm_cpu:VllmPagedAttn", "PagedAttn", ("vLLM",), 250, _VLLM, "P",
        meaning="every sequence in blocks of its own", name="vLLM",
    ),
    Row(
        "vllm_paged_attn_star", "vllm_cpu:VllmPagedAttn", "PagedAttn*", ("vLLM*",), 260, _VLLM, "*", "dashed",
        "block tables share the prompt's blocks", name="vLLM*", shares_storage=True,
    ),
    Row(
        "vllm_paged_attn_fp8", "vllm_cpu:VllmPagedAttn", "PagedAttn, fp8", ("vLLM", "fp8"), 270, _VLLM, "X", "dotted",
        "every sequence in blocks of its own, K and V in fp8", name="vLLM, fp8", kv_dtype="fp8",
    ),
    Row(
        "vllm_paged_attn_star_fp8", "vllm_cpu:VllmPagedAttn", "PagedAttn*, fp8", ("vLLM*", "fp8"), 280, _VLLM, "d",
        "dotted", "block tables share the prompt's blocks, K and V in fp8", name="vLLM*, fp8", shares_storage=True,
        kv_dtype="fp8",
    ),
    Row(
        "shared_prefix_matmul", "shared_prefix_matmul:SharedPrefixMatmul", "Shared matmul",
        ("Shared", "matmul"), 500, "#009E73", "X",
        note="Shared matmul is ten lines of PyTorch: one product over the batch's common prefix, a batched one over "
        "the rest",
    ),
    Row(
        "chunk_attn_authors", "chunk_attn_authors:ChunkAttnAuthors", "ChunkAttn (authors)",
        ("Chunk", "authors"), 890, _CHUNK, "h", "dashdot", "the authors' published CPU kernel",
        note="ChunkAttn (authors) is the published CPU kernel. It computes with MKL, which takes a slower path on CPUs "
        "that are not Intel's",
    ),
    Row(
        "chunk_attn_torch", "chunk_attn:ChunkAttn", "ChunkAttn (PyTorch)", ("Chunk", "torch"), 900, _CHUNK, "<",
        "dotted", "ChunkAttn's algorithm in PyTorch operations", ablation_of="chunk_attn", kernel="torch",
    ),
    Row(
        "chunk_attn_no_tpp", "chunk_attn:ChunkAttn", "ChunkAttn, no TPP", ("Chunk", "no TPP"), 910, _CHUNK, "p",
        "dashed", "ChunkAttn's cache without the chunk-first phase", ablation_of="chunk_attn", reads_shared_once=False,
    ),
    Row(
        "plan_flat", "planned:Planned", "Plan: flat", ("Plan", "flat"), 920, _CHUNK, "1", "dotted",
        "ChunkAttn's kernel and K/V; every sequence reads its whole path",
        ablation_of="chunk_attn", reads_shared_once=False,
    ),
    Row(
        "plan_cascade", "planned:Planned", "Plan: cascade", ("Plan", "cascade"), 921, _CHUNK, "2", "dotted",
        "ChunkAttn's kernel and K/V; the first shared node is read once, the rest once per sequence (Hydragen)",
        ablation_of="chunk_attn", reads_shared_once=False,
    ),
    Row(
        "plan_node_wise", "planned:Planned", "Plan: node-wise", ("Plan", "node-wise"), 922, _CHUNK, "3", "dotted",
        "ChunkAttn's kernel and K/V; each node is read once (DeFT-Node)", ablation_of="chunk_attn",
    ),
    Row(
        "plan_tree_fused", "planned:Planned", "Plan: tree-fused", ("Plan", "tree-fused"), 923, _CHUNK, "4", "dotted",
        "ChunkAttn's kernel and K/V; FastTree's greedy split with its constants", ablation_of="chunk_attn",
    ),
    Row(
        "plan_pack", "planned:Planned", "Plan: pack", ("Plan", "pack"), 924, _CHUNK, "+", "dotted",
        "ChunkAttn's kernel and K/V; PAT's pack scheduler", ablation_of="chunk_attn",
    ),
    Row(
        "streaming_llm", "head_caches:HeadCaches", "StreamingLLM", ("Streaming", "LLM"), 940, "#BCBD22", "v",
        meaning="all heads keep only sinks and a window",
    ),
    Row(
        "sliding_window", "head_caches:HeadCaches", "Sliding window", ("Sliding", "window"), 941, _CHUNK, "v",
        meaning="ChunkAttn in a layer with a sliding window: all heads read the last tokens only",
    ),
    Row(
        "vllm_sliding_window", "vllm_cpu:VllmSlidingWindow", "Sliding window", ("vLLM", "window"), 942, _VLLM, "v",
        meaning="vLLM's kernel with a sliding window; block tables share the prompt's blocks", name="vLLM, window",
        shares_storage=True,
    ),
    Row(
        "duo_attn_50", "head_caches:HeadCaches", "DuoAttn, 50%", ("Duo", "50%"), 944, _DUO, "d", "dashed",
        "50% of the heads keep all tokens, the others only sinks and a window",
    ),
    Row(
        "duo_attn", "head_caches:HeadCaches", "DuoAttn", ("Duo", "Attn"), 945, _DUO, "D",
        meaning="25% of the heads keep all tokens, the others only sinks and a window",
    ),
    Row(
        "razor_paged", "head_caches:HeadCaches", "RazorAttn, paged", ("Razor", "paged"), 955, _RAZOR, "X", "dashed",
        "RazorAttn in which each sequence has its own chunks",
        ablation_of="razor_attn", shares_storage=False, reads_shared_once=False,
    ),
    Row(
        "razor_attn_own", "head_caches:HeadCaches", "RazorAttn, own", ("Razor", "own"), 958, _RAZOR, "h", "dashdot",
        "RazorAttn in which all heads keep shared prefixes whole", ablation_of="razor_attn",
    ),
    Row(
        "razor_attn", "head_caches:HeadCaches", "RazorAttn", ("Razor", "Attn"), 960, _RAZOR, "P",
        meaning="retrieval heads keep all tokens, the others sinks, a window and a compensation token",
    ),
    Row(
        "mla_sdpa", "latent:SdpaLatent", "SDPA, expanded", ("SDPA", "MLA"), 1000, "#6E6E6E", "o",
        meaning="PyTorch's attention over the expanded K and V of each sequence", latent="expanded",
    ),
    Row(
        "mla_vllm", "latent:VllmLatent", "vLLM's MLA", ("vLLM", "MLA"), 1010, _VLLM, "P",
        meaning="vLLM's operator for CPUs: the absorbed form, each sequence by itself", latent="absorbed",
    ),
    Row(
        "flashinfer_mla", "latent_gpu:FlashInferLatent", "FlashInfer MLA (fa2)", ("FlashInf.", "MLA", "fa2"), 1012,
        _FLASHINFER, "s", meaning="FlashInfer's kernel: the absorbed form, shared storage, each sequence by itself",
        latent="absorbed", shares_storage=True,
    ),
    Row(
        "flashinfer_mla_fa3", "latent_gpu:FlashInferLatent", "FlashInfer MLA (fa3)", ("FlashInf.", "MLA", "fa3"), 1014,
        _FLASHINFER, "v", "dashdot", "FlashInfer's kernel for Hopper GPUs", latent="absorbed", shares_storage=True,
        backend="fa3",
    ),
    Row(
        "flash_mla", "latent_gpu:FlashMla", "FlashMLA", ("Flash", "MLA"), 1016, _FLASH, "^",
        meaning="DeepSeek's kernel: the absorbed form, shared storage, each sequence by itself",
        latent="absorbed", shares_storage=True,
        note="FlashMLA of 2026 distributes its work in the first call after a plan, which is not timed",
    ),
    Row(
        "mla_absorb", "latent:LatentTree", "Absorbed", ("absorb",), 1020, _PAGED, "s",
        meaning="the absorbed form, every sequence with latents of its own", latent="absorbed",
    ),
    Row(
        "mla_absorb_star", "latent:LatentTree", "Absorbed*", ("absorb*",), 1030, _PAGED, "D", "dashed",
        "the absorbed form; sequences share storage, and each reads it by itself", latent="absorbed",
        shares_storage=True,
    ),
    Row(
        "mla_absorb_two_phase", "latent:LatentTree", "Absorbed, two-phase", ("absorb", "2-phase"), 1040, _CHUNK, "^",
        "dashed", "the absorbed form; a shared chunk is read once for all its sequences (ChunkAttention)",
        latent="absorbed", shares_storage=True, reads_shared_once=True,
    ),
    Row(
        "mla_naive", "latent:LatentTree", "Expanded", ("naive",), 1050, "#009E73", "v", "dashed",
        "the expanded form of all tokens; a shared chunk is read once", latent="expanded", shares_storage=True,
        reads_shared_once=True,
    ),
    Row(
        "mla_mixed", "latent:LatentMixed", "Mixed", ("mixed",), 1060, _CHUNK, "X", "dotted",
        "shared chunks expanded, the rest absorbed, however few sequences share", latent="both", shares_storage=True,
        reads_shared_once=True,
    ),
    Row(
        "mla_auto", "latent:LatentMixed", "Auto", ("auto",), 1070, _CHUNK, "o",
        meaning="TyphoonMLA: Mixed where so many sequences share a chunk that the rates predict a gain, else absorbed",
        latent="both", shares_storage=True, reads_shared_once=True, chooses=True,
    ),
    Row("chunk_attn", "chunk_attn:ChunkAttn", "ChunkAttn", ("Chunk", "Attn"), 990, _CHUNK, "o"),
    *(_in_8_bits(*which) for which in _EIGHT_BITS),
)  # fmt: skip
"""Our implementations, in the order of their columns in tables."""

KV_DTYPES_OF: Mapping[str, KvDtype] = {row.id: row.kv_dtype for row in ROWS if row.kv_dtype is not None}
"""`Row.kv_dtype` of the rows that have one."""

LATENT_FORMS: Mapping[str, QueryForm] = {
    row.id: cast("QueryForm", row.differing["latent"]) for row in ROWS if "latent" in row.differing
}
"""The queries that rows of latent attention take."""

REGISTRY: Registry[Implementation] = Registry({row.id: row for row in ROWS}, GROUP)
"""Implementations of experiments of `kind: decode` and `kind: memory`."""
