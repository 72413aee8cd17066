"""The words that facts and experiments share, as types."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypeAliasType

Dtype = Literal["float32", "float16", "bfloat16"]
Device = Literal["cpu", "cuda"]
Protocol = Literal["strict", "paper"]
Cache = Literal["cold", "warm"]
Mode = Literal["eager", "events", "graph"]

# A node of a forest: how many tokens it holds, and how many sequences end their common part here or its children.
# A named alias, because pydantic cannot resolve a recursive type that has no name of its own.
TreeNode = TypeAliasType("TreeNode", "tuple[int, int | tuple[TreeNode, ...]]")
