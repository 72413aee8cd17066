"""The table of axes: how an axis is read from a file, its default, its names in reports, and how its values are shown.

Each axis is declared once, in this table. A kind of work has an axis if the class of its points has a field with the
axis's name. The default value is the default of this field. Experiments, their schema, tables and figures take
everything else about an axis from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from chunkbench.bench.experiment.findings import Finding, Findings, Path
from chunkbench.bench.experiment.tree_reader import TREES_SCHEMA, read_forest
from chunkbench.bench.experiment.values import (
    DTYPES,
    LATENT_SCHEMA,
    MAX_NAME,
    MAX_SEQUENCES,
    MAX_TOKENS,
    PROMPT_LENGTH_SCHEMA,
    SHARED_LENGTH_SCHEMA,
    AxisValue,
    count_reader,
    integer_schema,
    read_draft,
    read_dtype,
    read_kv_dtype,
    read_latent,
    read_model,
    read_name,
    read_projections,
    read_prompt_length,
    read_shared_length,
)
from chunkbench.draft import CHAIN, MOST_ROWS
from chunkbench.kv_dtype import KV_DTYPES
from chunkbench.latent import LATENTS, ProjectionsTime
from chunkbench.llama import SHAPES


@dataclass(frozen=True)
class Axis:
    """An axis of experiments: how files, reports and figures write the axis."""

    name: str
    description: str
    values: str
    """Description of the values that a file may give."""
    default_words: str
    read: Callable[[object], AxisValue]
    """Reads one plain value from a file. Raises `Findings`."""
    schema: Mapping[str, Any]
    label: str
    """The axis in words, for figures."""
    symbol: str = ""
    """The paper's symbol, as TeX writes it."""
    whole: bool = False
    """How a list in a file is read. True: the list is one value, unless all items are texts. False: each item is one
    value."""


def _counted(
    name: str,
    description: str,
    default_words: str,
    low: int,
    high: int,
    label: str,
    symbol: str = "",
    multiple: int = 1,
) -> Axis:
    values = f"whole number, {low} to {high}" + (f", a multiple of {multiple}" if multiple > 1 else "")
    schema = integer_schema(low, high) | ({"multipleOf": multiple} if multiple > 1 else {})
    read = count_reader(low, high, multiple)
    return Axis(name, description, values, default_words, read, schema, label, symbol)


def _named(name: str, description: str, values: str, default_words: str) -> Axis:
    schema = {"type": "string", "minLength": 1, "maxLength": MAX_NAME}
    return Axis(name, description, values, default_words, read_name, schema, name)


