"""Implementations of decode attention: one file each, a thin adapter to a kernel or a library.

`contract.py` says what an adapter must provide; `registry.py` finds adapters by the entry point group
`chunkbench.baselines`.
"""

from chunkbench.bench.contract import YES, Answer, Implementation, Inputs, Session, Style

__all__ = ["YES", "Answer", "Implementation", "Inputs", "Session", "Style"]
