"""What prompts share: as a table with the paper's Table 2, and as an experiment file."""

from __future__ import annotations

from collections.abc import Sequence

from chunkbench.analysis.sharing import Sharing
from chunkbench.experiment.llama import LlamaShape
from chunkbench.paper.printed import paper_rows
from chunkbench.report.model import Cell, Column, Document, Table
from chunkbench.report.numbers import NOTHING, count

_MOST_SEQUENCES = 32
"""Largest batch size in the experiment: the paper's."""


def document(groups: Sequence[Sharing], shape: LlamaShape, chunk_size: int, n_c: int) -> Document:
    """The figures of these groups of prompts, and the paper's Table 2."""
    columns = (
        Column("group", ("group",), "left"),
        Column("prompts", ("prompts",)),
        Column("tokens of a prompt", ("prompt", "tokens")),
        Column("shared, mean", ("shared", "mean")),
        Column("shared, most", ("shared", "most")),
        Column("shared by all", ("shared", "by all")),
        Column("r", ("r",)),
        Column("K/V, nothing shared (GiB)", ("K/V", "GiB")),
        Column("K/V, shared (GiB)", ("K/V shared", "GiB")),
        Column("saved", ("saved",)),
    )
    gib = shape.kv_bytes() / 2**30
    rows = tuple(
        tuple(
            map(
                Cell,
                (
                    group.group,
                    f"{group.prompts:,}",
                    f"{group.tokens_mean:,.0f}",
                    f"{group.shared_mean:,.0f}",
                    f"{group.shared_max:,}",
                    f"{group.common:,}",
                    f"{group.ratio:.2f}",
                    f"{group.tokens * gib:,.2f}",
                    f"{group.held * gib:,.2f}",
                    f"{group.saved:.0%}",
                ),
            )
        )
        for group in groups
    )
    return Document(
        title=f"Shared prefixes of {count(sum(group.prompts for group in groups), 'prompt')}",
        warnings=(),
        losses="",
        headline=_headline(groups),
        tables=(Table("Groups of prompts", columns, rows, keys=1), paper_table()),
        statuses=(),
        legend=(
            "shared: leading tokens that a prompt has in common with some other prompt of its group",
            f"r: shared tokens over prompt and completion tokens ({n_c} of a completion), mean over prompts",
            f"K/V: memory of all prompts of the group with their completions, {shape.name} in 16-bit numbers "
            f"({shape.kv_bytes() / 1024:,.0f} KiB a token); shared: in whole chunks of {chunk_size} tokens",
        ),
        footer=(),
    )


def experiment(groups: Sequence[Sharing], shape: LlamaShape, chunk_size: int, n_c: int) -> str:
    """A YAML experiment on decode attention over prompts like these, with one block per group."""
    lines = [
        "# Written by chunkbench prompts: every group of prompts is a block, with the means of its lengths.",
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
    for group in groups:
        n_p = max(1, round(group.tokens_mean))
        n_s = min(n_p, round(group.shared_mean))
        batch = min(_MOST_SEQUENCES, group.prompts)
        lines.append(f"  - {{n_p: {n_p}, n_s: {n_s}, batch_size: {batch}}}  # {_comment(group)}")
    return "\n".join(lines) + "\n"


def _comment(group: Sharing) -> str:
    """Name and figures of a group. The name comes from a file: a line break in it must not end the comment."""
    name = "".join(char if char.isprintable() else "?" for char in group.group)
    return f"{name}: {count(group.prompts, 'prompt')}, r = {group.ratio:.2f}"


def _headline(groups: Sequence[Sharing]) -> str:
    tokens, held = sum(group.tokens for group in groups), sum(group.held for group in groups)
    return f"Sharing saves {1 - held / tokens:.0%} of the K/V cache: {tokens / held:.1f} times as many sequences fit."


def paper_table() -> Table:
    """The paper's Table 2 as printed."""
    columns = (
        Column("system", ("system",), "left"),
        Column("what is shared", ("what is shared",), "left"),
        Column("shared, mean", ("shared", "mean")),
        Column("shared, most", ("shared", "most")),
    )
    rows = tuple(
        tuple(
            Cell(text)
            for text in (
                row["system"],
                row["usage"],
                f"{int(row['shared_tokens_mean']):,}",
                f"{int(row['shared_tokens_max']):,}" if row["shared_tokens_max"] else NOTHING,
            )
        )
        for row in paper_rows("table2")
    )
    return Table("The paper's Table 2 (other prompts, counted with tiktoken)", columns, rows, keys=1)
