"""Runs OpenVINO GenAI's continuous batching behind our web application, for comparison with our engine."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from importlib.metadata import version
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chunkbench.kernels.products import has_native_products
from chunkbench.kv_dtype import KvDtype
from chunkbench.server.backend import BackendFailed, Deliver, Deliveries, Load, Observer, refuse_beyond_greedy
from chunkbench.server.engine import EngineOptions, Generated, ModelError, Request, RequestFailed
from chunkbench.server.engine import StepReport as Report
from chunkbench.server.engine.model import ModelNumbers
from chunkbench.server.openvino_engine import Ask, Broken, Drop, Ready, Settings, Step, Token
from chunkbench.server.openvino_model import write_model

BLOCK_SIZE = 32
"""Number of tokens of a block, fixed in OpenVINO's kernels for CPUs."""
STOP_S = 10
"""Seconds that a step may still take when the server stops."""
_SCALE_BYTES = 8
"""Scale and zero point of a group of 8-bit numbers, both float32."""
_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_CODE = "import sys; from chunkbench.server.openvino_engine import main; main(int(sys.argv[1]))"
_LOGGER = logging.getLogger(__name__)


def check_openvino(dtype: torch.dtype, device: str) -> None:
    """Raise ModelError if OpenVINO is missing, or cannot compute in this dtype or on this device."""
    if importlib.util.find_spec("openvino_genai") is None:
        raise ModelError(
            "the engine openvino needs openvino-genai: `make openvino-environment` makes an environment with it"
        )
    if device != "cpu":
        raise ModelError(f"the engine openvino runs on the CPU only here, not on {device}")
    name = _NAMES[dtype]
    able: list[str] = importlib.import_module("openvino").Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    # OpenVINO lists bfloat16 also for CPUs with AVX-512 that only emulate it.
    emulated = dtype == torch.bfloat16 and not has_native_products(dtype, torch.device("cpu"))
    if dtype != torch.float32 and (name.upper() not in able or emulated):
        kind = {"bf16": "avx512_bf16, amx_bf16", "f16": "avx512_fp16, amx_fp16"}[name]
        raise ModelError(
            f"this CPU has no instructions for {str(dtype).removeprefix('torch.')} ({kind}), so OpenVINO would not"
            " compute in it: use float32"
        )


def token_bytes(model: ModelNumbers, kv_dtype: KvDtype) -> int:
    """Bytes of the K and V of one token in all layers."""
    if kv_dtype == "same":
        return model.token_bytes()
    # K has a scale for each number of a head in a block, V for each token.
    scales = _SCALE_BYTES * model.head_dim // BLOCK_SIZE + _SCALE_BYTES
    return model.layers * model.kv_heads * (2 * model.head_dim + scales)


