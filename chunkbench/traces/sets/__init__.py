"""Reads sets of real prompts from files and turns them into token ids."""

from chunkbench.traces.sets.read import Prompt, PromptsError, read
from chunkbench.traces.sets.tokenize import grouped, tokenized

__all__ = ["Prompt", "PromptsError", "grouped", "read", "tokenized"]
