"""Types that facts and experiments share."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypeAliasType

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
TreeNode = TypeAliasType("TreeNode", "tuple[int, int | tuple[int, ...] | tuple[TreeNode, ...]]")
