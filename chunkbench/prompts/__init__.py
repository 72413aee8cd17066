"""Sets of real prompts: read from files, turned into token ids."""

from chunkbench.prompts.read import Prompt, PromptsError, read
from chunkbench.prompts.tokenize import tokenized

__all__ = ["Prompt", "PromptsError", "read", "tokenized"]
