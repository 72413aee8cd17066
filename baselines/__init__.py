"""Implementations of decode attention: one file each, a thin adapter to a kernel or a library.

`chunkbench/bench/contract.py` says what an adapter must provide; a row of `registry.py` names it.
"""

from chunkbench.bench.contract import YES, Answer, Implementation, Inputs, Session, Style

__all__ = ["YES", "Answer", "Implementation", "Inputs", "Session", "Style"]
