"""Implementations of decode attention. Each file is a thin adapter to a kernel or a library.

`chunkbench/bench/contract.py` says what an adapter must provide. Each implementation has a row in `registry.py`, which
names its adapter.
"""

from chunkbench.bench.contract import YES, Answer, Implementation, Inputs, Session, Style

__all__ = ["YES", "Answer", "Implementation", "Inputs", "Session", "Style"]
