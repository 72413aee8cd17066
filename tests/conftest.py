"""Settings for all tests."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

from chunkbench import workloads
from chunkbench.kernels import cpu

# Tests run on two slow cores that other work shares, so a time limit per example would fail at random.
settings.register_profile("chunkbench", deadline=None)
settings.load_profile("chunkbench")

if not torch.cuda.is_available():
    # Choose Triton's interpreter before the first import of Triton; torch.compile imports it.
    os.environ["TRITON_INTERPRET"] = "1"

# A shell lets its background jobs ignore Ctrl-C, and with them all tests, some of which interrupt themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)

workloads.register()
pytest_plugins = ["tests.invented_runs", "tests.tiny_runs"]

SERVING = ("transformers", "starlette", "uvicorn", "aiohttp", "prometheus_client", "openai")
MISSING = [name for name in SERVING if importlib.util.find_spec(name) is None]
"""Libraries of the extra `serving`: without them the tests of servers and of the load client are not collected."""
collect_ignore_glob = ["server", "traffic/load/*"] if MISSING else []
MODULES = ("triton", "ray", *SERVING)
PROGRAMS = ("git", "gcc", "make", "chromium", "pdflatex")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept", action="store_true", help="keep golden texts and tables of pages as they are now")
    parser.addoption("--complete", action="store_true", help="fail if something is missing without which tests skip")


@pytest.fixture
def accept(request: pytest.FixtureRequest) -> bool:
    """Whether tests write what they compare with: golden texts, tables of pages."""
    return bool(request.config.getoption("--accept"))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--complete"):
        missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
        missing += [name for name in PROGRAMS if shutil.which(name) is None]
        missing += [] if cpu.native() else ["the native module"]
        if missing:
            raise pytest.UsageError(f"--complete: missing {', '.join(missing)}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several processes, the tests of a file run in one of them, and so do all tests of clusters: they kill
    processes by their names. (`--dist loadgroup` of pytest-xdist 3.8 finds no groups with pytest 9.2.)"""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "clusters" if file.startswith("tests/plugins/ray/") else file

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Tests hold a lock together; a test marked `serial` holds it alone. Who waits for it lets no other test begin."""
    cache = getattr(item.config, "cache", None)
    if not hasattr(item.config, "workerinput") or cache is None:
        return (yield)
    folder = cache.mkdir("locks")
    with (folder / "turn").open("w") as turn, (folder / "running").open("w") as running:
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if item.get_closest_marker("serial") else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(running, fcntl.LOCK_UN)  # explicitly: a forked process may keep the file open
