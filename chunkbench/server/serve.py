"""Builds a server, and runs it until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable
from time import monotonic

import torch
import uvicorn

from chunkbench.limits import most_files
from chunkbench.malloc import share_heap
from chunkbench.server.app import Server, ServerOptions, application
from chunkbench.server.backend import Backend
from chunkbench.server.build import ModelChoice, build_backend, text_of
from chunkbench.server.engine import EngineOptions
from chunkbench.server.engine.engine import Cache
from chunkbench.server.engine.model import ModelNumbers
from chunkbench.server.heads import read_heads
from chunkbench.server.records import Log
from chunkbench.server.serve_options import ServeOptions
from chunkbench.server.text import CheckpointTokenizer

SWITCH_S = 1e-4
BACKLOG = 2048
"""Maximum number of connections that wait to be accepted. It is large, so that many clients can connect at once."""

_EVERYWHERE = ("0.0.0.0", "::")
"""Host names with which the server listens on all addresses of the machine. Messages name localhost in their place,
because clients on some systems cannot connect to these names."""


class _Announcing(uvicorn.Server):
    """A uvicorn server that announces when it listens."""

    announce: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.announce()


_QUIET_S = 10.0
_TOO_MANY_FILES = (
    "too many open files, and each connection is one: new ones wait until others end; raise the hard limit (ulimit -Hn)"
)


class _RefusedConnections(logging.Filter):
    """A filter that replaces asyncio's messages on refused connections, each with a traceback, by one line in ten
    seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if "_start_serving" in message:  # asyncio would listen again after a second, but the server is shutting down
            return False
        if "out of system resource" not in message:
            return True
        if monotonic() < self._next:
            return False
        self._next = monotonic() + _QUIET_S
        record.msg, record.args, record.exc_info = _TOO_MANY_FILES, (), None
        return True


def _no_cancelled(record: logging.LogRecord) -> bool:
    """A log filter that drops the tracebacks of answers that are cut at shutdown, because another line counts these
    answers."""
    return not record.exc_info or record.exc_info[0] is not asyncio.CancelledError


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket. Port 0: a free port. Raises OSError."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    both = host in _EVERYWHERE and family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)


def address_of(listening: socket.socket) -> str:
    """The address for clients, as text for a message."""
    address, port = listening.getsockname()[:2]
    if address in _EVERYWHERE:
        return f"http://localhost:{port}/v1, on all addresses of this machine"
    return f"http://{f'[{address}]' if ':' in address else address}:{port}/v1"


def build(options: ServeOptions, say: Callable[[str], None]) -> tuple[Backend, ServerOptions, CheckpointTokenizer]:
    """Build the engine. Returns it with the settings of the web application and the model's tokenizer.

    `say` receives a line of text before each slow part. Raises EngineError and ValueError.
    """
    scores = None if options.heads is None else read_heads(options.heads)

    def check(numbers: ModelNumbers) -> None:
        if options.heads is not None and scores is not None:
            scores.check(options.heads, numbers.layers, numbers.heads, numbers.kv_heads)

    dtype, attention = getattr(torch, options.dtype), options.attention
    cache: Cache = options.cache or ("live" if attention == "no-sharing" else "radix")
    policy = None if scores is None else scores.policy(options.window, options.compress)
    choice = ModelChoice(
        options.model, dtype, options.device, options.layers, options.vocabulary, options.max_length, options.seed
    )
    limits = EngineOptions(
        options.max_batch,
        options.prompt_budget,
        options.kv_bytes,
        options.chunk_size,
        attention,
        cache,
        options.schedule,
        policy,
        options.kv_dtype,
        options.draft_tokens if options.draft == "ngram" else 0,
    )
    backend, room = build_backend(choice, options.engine, limits, say, check)
    text = CheckpointTokenizer(choice.folder)
    name = text_of(options.served_name or choice.name)
    served = ServerOptions(name, room, options.max_waiting, options.constrained, options.allow_origin, options.compiled)
    return backend, served, text


def run(
    backend: Backend,
    options: ServerOptions,
    text: CheckpointTokenizer,
    listening: socket.socket,
    log: Log,
    announce: Callable[[], None],
    shutdown_s: int,
) -> bool:
    """Serve until SIGTERM or SIGINT. Then running requests have `shutdown_s` seconds to finish. Closes the log.
    Returns False if the engine broke."""
    # A thread that waits for Python's lock asks for it only after this time. The engine gives the lock up in every
    # operation of PyTorch; with Python's 5 ms it would wait that long whenever tokens are being sent.
    sys.setswitchinterval(SWITCH_S)
    share_heap()

    def ended() -> None:
        web.should_exit = True

    server = Server(backend, options, text, log, ended)
    # uvicorn's own logging needs a standard output; its number of workers may come from the environment.
    logging.basicConfig(format="%(levelname)s: %(message)s")
    config = uvicorn.Config(
        application(server),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="on",
        workers=1,
        timeout_graceful_shutdown=shutdown_s,
    )
    logging.getLogger("uvicorn.error").addFilter(_no_cancelled)
    logging.getLogger("asyncio").addFilter(_RefusedConnections())
    web = _Announcing(config)
    web.announce = announce
    # uvicorn raises the signal again after it has shut down; such a signal is not an error.
    previous = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with most_files():
            web.run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, previous)
        log.close()
    return server.failure is None
