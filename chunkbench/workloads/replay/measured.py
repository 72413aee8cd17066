"""Step times fitted to the steps of a measured server."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chunkbench.attention.manager import Reads
from chunkbench.bench.store import open_run
from chunkbench.run_error import RunError
from chunkbench.workloads.replay.step_time import StepShape
from chunkbench.workloads.serving.result import Measurement, ServingResult


def fitted(directory: str) -> FittedStepTime:
    """Fit step times to all steps that the servers of a run recorded. Raises `RunError`."""
    run = open_run(Path(directory))
    rows = [
        step
        for case in run.cases
        if isinstance(case, ServingResult) and case.tree is None and case.prompts == 1
        for measurement in case.measurements
        for step in _steps(measurement, case.n_s or 0)
    ]
    try:
        return FittedStepTime.fit(rows)
    except ValueError as error:
        raise RunError(f"{directory}: no step times can be fitted to this run: {error}") from None


def _steps(measurement: Measurement, shared: int) -> list[TimedStep]:
    server = measurement.server
    if server is None or not server.every_step:
        return []
    requests = [
        ServedRequest(request.sent, request.prompt_tokens or 0, request.cached_tokens or 0, request.tokens)
        for request in measurement.requests
        if request.sent is not None and request.status == "ok"
    ]
    try:
        return served_steps(server.every_step, requests, shared)
    except ValueError:  # the steps do not follow from the requests, for example after a preemption
        return []


class ServedRequest(NamedTuple):
    """A request that a server answered. Times in seconds."""

    sent: float
    prompt: int
    """Tokens of the prompt."""
    cached: int
    """Tokens of the prompt that were found in the cache and not computed."""
    answer: int
    """Tokens of the answer."""


@dataclass
class _Live:
    request: ServedRequest
    computed: int
    """Tokens of the prompt whose K and V are computed."""
    tokens: int = 0
    """Tokens of the answer that exist so far."""

    @property
    def decoding(self) -> bool:
        return self.computed == self.request.prompt


def served_steps(
    steps: Sequence[tuple[float, int, int, float]], requests: Sequence[ServedRequest], shared: int
) -> list[TimedStep]:
    """Shapes of the steps of one measurement, with the seconds that each took.

    The server recorded each step's time, batch, prompt tokens and seconds (`every_step` of the facts). Three
    assumptions give the rest. Prompts were computed in the order in which they were sent. Each decoding sequence got
    one token in each step. The first token of an answer came from the step that ended its prompt.

    `shared` is the number of leading tokens that the cache holds once for all requests. Raises ValueError if the
    computed batches differ from the recorded ones, for example after a preemption.
    """
    waiting = deque(sorted(requests, key=lambda request: request.sent))
    live: list[_Live] = []
    shapes = []
    for number, (_, batch, prompt_tokens, seconds) in enumerate(steps):
        decoding = [entry for entry in live if entry.decoding]
        reads = _reads(decoding, shared)
        tokens_left, prompts, prompt_reads = prompt_tokens, 0, 0
        ahead = deque(entry for entry in live if not entry.decoding)
        while tokens_left and (ahead or waiting):
            if not ahead:
                joined = waiting.popleft()
                ahead.append(_Live(joined, joined.cached))
                live.append(ahead[0])
            entry = ahead.popleft()
            last = min(entry.computed + tokens_left, entry.request.prompt)
            prompt_reads += sum(range(entry.computed + 1, last + 1))
            tokens_left -= last - entry.computed
            entry.computed = last
            prompts += 1
        if tokens_left or len(decoding) + prompts != batch:
            raise ValueError(
                f"step {number} of the server had {batch} sequences and {prompt_tokens} prompt tokens; its requests, "
                f"in the order of sending, give {len(decoding) + prompts} and {prompt_tokens - tokens_left}"
            )
        ready = [entry for entry in live if entry.decoding]
        shapes.append((StepShape(len(decoding), reads, prompt_tokens, prompt_reads, len(ready)), seconds))
        for entry in ready:
            entry.tokens += 1
        live = [entry for entry in live if entry.tokens < entry.request.answer]
    return shapes


def _reads(decoding: Sequence[_Live], shared: int) -> Reads:
    """Tokens that these sequences attend to; a sequence that decodes alone shares nothing."""
    covered = sum(entry.request.prompt + entry.tokens for entry in decoding)
    held = shared if len(decoding) > 1 else 0
    return Reads(covered - held * len(decoding), held, held * len(decoding))


Floats = npt.NDArray[np.float64]


def non_negative(columns: Floats, target: Floats) -> Floats:
    """Coefficients x >= 0 with the smallest sum of squares of `columns @ x - target`. `columns` is [rows, columns],
    with few columns.

    Every set of columns is tried, with plain least squares. Five columns have 31 sets. The other columns get 0, and so
    do columns of zeros.
    """
    scale = np.abs(columns).max(axis=0)
    scale[scale == 0] = 1.0
    scaled = columns / scale
    best = np.zeros(columns.shape[1])
    least = float(np.square(target).sum())
    for size in range(1, columns.shape[1] + 1):
        for chosen in map(list, combinations(range(columns.shape[1]), size)):
            found, *_ = np.linalg.lstsq(scaled[:, chosen], target, rcond=None)
            rest = float(np.square(scaled[:, chosen] @ found - target).sum())
            if rest < least and (found >= 0).all():
                least, best = rest, np.zeros(columns.shape[1])
                best[chosen] = found
    coefficients: Floats = best / scale
    return coefficients


TimedStep = tuple[StepShape, float]
"""The shape of a step, and the seconds that it took."""


@dataclass(frozen=True)
class FittedStepTime:
    """Seconds of a step: a constant, plus a time for each decoding sequence, prompt token and token read.

    The fit holds for the measured machine, model and server, and for similar steps. The attention of prompts
    (`prompt_reads`) is left out, because it did not improve the prediction of other recorded steps.
    """

    constant_s: float
    decoding_s: float
    """Seconds for each decoding sequence."""
    prompt_token_s: float
    """Seconds for each prompt token that is computed."""
    read_once_s: float
    """Seconds for each token that decoding reads. A shared token counts once."""
    read_again_s: float
    """Seconds for each further sequence that reads a shared token."""
    steps: int
    """Number of steps that the fit used."""
    median_error: float
    """Median of the relative errors of the predicted times of these steps."""
    p95_error: float
    """95th percentile of the relative errors of the predicted times of these steps."""

    @classmethod
    def fit(cls, rows: Sequence[TimedStep]) -> FittedStepTime:
        """Fit to measured steps by least squares of the error in seconds. No coefficient is negative.

        A replay needs the sum of the predicted times. A fit of relative errors would make this sum too small. Raises
        ValueError for fewer than 10 steps.
        """
        if len(rows) < 10:
            raise ValueError(f"{len(rows)} steps are too few to fit step times to; 10 are the least")
        columns, seconds = _columns([shape for shape, _ in rows]), np.array([taken for _, taken in rows])
        if not (seconds > 0).all():
            raise ValueError("every measured step must take more than 0 s")
        found = non_negative(columns, seconds)
        errors = np.abs(columns @ found / seconds - 1)
        median, most = np.quantile(errors, (0.5, 0.95))
        constant, decoding, prompt_token, once, again = map(float, found)
        return cls(constant, decoding, prompt_token, once, again, len(rows), float(median), float(most))

    def seconds(self, shape: StepShape) -> float:
        return (
            self.constant_s
            + self.decoding_s * shape.decoding
            + self.prompt_token_s * shape.prompt_tokens
            + self.read_once_s * shape.read_once
            + self.read_again_s * shape.read_again
        )

    @property
    def words(self) -> str:
        return (
            f"fitted to {self.steps} measured steps: {self.constant_s * 1e3:.3g} ms, "
            f"{self.decoding_s * 1e6:.3g} µs per decoding sequence, "
            f"{self.prompt_token_s * 1e6:.3g} µs per prompt token, "
            f"{self.read_once_s * 1e9:.3g} ns per token read, {self.read_again_s * 1e9:.3g} ns per further read of a "
            f"shared one; half of these steps are predicted within {self.median_error:.0%}, "
            f"95% within {self.p95_error:.0%}"
        )


def _columns(shapes: Sequence[StepShape]) -> Floats:
    return np.array(
        [(1, shape.decoding, shape.prompt_tokens, shape.read_once, shape.read_again) for shape in shapes], np.float64
    )
