"""Reads sets of real prompts from files and turns them into token ids."""

from chunkbench.traffic.sets.read import Prompt, PromptsError, read
from chunkbench.traffic.sets.tokenize import grouped, tokenized

__all__ = ["Prompt", "PromptsError", "grouped", "read", "tokenized"]
