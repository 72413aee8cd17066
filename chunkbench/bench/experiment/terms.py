"""Types that facts and experiments share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypeAliasType

Count = Annotated[int, Field(ge=0, lt=2**63)]
Size = Annotated[int, Field(ge=1, lt=2**63)]
"""Whole numbers that arithmetic with floats and arrays can take, whoever wrote them into a file."""

Dtype = Literal["float32", "float16", "bfloat16"]
Device = Literal["cpu", "cuda"]
Protocol = Literal["strict", "paper"]
Cache = Literal["cold", "warm"]
Mode = Literal["eager", "events", "graph"]
Pages = Literal["huge", "small"]
Compensation = Literal["none", "mean", "weighted"]

# A node of a forest: its number of tokens, and its child nodes, or the sequences behind it: their number, or the
# private tokens of each.
# It is a named alias because pydantic cannot resolve a recursive type without a name.
TreeNode = TypeAliasType("TreeNode", "tuple[Count, Count | tuple[Count, ...] | tuple[TreeNode, ...]]")
