"""Types that results and experiments share, and the style of an implementation in reports."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from typing_extensions import TypeAliasType

Count = Annotated[int, Field(ge=0, lt=2**63)]
Size = Annotated[int, Field(ge=1, lt=2**63)]
"""A whole number of at most 64 bits. Larger numbers can fail in arithmetic with floats or arrays."""

Dtype = Literal["float32", "float16", "bfloat16"]
Device = Literal["cpu", "cuda"]
Protocol = Literal["strict", "paper"]
Cache = Literal["cold", "warm"]
Mode = Literal["eager", "events", "graph"]
Pages = Literal["huge", "small"]
Compensation = Literal["none", "mean", "weighted"]

# A node of a forest: its number of tokens, and what follows: child nodes, a number of sequences, or the private tokens
# of each sequence.
# The alias has a name because pydantic cannot resolve a recursive type without a name.
TreeNode = TypeAliasType("TreeNode", "tuple[Count, Count | tuple[Count, ...] | tuple[TreeNode, ...]]")


Line = Literal["solid", "dashed", "dotted", "dashdot"]


class Style(BaseModel):
    """The look of an implementation in reports. A run records the styles of its implementations."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    heading: tuple[str, ...] = ()
    """Lines of the column heading, at most nine letters each. If empty, the label is the heading."""
    name: str = ""
    """Name in running text. If empty, the label is the name."""
    meaning: str = ""
    """How the implementation differs from others of its family, for the legend of tables."""
    column_order: int = Field(default=500, validation_alias=AliasChoices("column_order", "place"))
    """Position among the columns of a table. The baseline is always first. The paper's columns have 100 to 400,
    ablations 900 to 990. Columns with the same number keep the order of the experiment. Older runs call this field
    `place`."""
    colour: str = ""
    """Colour in figures, as #RRGGBB. If empty, a colour that no other implementation has. A variant has the same colour
    as its original."""
    marker: str = ""
    """Marker in figures, by its name in matplotlib. Each variant of an implementation has a marker of its own."""
    line: Line = "solid"
    """Line style in figures. Each variant of an implementation has a line style of its own."""
    ablation_of: str = ""
    """Id of the original, if this implementation is a variant. A variant does not count as a competitor of its
    original."""