class OpenVINOBackend:
    """Answers requests with OpenVINO GenAI's `ContinuousBatchingPipeline`, in a process of its own. Tokens are chosen
    greedily."""

    def __init__(self, module: Any, options: EngineOptions) -> None:
        """`module`: a causal language model of transformers. `options.chunk_size`, `options.attention` and
        `options.schedule` are ignored. Raises ModelError."""
        self._model = model = ModelNumbers(module)
        self._options = options
        self._kv_dtype = kv_dtype = options.kv_dtype
        block_bytes = token_bytes(model, kv_dtype) * BLOCK_SIZE
        self._blocks = options.kv_bytes // block_bytes
        if self._blocks == 0:
            raise ModelError(f"kv_bytes={options.kv_bytes} does not hold a block, which takes {block_bytes} bytes")
        self.max_length: int = min(self._blocks * BLOCK_SIZE, model.max_length)
        """Maximum number of tokens of prompt and answer together."""
        self._threads = torch.get_num_threads()
        name = _NAMES[model.dtype]
        scheduler: dict[str, int | bool] = {
            "num_kv_blocks": self._blocks,
            "max_num_seqs": options.max_batch,
            "max_num_batched_tokens": options.prompt_budget + options.max_batch,
            "enable_prefix_caching": options.cache == "radix",
        }
        properties: dict[str, int | str] = {
            "INFERENCE_NUM_THREADS": self._threads,
            "INFERENCE_PRECISION_HINT": name,
            "KV_CACHE_PRECISION": name if kv_dtype == "same" else "u8",
        }
        self._outbox: queue.SimpleQueue[Ask | Drop | None] = queue.SimpleQueue()
        self._load = Load(0, 0, 0)
        """After the last step."""
        self._closing = False
        with tempfile.TemporaryDirectory(prefix="chunkbench-openvino-") as folder:
            write_model(module, Path(folder))
            self._process, self._connection = _start(Settings(folder, scheduler, properties, block_bytes))
        self._threads_of_connection = [threading.Thread(target=one) for one in (self._send, self._receive)]

    def start(self, observer: Observer) -> None:
        self._observer = observer
        self._deliveries = Deliveries(observer)
        for thread in self._threads_of_connection:
            thread.start()

    def check(self, request: Request, answers: int) -> None:
        refuse_beyond_greedy("openvino", request, self._ends(request))
        request.check(self.max_length, self._model.vocabulary)

    def tokens(self) -> tuple[int, frozenset[int]]:
        return self._model.vocabulary, frozenset(self._model.eos_ids)

    def submit(self, requests: Sequence[Request], deliver: Deliver) -> None:
        self._deliveries.add(requests, deliver)
        for request in requests:
            # The pipeline wants a token that ends answers; this one is never chosen.
            ends = tuple(sorted(self._ends(request))) or (self._model.vocabulary,)
            self._outbox.put(Ask(request.id, np.array([request.prompt], np.int64), request.max_tokens, ends))

    def drop(self, id: str) -> None:
        if self._deliveries.drop(id):
            self._outbox.put(Drop(id))

    def load(self) -> Load:
        count, last = len(self._deliveries), self._load
        running = min(last.running, count)
        return Load(running, count - running, last.kv_bytes if running else 0)

    def facts(self) -> dict[str, Any]:
        return {
            "engine": "openvino",
            "openvino": version("openvino-genai"),
            "max_batch": self._options.max_batch,
            "prompt_budget": self._options.prompt_budget,
            "block_size": BLOCK_SIZE,
            "cache": self._options.cache,
            "threads": self._threads,
            "kv_bytes": self._blocks * BLOCK_SIZE * token_bytes(self._model, self._kv_dtype),
            **self._model.facts(),
            "kv_dtype": str(self._model.dtype).removeprefix("torch.") if self._kv_dtype == "same" else "uint8",
            "kv_bytes_per_token": token_bytes(self._model, self._kv_dtype),
        }

    def close(self) -> None:
        self._closing = True
        self._outbox.put(None)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        for thread in self._threads_of_connection:
            thread.join()
        self._connection.close()

    def _ends(self, request: Request) -> set[int]:
        """Token ids that end an answer."""
        return set(request.stop_ids) | (set() if request.ignore_eos else self._model.eos_ids)

    def _send(self) -> None:
        """Pass messages to the engine. In a thread, because the engine reads only between two steps."""
        try:
            while (message := self._outbox.get()) is not None:
                self._connection.send(message)
            self._connection.send(None)
        except OSError:  # the process has ended, as the other thread reports
            return

    def _receive(self) -> None:
        """Report the engine's steps, until its process ends."""
        reason = ""
        try:
            while True:
                message = self._connection.recv()
                if isinstance(message, Step):
                    self._report(message)
                else:
                    reason = f"OpenVINO: {message.reason}"
        except (EOFError, OSError):
            reason = reason or f"OpenVINO's process {_end_of(self._process)}"
        except Exception as error:
            _LOGGER.exception("a report of the engine cannot be read")
            reason = f"{type(error).__name__}: {error}"
            self._process.kill()
        if not self._closing:
            _LOGGER.error("the engine broke: %s", reason)
            self._deliveries.fail(BackendFailed(reason))

    def _report(self, step: Step) -> None:
        outcomes = tuple(
            Generated(one.request, one.token, one.finish, None)
            if isinstance(one, Token)
            else RequestFailed(one.request, f"OpenVINO: {one.reason}")
            for one in step.outcomes
        )
        self._deliveries.tell(outcomes)
        self._load = Load(step.running, step.waiting, step.kv_bytes if step.running else 0)
        report = Report(
            generated=tuple(one for one in outcomes if isinstance(one, Generated)),
            batch=step.batch,
            prompt_tokens=0,  # OpenVINO does not say how many prompt tokens were cached
            preempted=0,
            schedule_s=step.before_s,
            forward_s=step.step_s,
            sample_s=step.after_s,
            tree_s=0.0,
            kv_bytes=step.kv_bytes,
            arrived=step.arrived,
            failed=tuple(one for one in outcomes if isinstance(one, RequestFailed)),
        )
        self._observer.step(step.ended, report, self._load)


def _start(settings: Settings) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start the engine's process, and wait until it has loaded the model. Raises ModelError."""
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # OpenVINO prints empty lines
            process_group=0,  # Ctrl-C in a terminal ends our process, which ends this one
        )
    try:
        ours.send(settings)
        answer = ours.recv()
    except (EOFError, OSError):
        raise ModelError(f"OpenVINO's process {_end_of(process)} while it loaded the model") from None
    except BaseException:
        process.kill()
        process.wait()
        raise
    if isinstance(answer, Broken):
        process.wait()
        raise ModelError(f"OpenVINO cannot load the model: {answer.reason.splitlines()[-1]}")
    assert isinstance(answer, Ready)
    return process, ours


def _end_of(process: subprocess.Popen[bytes]) -> str:
    """How a process ended, as the end of a sentence."""
    code = process.wait()
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
