"""How an implementation is shown in tables and figures."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Look(BaseModel):
    """What reports have to know of an implementation. A run keeps the looks of what it measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    heading: tuple[str, ...] = ()
    """Lines of a column's heading, each at most nine letters; () makes them of the label."""
    name: str = ""
    """What running text calls it; empty: the label."""
    meaning: str = ""
    """What tells it from others of its family, for the legend of tables."""
    place: int = 500
    """Place among the columns of a table: the paper's columns stand at 100 to 400, ablations and ChunkAttn behind all
    others at 900 to 990. Columns of one place come in the order of the experiment."""
    colour: str = ""
    """In figures, as #RRGGBB; empty: one that no other has. A family shares a colour."""
    marker: str = ""
    """In figures, as matplotlib names it; it tells the members of a family apart."""
    ablation_of: str = ""
    """Id of the implementation that this one is a variant of: beating it says nothing about what others can do."""
