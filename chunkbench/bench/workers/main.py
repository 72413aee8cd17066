"""A worker's loop: read a request, let the worker answer it, write the reply. A special request makes it fork."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import torch

from chunkbench.bench import workload
from chunkbench.bench.measure.gpu_loop import CaptureError
from chunkbench.bench.workers.gpu_rounds import lost
from chunkbench.bench.workers.heap import shift
from chunkbench.bench.workers.pages import keep_small
from chunkbench.bench.workers.protocol import OUT_OF_MEMORY, TIMED
from chunkbench.bench.workers.worker import Worker
from chunkbench.lifetime import end_with_parent

if TYPE_CHECKING:
    from chunkbench.bench.runner.sessions import AnySessions


def _reply(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    try:
        result = getattr(worker, request["op"])(**request.get("arguments", {}))
        return {"id": request["id"], "ok": result or {}}
    except CaptureError as error:
        traceback.print_exc()
        return {"id": request["id"], "error": {"kind": _gravest("unsupported"), "message": str(error)[:400]}}
    except Exception as error:  # every failure of an implementation becomes a row; its traceback goes to the log
        traceback.print_exc()
        kind, where = ("oom", "") if _lacks_memory(error) else ("error", _where(error))
        return {"id": request["id"], "error": {"kind": _gravest(kind), "message": _one_line(error) + where}}


_LACKING = (
    "can't allocate memory",  # PyTorch's CPU allocator
    "std::bad_alloc",  # other C++ code of PyTorch
    "out of memory",  # CUDA's runtime and driver, outside of PyTorch's allocator
    "ALLOC_FAILED",  # cuBLAS and cuDNN
    # No stack for a thread. Linux says the same where a limit of threads is reached.
    "Resource temporarily unavailable",
    "can't start new thread",
    "failed to map segment from shared object",  # the loader of libraries, which gives no errno
)
"""Words in messages of libraries whose memory ran out."""


def _lacks_memory(error: BaseException) -> bool:
    """Whether an error or its cause says that memory ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno == errno.ENOMEM
    of_library = isinstance(error, (RuntimeError, ImportError, OSError))
    if of_library and any(words in str(error) for words in _LACKING):
        return True
    return error.__cause__ is not None and _lacks_memory(error.__cause__)


class _Suspensions:
    """Counts how often this process was stopped and continued. The monotonic clock goes on meanwhile."""

    def __init__(self) -> None:
        self.count = 0
        signal.signal(signal.SIGCONT, self._continued)

    def _continued(self, *_: object) -> None:
        self.count += 1


def _gravest(kind: str) -> str:
    """The kind `lost` if the error destroyed the GPU's context, else `kind`. So only the implementation at fault is
    blamed."""
    return "lost" if lost() else kind


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _where(error: BaseException) -> str:
    """The line of the implementation, or of the library below it, that raised an error; the log has the traceback."""
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if f"{os.sep}torch{os.sep}" not in frame.filename] or [*every]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def main() -> None:
    """Serve requests until standard input closes. The first argument names the kind of work."""
    keep_small(os.environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner handles Ctrl-C
    # Libraries may print. So replies go to a private copy of standard output, and prints go to standard error.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_grad_enabled(False)
    worker = Worker(cast("AnySessions", workload.get(sys.argv[1] if len(sys.argv) > 1 else workload.default())))
    suspensions = _Suspensions()
    gc.freeze()  # exclude the libraries' objects, which stay anyway, from the collections before rounds
    _serve(replies, worker, suspensions)


def _serve(replies: TextIO, worker: Worker, suspensions: _Suspensions) -> None:
    try:
        _answer_all(replies, worker, suspensions)
    except MemoryError:  # not even a request can be read or a reply written
        os._exit(OUT_OF_MEMORY)


def _answer_all(replies: TextIO, worker: Worker, suspensions: _Suspensions) -> None:
    # Read line by line, so that a forked worker continues to read where this one stopped.
    while line := sys.stdin.readline():
        request = json.loads(line)
        if request.get("child") not in (None, os.getpid()):
            # The request was for a child that died before it read it. This process must not compute: its threads would
            # make later forks unsafe.
            answer: dict[str, Any] = {
                "id": request["id"],
                "error": {"kind": "error", "message": "the process has ended"},
            }
        elif request["op"] == "fork":
            answer = _fork(request["id"], replies, worker, suspensions)
        else:
            before = suspensions.count
            answer = _reply(worker, request)
            if suspensions.count > before and request["op"] in TIMED and "ok" in answer:
                answer["ok"]["suspended"] = True
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


def _fork(request_id: int, replies: TextIO, worker: Worker, suspensions: _Suspensions) -> dict[str, Any]:
    """Fork a child that answers all requests until it ends; then report how it ended. It inherits what was loaded."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        end_with_parent(parent)
        shift()
        replies.write(json.dumps({"id": request_id, "ok": {"pid": os.getpid()}}) + "\n")
        _serve(replies, worker, suspensions)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return {"ended": os.waitstatus_to_exitcode(status)}