_TABLE = (
    _named(
        "traffic",
        "the requests of `kind: replay`; with traffic other than fixed, n_p and n_c follow from it",
        "fixed (n_p, n_s, n_c), sharegpt, alpaca, chat, conversations, or the path of a trace",
        "fixed",
    ),
    Axis(
        "model",
        "the model whose layer `kind: modules` measures, or that servers and replays run; it decides the heads",
        f"{', '.join(SHAPES)}, or the path of a Hugging Face config.json",
        "required by kind: modules; small-llama for kind: serving, llama2-7b for kind: replay",
        read_model,
        {"type": "string", "examples": list(SHAPES)},
        "model",
    ),
    Axis(
        "n_p",
        "tokens of a prompt; a range gives prompts of different lengths, drawn from the seed",
        f"whole number, 1 to {MAX_TOKENS}, or {{low: A, high: B}}",
        "required",
        read_prompt_length,
        PROMPT_LENGTH_SCHEMA,
        "prompt tokens",
        "n_p",
    ),
    Axis(
        "n_s",
        "leading tokens of a prompt that are shared",
        "whole number up to n_p, or a share of it: n_p, 0.5 n_p, 3/4 n_p",
        "required unless tree is given",
        read_shared_length,
        SHARED_LENGTH_SCHEMA,
        "shared prompt tokens",
        "n_s",
    ),
    _counted("n_c", "tokens that every sequence decodes", "64", 1, MAX_TOKENS, "completion tokens", "n_c"),
    _counted(
        "batch_size",
        "sequences decoded together",
        "32, or the number of sequences in tree",
        1,
        MAX_SEQUENCES,
        "batch size",
        "b",
    ),
    _counted(
        "prompts",
        "different system prompts; sequence k uses prompt k mod prompts",
        "1",
        1,
        MAX_SEQUENCES,
        "prompts",
    ),
    Axis(
        "tree",
        "any forest of shared prompts, instead of n_s and prompts; with private tokens, instead of n_p, too",
        "[[tokens, children], ...], children being a number of sequences, a list of their private tokens or another "
        "list of this form; NODESxTOKENS of each level, the sequences last, as in 1x8 4x256 256x32; or the path of a "
        ".json or .yaml file",
        "none",
        read_forest,
        TREES_SCHEMA,
        "tree",
        whole=True,
    ),
    _counted("heads", "query heads", "32", 1, 1024, "query heads", "h"),
    _counted("kv_heads", "K/V heads; divides heads", "heads", 1, 1024, "KV heads", "h_{kv}"),
    _counted("head_dim", "head dimension", "128", 16, 256, "head dimension", "d", multiple=16),
    Axis(
        "latent",
        "latent attention (MLA) in place of heads with K and V of their own, for the rows mla_*, flashinfer_mla* and "
        "flash_mla; a model decides heads",
        f"{', '.join(LATENTS)}, or {{kv_rank: 512, rope: 64, nope: 128, v: 128}} with heads beside it",
        "none",
        read_latent,
        LATENT_SCHEMA,
        "latent attention",
    ),
    Axis(
        "projections",
        "with latent: whether timed calls contain the products of queries and outputs with W_uk and W_uv; rows that "
        "expand multiply each new token by them when it is appended, in any case",
        "apart (attention alone), timed",
        "apart",
        read_projections,
        {"enum": list(get_args(ProjectionsTime))},
        "projections",
    ),
    _counted(
        "query_rows",
        "query rows of a sequence, which are its last tokens: a draft that speculative decoding verifies",
        "1, or the tokens of the tree in draft",
        1,
        MOST_ROWS,
        "query rows",
    ),
    Axis(
        "draft",
        "which of its last tokens a query row reads, besides all tokens before them: itself and its ancestors",
        "chain (each token follows the one before it), or the tokens of each level of a tree, as in 1 4 8 19",
        "chain",
        read_draft,
        {
            "anyOf": [
                {"const": CHAIN},
                {"type": "string", "pattern": r"^\s*[0-9]+(\s+[0-9]+)*\s*$"},
                integer_schema(1, MOST_ROWS),
            ]
        },
        "draft",
    ),
    _counted(
        "retrieval",
        "KV heads that keep everything in RazorAttn's rows; the others keep a window",
        "15",
        0,
        100,
        "full heads, %",
    ),
    _counted(
        "window",
        "tokens of the window of KV heads that do not keep everything; for the rows *sliding_window, which need it, "
        "the tokens that a query reads, its own included",
        "a fifth of the sequence, at least 4000",
        1,
        MAX_TOKENS,
        "window",
    ),
    _counted(
        "kv_share",
        "K/V that all heads together may keep, in percent of the full bytes; decides the window",
        "none",
        1,
        100,
        "K/V, % of full",
    ),
    _named(
        "compensation",
        "how the compensation token stands for the tokens that a window head lost, for methods that have this token",
        "none, mean (of K and V), weighted (mean, with the logarithm of the number of lost tokens added to its score)",
        "weighted",
    ),
    _counted("chunk_size", "tokens per chunk of ChunkAttn's cache", "64", 1, MAX_TOKENS, "chunk size", "c"),
    # 32 is the smallest block for which vLLM's CPU kernel takes its plain vector path.
    _counted(
        "block_size",
        "tokens per block of a paged cache",
        "32, which suits vLLM's CPU kernel",
        1,
        MAX_TOKENS,
        "tokens of a block",
    ),
    Axis(
        "dtype",
        "element type of K, V, q and out",
        ", ".join(DTYPES),
        "dtype of the experiment",
        read_dtype,
        {"enum": list(DTYPES)},
        "dtype",
    ),
    Axis(
        "kv_dtype",
        "how K and V are stored: in dtype, or in 8 bits with scales",
        ", ".join(KV_DTYPES),
        "same",
        read_kv_dtype,
        {"enum": list(KV_DTYPES)},
        "K/V",
    ),
    _counted(
        "load",
        "requests per second as a share of the reference system's capacity, for `kind: serving`",
        "none",
        1,
        1000,
        "load, % of capacity",
    ),
    _counted(
        "rate",
        "requests per minute, for `kind: serving`, instead of load",
        "none",
        1,
        1_000_000,
        "requests per minute",
    ),
    _counted(
        "clients",
        "clients of `kind: serving`, instead of load: each sends its next request when it has its answer",
        "none",
        1,
        MAX_SEQUENCES,
        "clients",
    ),
    _counted(
        "forced",
        "share of the bytes of answers that leave no choice, for `kind: serving` with `constrained: share`",
        "none",
        0,
        95,
        "bytes without a choice, %",
    ),
    _counted(
        "memory",
        "token slots of K/V memory, for `kind: replay`",
        "enough for all requests",
        1,
        1 << 40,
        "K/V memory",
    ),
    _named(
        "schedule", "order of the waiting requests, for `kind: replay`", "fcfs, prefix, depth-first, shortest", "fcfs"
    ),
    _counted(
        "samples",
        "answers of each request, sampled in parallel after one prompt, for `kind: replay` and `kind: serving`",
        "one",
        2,
        64,
        "answers of a request",
    ),
    _counted("beams", "width of beam search, for `kind: replay` and `kind: serving`", "none", 2, 64, "beams"),
    _counted("ranks", "processes that a context is split over, for `kind: ring`", "2", 1, 1024, "ranks", "N"),
    _named("phase", "what `kind: ring` computes", "prefill (of one sequence), decode (one step)", "prefill"),
    _named("mask", "which tokens a prefilled token attends to, for `kind: ring`", "causal, full", "causal"),
    _counted(
        "link",
        "limit in bytes per second for what a rank of `kind: ring` sends: a transfer copies at full speed, then waits",
        "no limit",
        1,
        1 << 50,
        "link, bytes/s",
    ),
    _counted(
        "size",
        "the size of an operation of `kind: growth`: tokens, sequences, rows, chunks, requests, runs or clients",
        "required by kind: growth",
        1,
        10_000_000,
        "size",
    ),
    _counted("threads", "CPU threads", "the machine's default", 1, 4096, "threads"),
)

