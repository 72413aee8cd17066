"""Reads sets of real prompts from files and turns them into token ids."""

from chunkbench.prompts.read import Prompt, PromptsError, read
from chunkbench.prompts.tokenize import tokenized

__all__ = ["Prompt", "PromptsError", "read", "tokenized"]
