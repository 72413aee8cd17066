"""Shows how much prefix the prompts of a file share: as a table, and as an experiment file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from chunkbench.bench.analysis.sharing import Sharing
from chunkbench.bench.experiment.tree import Forest
from chunkbench.llama import LlamaShape
from chunkbench.report.model import Column, Output, Table
from chunkbench.report.numbers import NOTHING, count
from chunkbench.report.printed import paper_rows

MOST_SEQUENCES = 32
"""Largest number of prompts of a group in an experiment, equal to the paper's batch size."""


def document(groups: Sequence[Sharing], shape: LlamaShape, chunk_size: int, n_c: int) -> Output:
    """Make a table with a row for each group of prompts. The paper's Table 2 follows."""
    gib = shape.kv_bytes() / 2**30
    columns: tuple[Column[Sharing], ...] = (
        Column("group", lambda group: group.group, align="left"),
        Column("prompts", lambda group: f"{group.prompts:,}"),
        Column("tokens of a prompt", lambda group: f"{group.tokens_mean:,.0f}", ("prompt", "tokens")),
        Column("shared, mean", lambda group: f"{group.shared_mean:,.0f}", ("shared", "mean")),
        Column("shared, most", lambda group: f"{group.shared_max:,}", ("shared", "most")),
        Column("shared by all", lambda group: f"{group.common:,}", ("shared", "by all")),
        Column("r", lambda group: f"{group.ratio:.2f}"),
        Column("K/V, nothing shared (GiB)", lambda group: f"{group.tokens * gib:,.2f}", ("K/V", "GiB")),
        Column("K/V, shared (GiB)", lambda group: f"{group.held * gib:,.2f}", ("K/V shared", "GiB")),
        Column("saved", lambda group: f"{group.saved:.0%}"),
    )
    return Output(
        title=f"Shared prefixes of {count(sum(group.prompts for group in groups), 'prompt')}",
        headline=_headline(groups),
        tables=(Table("Groups of prompts", columns, groups), paper_table()),
        legend=(
            "shared: leading tokens that a prompt has in common with some other prompt of its group",
            f"r: shared tokens over prompt and completion tokens ({n_c} of a completion), mean over prompts",
            f"K/V: memory of all prompts of the group with their completions, {shape.name} in 16-bit numbers "
            f"({shape.kv_bytes() / 1024:,.0f} KiB a token); shared: in whole chunks of {chunk_size} tokens",
        ),
        data=[asdict(group) | {"saved": group.saved} for group in groups],
    )


def experiment(
    groups: Sequence[Sharing], forests: Sequence[Forest], shape: LlamaShape, chunk_size: int, n_c: int
) -> str:
    """The YAML text of an experiment on decode attention over these prompts. Each group has one block in the sweep. The
    forest of the block holds the first prompts of the group."""
    lines = [
        f"# Written by chunkbench prompts: a block for every group, the forest of its first {MOST_SEQUENCES} prompts.",
        'title: "Decode attention over these prompts"',
        "",
        "implementations: [naive, flash_attn, vllm_paged_attn, vllm_paged_attn_star, paged_attn, paged_attn_star,",
        "                  chunk_attn]",
        "baseline: chunk_attn",
        "budget: 5m",
        "",
        f"defaults: {{n_c: {n_c}, heads: {shape.num_attention_heads}, kv_heads: {shape.num_key_value_heads}, "
        f"head_dim: {shape.head_dim}, chunk_size: {chunk_size}}}",
        "",
        "sweep:",
    ]
    for group, forest in zip(groups, forests, strict=True):
        lines += [f"  # {_comment(group)}", f"  - tree: {json.dumps(forest)}"]
    return "\n".join(lines) + "\n"


def _comment(group: Sharing) -> str:
    """Name and figures of a group. The name comes from a file: a line break in it must not end the comment."""
    name = "".join(char if char.isprintable() else "?" for char in group.group)
    return f"{name}: {count(group.prompts, 'prompt')}, r = {group.ratio:.2f}"


def _headline(groups: Sequence[Sharing]) -> str:
    tokens, held = sum(group.tokens for group in groups), sum(group.held for group in groups)
    return f"Sharing saves {1 - held / tokens:.0%} of the K/V cache: {tokens / held:.1f} times as many sequences fit."


def paper_table() -> Table:
    def tokens(name: str) -> Callable[[Mapping[str, str]], str]:
        return lambda row: f"{int(row[name]):,}" if row[name] else NOTHING

    columns: tuple[Column[Mapping[str, str]], ...] = (
        Column("system", lambda row: row["system"], align="left"),
        Column("what is shared", lambda row: row["usage"], align="left"),
        Column("shared, mean", tokens("shared_tokens_mean"), ("shared", "mean")),
        Column("shared, most", tokens("shared_tokens_max"), ("shared", "most")),
    )
    title = "The paper's Table 2 (other prompts, counted with tiktoken)"
    return Table(title, columns, paper_rows("table2"))
