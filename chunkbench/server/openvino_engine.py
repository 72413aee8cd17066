"""A process that runs OpenVINO GenAI's ContinuousBatchingPipeline. It is not the process of the web application,
because a step of the pipeline holds Python's lock.

It gets requests through a connection, and sends a report after each step. It ends when the other end is closed. It
imports no torch, so that it starts fast and has no threads beside OpenVINO's.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray


@dataclass(frozen=True)
class Settings:
    """Settings of the pipeline."""

    folder: str
    """Folder of the model in OpenVINO's format. It may be removed when the pipeline is ready."""
    scheduler: dict[str, int | bool]
    """Fields of a SchedulerConfig."""
    properties: dict[str, int | str]
    """Properties of the device."""
    block_bytes: int


class Ask(NamedTuple):
    """A request for an answer."""

    id: str
    prompt: NDArray[Any]
    """Token ids `[1, tokens]`, int64."""
    max_tokens: int
    ends: tuple[int, ...]
    """Token ids that end the answer, at least one."""


class Drop(NamedTuple):
    """The request's client has gone."""

    id: str


class Ready(NamedTuple):
    """The pipeline has loaded its model."""


class Broken(NamedTuple):
    """The process ends because of an error."""

    reason: str


class Token(NamedTuple):
    request: str
    token: int
    finish: Literal["length", "stop"] | None


class Failed(NamedTuple):
    request: str
    reason: str


@dataclass
class Step:
    """What a step did. Times are in seconds."""

    ended: float
    """End of the step, in seconds of `time.perf_counter`."""
    before_s: float
    """Time since the last step, without waiting for requests."""
    step_s: float
    """Time inside of the pipeline."""
    after_s: float
    """Time for reading the new tokens."""
    batch: int
    running: int
    waiting: int
    kv_bytes: int
    arrived: int
    outcomes: list[Token | Failed] = field(default_factory=list)


class _Loop:
    def __init__(self, connection: Connection, settings: Settings) -> None:
        self._connection = connection
        self._openvino: Any = importlib.import_module("openvino")
        self._genai: Any = importlib.import_module("openvino_genai")
        scheduler = self._genai.SchedulerConfig()
        for name, value in settings.scheduler.items():
            setattr(scheduler, name, value)
        self._pipeline: Any = self._genai.ContinuousBatchingPipeline(
            settings.folder, scheduler, "CPU", settings.properties
        )
        self._blocks = scheduler.num_kv_blocks
        self._block_bytes = settings.block_bytes
        self._handles: dict[str, Any] = {}
        self._arrived = 0
        self._early: list[Token | Failed] = []
        """Requests that the pipeline refused since the last step."""

    def run(self) -> None:
        """Answer requests until None comes, or the other end is closed."""
        pipeline, last = self._pipeline, time.perf_counter()
        while True:
            if not pipeline.has_non_finished_requests() and not self._early:
                self._connection.poll(None)
                last = time.perf_counter()
            while self._connection.poll():
                message: Ask | Drop | None = self._connection.recv()
                if message is None:
                    return
                self._take(message)
            asked, began = bool(self._handles), time.perf_counter()
            if pipeline.has_non_finished_requests():
                pipeline.step()
            ended = time.perf_counter()
            outcomes, self._early = [*self._early, *self._read()], []
            if not asked and not outcomes:  # the step only forgot dropped requests
                continue
            metrics = pipeline.get_metrics()
            batch = metrics.scheduled_requests
            finished = sum(isinstance(one, Token) and one.finish is not None for one in outcomes)
            running = max(0, min(batch - finished, len(self._handles)))
            kv_bytes = round(metrics.cache_usage / 100 * self._blocks) * self._block_bytes
            done, waiting = time.perf_counter(), len(self._handles) - running
            times = done, began - last, ended - began, done - ended
            self._connection.send(Step(*times, batch, running, waiting, kv_bytes, self._arrived, outcomes))
            last = done

    def _take(self, message: Ask | Drop) -> None:
        if isinstance(message, Drop):
            if handle := self._handles.pop(message.id, None):
                handle.cancel()
            return
        self._arrived += 1
        # ignore_eos would ignore stop_token_ids, too. The pipeline reads eos_token_id first, whatever it is.
        config = self._genai.GenerationConfig(
            max_new_tokens=message.max_tokens,
            eos_token_id=message.ends[0],
            stop_token_ids=set(message.ends),
            do_sample=False,
        )
        prompt = self._openvino.Tensor(message.prompt)
        try:
            self._handles[message.id] = self._pipeline.add_request(self._arrived, prompt, config)
        except RuntimeError as error:
            self._early.append(Failed(message.id, str(error)))

    def _read(self) -> list[Token | Failed]:
        """The new tokens of all answers."""
        outcomes: list[Token | Failed] = []
        reasons, states = self._genai.GenerationFinishReason, self._genai.GenerationStatus
        finishes: dict[Any, Literal["length", "stop"]] = {reasons.STOP: "stop", reasons.LENGTH: "length"}
        for id, handle in list(self._handles.items()):
            finish = None
            while handle.can_read():
                for output in handle.read().values():
                    *tokens, last = output.generated_ids
                    finish = finishes.get(output.finish_reason)
                    outcomes += [*(Token(id, token, None) for token in tokens), Token(id, last, finish)]
            ignored = finish is None and handle.get_status() == states.IGNORED
            if ignored:
                outcomes.append(Failed(id, "the K/V memory is too small for it"))
            if finish is not None or ignored:
                del self._handles[id]
        return outcomes


def main(file: int) -> None:
    """Run the pipeline. `file`: descriptor of the connection, whose first message is the settings."""
    connection = Connection(file)
    try:
        loop = _Loop(connection, connection.recv())
        connection.send(Ready())
        loop.run()
    except (EOFError, ConnectionError):  # the web application has ended
        return
    except Exception as error:
        connection.send(Broken(f"{type(error).__name__}: {str(error).strip()}"))
        raise SystemExit(1) from error
