"""Sizes of tiles and launches by GPU generation and head dimension: the table `tuning.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_name("tuning.json")
VARIABLE = "CHUNKBENCH_TUNING"
"""Environment variable: path of a table to use instead of the packaged one."""


class Tuning(NamedTuple):
    """One row of the tuning table."""

    wide: int
    """Query heads of the large tile; the small tile has 16."""
    warps: int
    tile: int
    """Number of tokens that a block multiplies with the large tile at a time."""
    stages: int
    """Stages of the load pipeline of the large tile."""
    narrow_tile: int
    """Number of tokens that a block multiplies with the small tile at a time."""
    narrow_stages: int
    blocks: int
    """Blocks that a multiprocessor runs at the same time, as the planner assumes."""
    narrow_blocks: int
    """Blocks that a multiprocessor runs at the same time for plans in which no item needs the large tile."""
    merge_tile: int
    merge_warps: int
    fold: int
    """Number of partial results that the merge loads at a time."""


class UnusableTable(ValueError):
    """The tuning table cannot be read, or has no row for this GPU."""


def path() -> Path:
    return Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else TABLE


def read(table: Path | None = None) -> dict[str, dict[int, Tuning]]:
    """All rows, by generation (`sm_80`), then by head dimension. Raises UnusableTable."""
    source = path() if table is None else table
    try:
        return {
            generation: {int(head_dim): Tuning(**row) for head_dim, row in rows.items()}
            for generation, rows in json.loads(source.read_text()).items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UnusableTable(
            f"{source}: cannot be read as a tuning table: {error}; `chunkbench tune` writes one"
        ) from None


def write(table: Mapping[str, Mapping[int, Tuning]], target: Path) -> None:
    """Write a table, sorted, so that two tables can be compared as text."""
    plain = {
        generation: {str(head_dim): row._asdict() for head_dim, row in sorted(rows.items())}
        for generation, rows in sorted(table.items())
    }
    target.write_text(json.dumps(plain, indent=1) + "\n")


def tuning_for(capability: int, head_dim: int) -> Tuning:
    """The row for a compute capability (90 for 9.0): that of its generation, or else of the nearest older generation.

    Raises UnusableTable.
    """
    rows = read()
    generation = nearest(capability, [generation for generation in rows if head_dim in rows[generation]])
    if generation is None:
        raise UnusableTable(f"{path()}: no row for compute capability {capability / 10} and head_dim {head_dim}")
    return rows[generation][head_dim]


def nearest(capability: int, generations: Iterable[str]) -> str | None:
    """The latest generation (`sm_80`) that is not later than a compute capability; None if all are later."""
    numbers = [int(generation.removeprefix("sm_")) for generation in generations]
    earlier = [number for number in numbers if number <= capability]
    return f"sm_{max(earlier)}" if earlier else None
