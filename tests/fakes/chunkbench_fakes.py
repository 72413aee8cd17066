"""Implementations that fail, each in its own way; found by the entry points beside this file, like a third party's."""

from __future__ import annotations

import os
import signal
import time

import torch

from chunkbench.baselines import Answer, Implementation, Inputs, Session
from chunkbench.baselines.naive import NaiveSession
from chunkbench.bench.contract import YES


class _Fake(Implementation):
    session: type[NaiveSession]

    def availability(self, device: str) -> Answer:
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        return self.session(inputs)


class RaisesSession(NaiveSession):
    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        raise ValueError("no kernel for this shape")


class HangsSession(NaiveSession):
    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        time.sleep(3600)


class NanSession(NaiveSession):
    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        super().decode(q, out)
        out[-1, -1, -1] = float("nan")


class WrongSession(NaiveSession):
    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        super().decode(q, out)
        out *= 1.01


class DiesSession(NaiveSession):
    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class WrongLaterSession(NaiveSession):
    """Right at the first step, then it forgets to take tokens in."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        self._taken = 0

    def append(self, token_ids: list[int], k: torch.Tensor, v: torch.Tensor) -> None:
        if self._taken == 0:
            super().append(token_ids, k, v)
        self._taken += 1

    def rewind(self) -> None:
        super().rewind()
        self._taken = 0


class BoastsSession(NaiveSession):
    def kv_bytes(self) -> int:
        return 64


class DiesAtOnce(_Fake):
    id, label, session = "fake_dies_at_once", "Dies at once", NaiveSession

    def availability(self, device: str) -> Answer:
        os.kill(os.getpid(), signal.SIGSEGV)
        return Answer(True)


class Raises(_Fake):
    id, label, session = "fake_raises", "Raises", RaisesSession


class Hangs(_Fake):
    id, label, session = "fake_hangs", "Hangs", HangsSession


class Nan(_Fake):
    id, label, session = "fake_nan", "NaN", NanSession


class Wrong(_Fake):
    id, label, session = "fake_wrong", "Wrong", WrongSession


class Dies(_Fake):
    id, label, session = "fake_dies", "Dies", DiesSession


class WrongLater(_Fake):
    id, label, session = "fake_late", "Wrong later", WrongLaterSession


class Boasts(_Fake):
    id, label, session = "fake_boasts", "Boasts", BoastsSession


class Mends(_Fake):
    """Out of order where prompts share tokens, until somebody mends it."""

    id, label, session = "fake_mends", "Mends", NaiveSession

    def prepare(self, inputs: Inputs) -> Session:
        if inputs.point.n_s and not os.environ.get("CHUNKBENCH_FAKE_MENDED"):
            raise RuntimeError("out of order")
        return super().prepare(inputs)
