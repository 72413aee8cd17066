"""Asks a server at intervals what it does."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException

from chunkbench.workloads.serving.result import Moment
from chunkbench.workloads.serving.servers.system import Watch

SAMPLE_S = 0.2
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server runs on this machine


def asked(url: str, data: bytes | None = None) -> str:
    """The text that a server on this machine answers. `data`: JSON of a POST request. Raises OSError and
    HTTPException."""
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with _DIRECT.open(request, timeout=5) as answer:
        text: str = answer.read().decode(errors="replace")
    return text


class SampledWatch(Watch):
    """Asks a server at intervals, in a thread."""

    sampled = True

    def __init__(self, url: str, read: Callable[[str], tuple[int, int | None] | None]) -> None:
        """`read`: takes the text at the URL, and returns the number of running sequences and the bytes of K/V; None if
        the text does not tell them."""
        self._url = url
        self._read = read
        self._moments: list[Moment] = []
        self._wanted = threading.Event()
        """Set during a measurement. At other times sampling would disturb the measurements of other servers."""
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(self) -> None:
        self._wanted.set()

    def between(self, start: float, end: float) -> list[Moment]:
        self._wanted.clear()
        return [moment for moment in list(self._moments) if start <= moment.at <= end]

    def close(self) -> None:
        self._ended = True
        self._wanted.set()
        self._thread.join(2 * SAMPLE_S)

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            time.sleep(SAMPLE_S)
            if self._ended:
                return
            try:
                told = self._read(asked(self._url))
            except (OSError, HTTPException):
                continue  # the server is busy or has ended; the client that sends requests notices that
            if told is not None:
                self._moments.append(Moment(time.perf_counter(), *told))
