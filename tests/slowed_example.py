"""Code to append to `examples/my-kernel/src/my_kernel.py`: it makes the example slower by a share of each call.

It does real work, so a load on the machine slows it as well. Tests of comparisons use it.
"""

from __future__ import annotations

_CODE = """

import time as _time
_fast, _matrix = MySession.decode, torch.full((32, 32), 1 / 32)

def _slow(self, q, out):
    started = _time.perf_counter()
    _fast(self, q, out)
    until = _time.perf_counter() + {share} * (_time.perf_counter() - started)
    while _time.perf_counter() < until:
        torch.mm(_matrix, _matrix)

MySession.decode = _slow
"""


def slower_by(share: float) -> str:
    """The code for calls that take 1 + `share` times as long."""
    return _CODE.format(share=share)
