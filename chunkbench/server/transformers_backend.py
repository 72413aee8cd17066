"""Runs transformers' continuous batching behind our web application, for comparison with our engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import transformers

from chunkbench.server.backend import BackendFailed, Deliver, Load, Observer, refuse_beyond_greedy
from chunkbench.server.engine import EngineOptions, Generated, ModelError, Request, RequestFailed
from chunkbench.server.engine.model import ModelNumbers
from chunkbench.server.engine.request import Finish

PAGE_SIZE = 64
"""Number of tokens of a page, equal to the default size of our chunks."""
WATCH_S = 0.5
"""Seconds between two checks whether transformers' thread is alive."""


@dataclass
class _Answer:
    request: Request
    deliver: Deliver
    tokens: int = 0
    """Number of tokens delivered so far."""


class TransformersBackend:
    """Answers requests with transformers' `ContinuousBatchingManager`. Tokens are chosen greedily. Requests share
    pages of equal prefixes, also with requests that have ended."""

    def __init__(self, module: Any, options: EngineOptions) -> None:
        """`module`: a causal language model of transformers, loaded with the attention `sdpa`. `options.chunk_size`
        and `options.attention` are ignored. Raises ModelError if the memory is smaller than a page."""
        self._model = model = ModelNumbers(module)
        self._attention: str = module.config._attn_implementation
        self._options = options
        self._page_bytes = model.token_bytes() * PAGE_SIZE
        self._pages = options.kv_bytes // self._page_bytes
        if self._pages == 0:
            raise ModelError(f"kv_bytes={options.kv_bytes} does not hold a page, which takes {self._page_bytes} bytes")
        self.max_length: int = min(self._pages * PAGE_SIZE, model.max_length)
        """Maximum number of tokens of prompt and answer together."""
        self._manager = module.init_continuous_batching(
            transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            transformers.ContinuousBatchingConfig(
                page_size=PAGE_SIZE,
                num_blocks=self._pages,
                max_batch_tokens=options.prompt_budget + options.max_batch,
                max_requests_per_batch=options.max_batch,
                use_cuda_graph=False,
            ),
        )
        self._answers: dict[str, _Answer] = {}
        self._failed: BackendFailed | None = None

    def start(self, observer: Observer) -> None:
        self._observer = observer
        self._manager.start()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    def check(self, request: Request, answers: int) -> None:
        refuse_beyond_greedy("transformers", request, self._ends(request))
        request.check(self.max_length, self._model.vocabulary)

    def tokens(self) -> tuple[int, frozenset[int]]:
        return self._model.vocabulary, frozenset(self._model.eos_ids)

    def submit(self, requests: Sequence[Request], deliver: Deliver) -> None:
        if self._failed:
            raise self._failed
        for request in requests:
            self._answers[request.id] = _Answer(request, deliver)
            self._manager.register_result_handler(request.id, self._take)
            self._manager.add_request(
                list(request.prompt),
                request_id=request.id,
                max_new_tokens=request.max_tokens,
                streaming=True,
                eos_token_id=sorted(self._ends(request)) or -1,
            )

    def drop(self, id: str) -> None:
        if self._answers.pop(id, None):
            self._manager.cancel_request(id)

    def load(self) -> Load:
        processor = self._manager.batch_processor
        if processor is None:
            return Load(0, len(self._answers), 0)
        running = len(processor.scheduler.active_requests)
        free = processor.cache.compute_free_capacity()
        return Load(running, max(0, len(self._answers) - running), int((1 - free) * self._pages) * self._page_bytes)

    def facts(self) -> dict[str, Any]:
        return {
            "engine": "transformers",
            "attention": self._attention,
            "transformers": transformers.__version__,
            "max_batch": self._options.max_batch,
            "prompt_budget": self._options.prompt_budget,
            "page_size": PAGE_SIZE,
            "kv_bytes": self._pages * self._page_bytes,
            **self._model.facts(),
        }

    def close(self) -> None:
        self._watcher.cancel()
        self._manager.stop(block=True, hard_stop=True)

    def _ends(self, request: Request) -> set[int]:
        """Token ids that end an answer."""
        return set(request.stop_ids) | (set() if request.ignore_eos else self._model.eos_ids)

    def _take(self, output: Any) -> None:
        """Deliver new tokens. Runs on the event loop."""
        answer = self._answers.get(output.request_id)
        if answer is None:
            return
        if output.error:
            del self._answers[output.request_id]
            answer.deliver(RequestFailed(output.request_id, f"transformers: {output.error}"))
            return
        new = output.generated_tokens[answer.tokens :]
        answer.tokens += len(new)
        for place, token in enumerate(new):
            finish: Finish | None = None
            if output.is_finished() and place == len(new) - 1:
                finish = "stop" if token in self._ends(answer.request) else "length"
                del self._answers[output.request_id]
            answer.deliver(Generated(output.request_id, token, finish, None))

    async def _watch(self) -> None:
        """Watch the manager's thread. If it ends, all requests fail."""
        while self._manager.is_running():
            await asyncio.sleep(WATCH_S)
        reason = self._manager.background_thread_status.fatal_error
        self._failed = BackendFailed(f"transformers' generation loop ended: {reason}")
        answers, self._answers = list(self._answers.values()), {}
        for answer in answers:
            answer.deliver(self._failed)
        self._observer.failed(self._failed)