AXES: Mapping[str, Axis] = {axis.name: axis for axis in _TABLE}
"""Name -> axis. Tables show the axes in this order. In the points of a block, the first axis varies slowest."""


def read_axis(name: str, raw: object) -> tuple[list[tuple[Path, AxisValue]], list[Finding]]:
    """Read the values of an axis. Returns the readable values, each with its path below `raw`, and the findings.

    A list gives one value per item. If the axis is `whole`, any list except a list of texts is one value.
    """
    axis = AXES[name]
    if raw is None:
        return [], [Finding((), "has no value; give one or leave the key out")]
    if not isinstance(raw, list | tuple) or (axis.whole and not all(isinstance(item, str) for item in raw)):
        items: Iterable[tuple[Path, object]] = [((), raw)]
    elif not raw:
        return [], [Finding((), "an empty list leaves no points; give a value or leave the key out")]
    else:
        items = [((index,), item) for index, item in enumerate(raw)]
    values: list[tuple[Path, AxisValue]] = []
    findings: list[Finding] = []
    for path, item in items:
        try:
            values.append((path, axis.read(item)))
        except Findings as error:
            findings += [finding.below(*path) for finding in error.findings]
    return values, findings


def axes_schema() -> dict[str, Any]:
    """JSON schema of the axes in a block, in `defaults` or in a filter."""
    properties = {}
    for axis in AXES.values():
        value = dict(axis.schema)
        listed = value if axis.whole else {"anyOf": [value, {"type": "array", "items": value, "minItems": 1}]}
        properties[axis.name] = {"description": f"{axis.description} (default: {axis.default_words})", **listed}
    return {"type": "object", "properties": properties, "additionalProperties": False}
