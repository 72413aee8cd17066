"""How a worker tells a lack of memory from other errors."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from chunkbench.bench.workers.main import _reply
from chunkbench.bench.workers.protocol import OUT_OF_MEMORY


class Failing:
    """A worker whose only request raises an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def check(self) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "oom"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "oom"),
        (OSError(errno.ENOENT, "No such file"), "error"),
        (RuntimeError("std::bad_alloc"), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), "oom"),
        (RuntimeError("CUDA driver error: out of memory"), "oom"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom"),
        (RuntimeError("can't start new thread"), "oom"),
        (RuntimeError("Resource temporarily unavailable"), "oom"),
        (RuntimeError("no kernel"), "error"),
    ],
)
def test_errors(error: Exception, kind: str) -> None:
    answer = _reply(Failing(error), {"id": 1, "op": "check"})["error"]  # type: ignore[arg-type]
    assert answer["kind"] == kind
    assert answer["message"].startswith(type(error).__name__)


def test_a_worker_that_cannot_answer_for_lack_of_memory_says_so_by_its_exit_code() -> None:
    code = """
from chunkbench import workloads
from chunkbench.bench.workers import main
def fails(*_): raise MemoryError
workloads.register()
main._answer_all = fails
main.main()
"""
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False).returncode == OUT_OF_MEMORY
