"""The engine: takes requests, and computes their answers step by step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Literal, NamedTuple

import torch

from chunkbench.attention import RaggedChunkAttention
from chunkbench.attention.errors import PoolExhausted
from chunkbench.attention.windows import HeadPolicy
from chunkbench.kernels.cpu.store import dtype_name
from chunkbench.kv_dtype import KvDtype
from chunkbench.server.engine import beam_steps
from chunkbench.server.engine.beams import Beam, BeamSearch
from chunkbench.server.engine.cache import EngineCache
from chunkbench.server.engine.drafts import CHEAP_ROWS
from chunkbench.server.engine.errors import RequestFailed, RequestRefused
from chunkbench.server.engine.logprobs import TokenLogprobs, logprobs_of
from chunkbench.server.engine.model import Model
from chunkbench.server.engine.request import BeamGroup, Finish, Generated, Request, Sequence
from chunkbench.server.engine.sampling import next_tokens
from chunkbench.server.scheduling import Piece, Rules, Scheduler

Attention = Literal["two-phase", "sequence-first", "no-sharing"]
Cache = Literal["live", "radix"]
Schedule = Literal["fcfs", "prefix"]
Draft = Literal["none", "ngram"]

_LOST_DEVICE: type[Exception] | tuple[()] = getattr(torch, "AcceleratorError", ())
"""After one of these errors the process can no longer use the GPU."""


@dataclass(frozen=True)
class EngineOptions:
    """Settings of the engine."""

    max_batch: int = 32
    """Maximum number of sequences in a step. The default is the paper's."""
    prompt_budget: int = 2048
    """Maximum number of prompt tokens in a step. Tokens of decoding sequences do not count."""
    kv_bytes: int = 1 << 30
    """Memory for the K and V of all layers, in bytes. The engine allocates it when it is created. With windows, layers
    that keep all tokens may later allocate more, because what windows lost makes room for other chunks."""
    chunk_size: int = 64
    attention: Attention = "two-phase"
    """two-phase: the prefix-aware cache with the two-phase partition kernel. sequence-first: the same cache, but
    each sequence reads its shared chunks separately. no-sharing: every sequence has its own chunks."""
    cache: Cache = "live"
    """live: a chunk is freed when the last sequence that uses it ends, as in the paper. radix: chunks stay for later
    requests; when their memory is needed, the least recently used are freed first (RadixAttention)."""
    schedule: Schedule = "fcfs"
    """Order of the queue. fcfs: by arrival. prefix: longest cached prefix first."""
    policy: HeadPolicy | None = None
    """Says which KV heads keep only a window of tokens. None: all heads keep all tokens."""
    kv_dtype: KvDtype = "same"
    """How K and V are stored: in the model's dtype, or in 8 bits."""
    draft_tokens: int = 0
    """Largest number of tokens that are drafted for a sequence and verified in one step. The draft is what followed
    the sequence's last tokens when they occurred in it before. 0: no drafts."""

    def __post_init__(self) -> None:
        for name in ("max_batch", "prompt_budget", "kv_bytes", "chunk_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.draft_tokens < CHEAP_ROWS:
            raise ValueError(f"draft_tokens must lie between 0 and {CHEAP_ROWS - 1}, not {self.draft_tokens}")
        if self.cache == "radix" and self.attention == "no-sharing":
            raise ValueError("the cache radix keeps chunks to share them; attention no-sharing does not share")


class Chosen(NamedTuple):
    token: int
    logprobs: TokenLogprobs | None
    beam: Beam
    """The likeliest next tokens if the sequence is a beam; else empty."""
    after_draft: tuple[int | None, ...] = ()
    """The token that the model chooses after each token of a draft; None if its logits give none."""


@dataclass(frozen=True)
class StepReport:
    """What one step of the engine did. Times are in seconds."""

    generated: tuple[Generated, ...]
    batch: int
    prompt_tokens: int
    preempted: int
    schedule_s: float
    """Seconds for scheduling, including the prefix tree and the plan."""
    forward_s: float
    sample_s: float
    tree_s: float
    """Seconds for managing prefixes, a part of `schedule_s`: see `EngineCache`."""
    kv_bytes: int
    """Bytes of the chunks that running sequences use during the step."""
    arrived: int
    """Number of requests that were added to the engine since its start."""
    failed: tuple[RequestFailed, ...] = ()
    """Requests that ended in this step without a complete answer."""
    drafted: int = 0
    """Number of drafted tokens that the step verified."""
    accepted: int = 0
    """Number of drafted tokens that the model chose, too."""
    of_model: Mapping[str, float] = field(default_factory=dict)
    """Part of the model -> its seconds, within `forward_s`. Empty if the model does not tell them."""

    @property
    def seconds(self) -> float:
        return self.schedule_s + self.forward_s + self.sample_s

    @property
    def overhead_s(self) -> float:
        """Seconds of the step that the model did not need: scheduling and the choice of tokens."""
        return self.schedule_s + self.sample_s

    @property
    def parts(self) -> dict[str, float]:
        """Name of a part of the step -> its seconds. Empty if the model does not tell its parts."""
        if not self.of_model:
            return {}
        rest = {"other work of the model": self.forward_s - sum(self.of_model.values())}
        return {"scheduling": self.schedule_s, **self.of_model, **rest, "sampling": self.sample_s}


class Engine:
    """Answers requests with one prefix-aware cache for all layers. Only one thread at a time may use an engine.

    The cache finds shared prefixes by token ids, so that clients need not name them (section 3.1 of the paper).
    Cached tokens of a prompt are not computed again.
    """

    def __init__(self, model: Model, options: EngineOptions | None = None) -> None:
        """Raises ValueError if `kv_bytes` does not hold one chunk, the model's shape has no kernel, or `policy` is set
        for a model with windows of its own."""
        self.model = model
        self.options = options = options or EngineOptions()
        self.token_bytes = model.token_bytes(options.kv_dtype)
        """Bytes of the K and V of one token in all layers, as they are stored."""
        least = self.token_bytes * options.chunk_size
        self.max_tokens = options.kv_bytes // least * options.chunk_size
        """Number of tokens for which the K/V memory has room."""
        if self.max_tokens == 0:
            raise ValueError(f"kv_bytes={options.kv_bytes} does not hold one chunk, which takes {least} bytes")
        if model.policy is not None and options.policy is not None:
            raise ValueError("heads: this model's sliding windows decide what its KV heads keep; leave out --heads")
        self.max_length = min(self.max_tokens, model.max_length)
        """Maximum number of tokens of prompt and answer together."""
        self._attention = RaggedChunkAttention(
            model.layers,
            model.heads,
            model.head_dim,
            model.kv_heads,
            options.chunk_size,
            model.dtype,
            model.device,
            max_tokens=self.max_tokens,
            partition="two-phase" if options.attention == "two-phase" else "sequence-first",
            share=options.attention != "no-sharing",
            retain=options.cache == "radix",
            policy=model.policy or options.policy,
            kv_dtype=options.kv_dtype,
            softcap=model.softcap,
        )
        if options.draft_tokens and not self._attention.drafts:
            raise ValueError("drafts need the native kernel, and heads and layers that keep all tokens (--draft)")
        self._attention.reserve(self.max_tokens, touch=True)
        self._cache = EngineCache(self._attention, self.max_tokens)
        rules = Rules(options.max_batch, options.prompt_budget, order=options.schedule)
        self._scheduler: Scheduler[Sequence] = Scheduler(self._cache, rules)
        self._arrivals = 0
        self._early: list[Generated] = []
        """Tokens that constraints force at the beginning of new answers."""
        self.peak_kv_bytes = 0
        self.peak_batch = 0

    @property
    def kernel(self) -> str:
        return self._attention.kernel

    @property
    def kv_bytes(self) -> int:
        """Bytes of the chunks that running sequences use."""
        return self._attention.kv_bytes

    @property
    def idle_kv_bytes(self) -> int:
        """Bytes of the chunks that no running sequence uses, kept for later requests."""
        return self._attention.idle_kv_bytes

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self._scheduler.waiting)

    @property
    def idle(self) -> bool:
        """True if there is nothing to compute."""
        return self._scheduler.idle and not self._early

    def check(self, request: Request, answers: int = 1) -> None:
        """Raise RequestRefused if the engine can never give this number of answers to the request."""
        request.check(self.max_length, self.model.vocabulary)
        if answers > self.options.max_batch:
            raise RequestRefused(
                f"n must be at most {self.options.max_batch}, not {answers}: this server computes at most this number "
                "of sequences at a time (--max-batch)",
                "n",
            )
        size = self.options.chunk_size
        own = 1  # chunks of an answer: answers are preempted one by one, but beams all together
        if request.beams is not None:
            own = -(-(len(request.prompt) % size + request.max_tokens) // size) + 1
        if (len(request.prompt) // size + answers * own) * size > self.max_tokens:
            raise RequestRefused(
                f"the K/V memory holds {self.max_tokens} tokens: too few for {answers} answers to a prompt of "
                f"{len(request.prompt)} tokens (--kv-memory)",
                "n",
            )

    def add(self, request: Request, *others: Request) -> None:
        """Put a request into the queue. Raises RequestRefused.

        `others`: requests for more answers to the same prompt, with the same constraint. Their seeds, for example, may
        differ. When the prompt is computed, their sequences start as copies of the first sequence.
        """
        self.check(request, 1 + len(others))
        sequences = []
        for one in (request, *others):
            # A constraint decides itself when the answer is complete.
            goes_on = one.ignore_eos and one.matcher is None
            ends = one.stop_ids | (frozenset() if goes_on else self.model.eos_ids)
            sequence = Sequence(self._arrivals, one, list(one.prompt), ends)
            self._arrivals += 1
            begin = self._forced(sequence)
            self._early += begin
            if not begin or begin[-1].finish is None:
                sequences.append(sequence)
        if request.beams is not None:
            search = BeamSearch(len(sequences), request.max_tokens, sequences[0].ends, request.beams)
            group = BeamGroup(search, list(sequences))
            for sequence in sequences:
                sequence.group = group
            del sequences[1:]
        elif sequences and self.options.attention != "no-sharing":
            sequences[0].others = sequences[1:]
            sequences = sequences[:1]
        for sequence in sequences:
            self._scheduler.add(sequence)

    def drop(self, ids: Iterable[str]) -> None:
        """Remove requests whose clients disconnected. The next step can use their chunks.

        An unknown id is ignored, because its answer may just have ended.
        """
        gone, dropped = set(ids), list[Sequence]()
        for sequence in (*self._scheduler.running, *self._scheduler.waiting):
            if sequence.group is not None:
                dropped += [sequence] * any(slot.request.id in gone for slot in sequence.group.slots)
                continue
            sequence.others = [other for other in sequence.others if other.request.id not in gone]
            if sequence.request.id not in gone:
                continue
            if sequence.others:  # another answer takes the place of the dropped one
                heir = sequence.others.pop(0)
                sequence.request, sequence.ends = heir.request, heir.ends
            else:
                dropped.append(sequence)
        self._scheduler.drop(dropped)

    def step(self) -> StepReport:
        """Compute one token of every decoding sequence, and parts of prompts.

        A request fails alone if its tokens cannot be computed, or if its logits give no token. Errors that end the
        engine are raised: a lost GPU, or a fault of the engine.
        """
        started, tree_s = perf_counter(), self._cache.tree.seconds
        self._cache.drafts = self._drafts() if self.options.draft_tokens else {}
        self._drafted = self._accepted = 0
        step = self._scheduler.schedule()
        self._cache.plan()
        pieces = [*(Piece(entry, entry.length - 1, 1) for entry in step.decoding), *step.prompts]
        kv_bytes = self._attention.kv_bytes
        self.peak_kv_bytes = max(self.peak_kv_bytes, kv_bytes)
        self.peak_batch = max(self.peak_batch, step.batch)
        planned = perf_counter()
        generated, self._early = self._early, []
        failed: list[RequestFailed] = []
        self._computed = planned
        groups = dict[BeamGroup, None]()
        for sequence, outcome in self._outcomes(pieces) if pieces else ():
            if sequence.group is not None:
                groups[sequence.group] = None
                if isinstance(outcome, RequestFailed):
                    failed += beam_steps.fail(sequence.group, outcome, self._cache, self._scheduler)
                else:
                    sequence.group.rows[sequence] = outcome.beam
                continue
            self._branch(sequence)
            if isinstance(outcome, RequestFailed):
                if sequence.computed:
                    self._cache.forget(sequence.arrival)
                self._end(sequence)
                failed.append(outcome)
            elif sequence.arrival in self._cache.drafts:
                generated += self._take_draft(sequence, outcome)
            else:
                generated += self._take(sequence, outcome)
        for group in groups:
            generated += beam_steps.advance(group, self._cache, self._scheduler)
        computed, done = self._computed, perf_counter()
        return StepReport(
            tuple(generated),
            step.batch,
            step.prompt_tokens,
            step.preempted,
            planned - started,
            computed - planned,
            done - computed,
            self._cache.tree.seconds - tree_s,
            kv_bytes,
            self._arrivals,
            tuple(failed),
            self._drafted,
            self._accepted,
            self.model.seconds if pieces else {},
        )

    def _drafts(self) -> dict[int, list[int]]:
        """Arrival -> the draft of a running sequence, for the step that comes."""
        room, drafts = CHEAP_ROWS - len(self._scheduler.running), dict[int, list[int]]()
        for sequence in self._scheduler.running:
            left = sequence.request.max_tokens - sequence.generated - 1
            most = min(room, left, self.options.draft_tokens, self.max_length - sequence.length)
            if most > 0 and sequence.may_draft and (draft := sequence.drafter.propose(sequence.tokens, most)):
                sequence.before_draft = None if sequence.request.sampling.greedy else sequence.generator.get_state()
                drafts[sequence.arrival] = draft
                room -= len(draft)
        return drafts

    def _take_draft(self, sequence: Sequence, chosen: Chosen) -> list[Generated]:
        """Add the tokens that the model chose, as long as they are those of the draft, and the first other one."""
        draft, generated = self._cache.drafts[sequence.arrival], self._take(sequence, chosen)
        accepted = 0
        for drafted, token in zip(draft, chosen.after_draft, strict=True):
            if token is None or generated[-1].finish is not None or generated[-1].token != drafted:
                break
            accepted += 1
            generated += self._take(sequence, Chosen(token, None, Beam()))
        self._drafted, self._accepted = self._drafted + len(draft), self._accepted + accepted
        sequence.drawn_only(1 + accepted)
        sequence.drafter.tell(accepted)
        if generated[-1].finish is None:
            sequence.computed = sequence.length - 1
            self._settle(sequence)
        return generated

    def _settle(self, sequence: Sequence) -> None:
        """Forget the K and V of drafted tokens that were rejected. Without room for the copy of a chunk that another
        sequence shares, the sequence waits and begins again."""
        try:
            self._cache.settle(sequence.arrival, sequence.computed)
        except PoolExhausted:
            self._scheduler.put_back(sequence)

    def _outcomes(self, pieces: list[Piece[Sequence]]) -> list[tuple[Sequence, Chosen | RequestFailed]]:
        """Compute planned pieces. Returns, for each sequence whose last token is among them, the next token or why
        there is none.

        After an exception, computes the two halves separately, and so on, until only the pieces that cause it fail.
        """
        try:
            return self._compute(pieces)
        except _LOST_DEVICE:
            raise
        except Exception as error:
            self._cache.undo()
            for sequence, _, _ in pieces:
                if self._cache.drafts.pop(sequence.arrival, None):
                    self._settle(sequence)
            pieces = [piece for piece in pieces if piece.entry in self._scheduler.running]
            if not pieces:
                return []
            if len(pieces) == 1:
                return [(sequence, _failure(sequence, error)) for sequence in _answers(pieces[0].entry)]
        middle = len(pieces) // 2
        outcomes = []
        for half in (pieces[:middle], pieces[middle:]):
            # A piece may need chunks that another piece should have written.
            ends = [(entry, first + tokens) for entry, first, tokens in half]
            firsts = [self._cache.select_again(entry.arrival, end) for entry, end in ends]
            self._cache.plan()
            again = [Piece(entry, first, end - first) for (entry, end), first in zip(ends, firsts, strict=True)]
            outcomes += self._outcomes(again)
        return outcomes

    def _compute(self, pieces: list[Piece[Sequence]]) -> list[tuple[Sequence, Chosen | RequestFailed]]:
        drafts = [self._cache.drafts.get(entry.arrival, []) for entry, _, _ in pieces]
        sampled = _sampled(pieces, drafts)
        tokens, positions = list[int](), list[int]()
        for (entry, first, count), draft in zip(pieces, drafts, strict=True):
            tokens += entry.tokens[first : first + count] + draft
            positions += range(first, first + count + len(draft))
        rows = [row for row, _ in sampled]
        asked = _asked(pieces, drafts)
        if asked:
            logits = self._prompt_logprobs(tokens, positions, asked, rows)
        else:
            logits = self.model.logits(tokens, positions, rows or [0], self._attention)
        self._computed = perf_counter()
        sequences = [answer for _, sequence in sampled for answer in _answers(sequence)]
        if len(sequences) > len(sampled):
            counts = [len(_answers(sequence)) for _, sequence in sampled]
            logits = logits.repeat_interleave(torch.tensor(counts, device=logits.device), 0)
        told = [row for row, sequence in enumerate(sequences) if sequence.request.logprobs is not None]
        raw = logits[told] if told else None  # a copy, because the choice of tokens changes logits
        beams = beam_steps.likeliest_of(logits, sequences)
        chosen = next_tokens(logits, sequences) if sequences else []
        found = dict[int, TokenLogprobs]()
        if raw is not None:
            counts = [sequences[row].request.logprobs or 0 for row in told]
            found = dict(zip(told, logprobs_of(raw, [chosen[row] or 0 for row in told], counts), strict=True))
        outcomes = list[tuple[Sequence, Chosen | RequestFailed]]()
        for row, (sequence, token) in enumerate(zip(sequences, chosen, strict=True)):
            if outcomes and outcomes[-1][0] is sequence:  # a row of the draft of this sequence
                outcome = outcomes[-1][1]
                if isinstance(outcome, Chosen):
                    outcomes[-1] = sequence, outcome._replace(after_draft=(*outcome.after_draft, token))
            elif token is None:
                outcomes.append((sequence, self._no_token(sequence)))
            else:
                outcomes.append((sequence, Chosen(token, found.get(row), beams.get(row, Beam()))))
        return outcomes

    def _prompt_logprobs(
        self, tokens: list[int], positions: list[int], asked: list[tuple[int, Sequence, int]], sampled: list[int]
    ) -> torch.Tensor:
        """Compute a step, and keep the log-probabilities of tokens of prompts. Returns the logits of the sampled rows.

        `asked`: rows whose logits say how probable a token of a prompt is, each with its sequence and the token's
        place.
        """
        rows = [row for row, _, _ in asked]
        places, last = iter(asked), list[torch.Tensor]()
        for part in self.model.logits_in_parts(tokens, positions, [*rows, *sampled], self._attention):
            of_prompts = list(itertools.islice(places, len(part)))
            counts = [sequence.request.prompt_logprobs or 0 for _, sequence, _ in of_prompts]
            told = [sequence.tokens[place] for _, sequence, place in of_prompts]
            for (_, sequence, place), found in zip(
                of_prompts, logprobs_of(part[: len(told)], told, counts), strict=True
            ):
                sequence.prompt_logprobs[place:] = [found]
            last.append(part[len(told) :])
        return torch.cat(last)

    def _branch(self, sequence: Sequence) -> None:
        """Let the other answers of a prompt that was just computed run as forks. An answer without room for its copy of
        a partial chunk waits at the front of the queue."""
        others, sequence.others = sequence.others, []
        for other in others:
            other.prompt_logprobs = sequence.prompt_logprobs
        for number, other in enumerate(others):
            if not self._cache.fork(sequence.arrival, other.arrival, other.text):
                self._scheduler.waiting.extendleft(reversed(others[number:]))
                return
            self._scheduler.branch(sequence, other)

    def _end(self, sequence: Sequence) -> None:
        """Remove a sequence, whether it runs or waits."""
        self._scheduler.drop([sequence])

    def _no_token(self, sequence: Sequence) -> RequestFailed:
        matcher = sequence.request.matcher
        if matcher is not None and matcher.error:
            return RequestFailed(sequence.request.id, f"the constraint allows no token: {matcher.error}", True)
        reason = f"the model's logits for token {sequence.length} are NaN or infinite"
        return RequestFailed(
            sequence.request.id, f"{reason}; the model may need another dtype than {dtype_name(self.model.dtype)}"
        )

    def _take(self, sequence: Sequence, chosen: Chosen) -> list[Generated]:
        """Add a token to a sequence, and the tokens that its constraint forces after it. The sequence ends after its
        last token."""
        request, token = sequence.request, chosen.token
        sequence.tokens.append(token)
        if request.matcher is not None and token not in sequence.ends:
            request.matcher.accept(token)
        of_prompt = tuple(sequence.prompt_logprobs) if sequence.generated == 1 and sequence.text.whole else ()
        generated = [
            Generated(
                request.id,
                token,
                self._finish(sequence),
                sequence.cached_tokens,
                logprobs=chosen.logprobs,
                prompt_logprobs=of_prompt,
            )
        ]
        if generated[-1].finish is None:
            generated += self._forced(sequence)
        if generated[-1].finish is not None:
            self._end(sequence)
        return generated

    def _forced(self, sequence: Sequence) -> list[Generated]:
        """Append the tokens that the constraint of a sequence forces, up to `max_tokens` or a token that ends the
        answer."""
        request = sequence.request
        if request.matcher is None:
            return []
        forced = request.matcher.forced(sequence.tokens[len(request.prompt) :], request.max_tokens)
        if forced is None:
            return []
        replaces, begin = sequence.generated - forced.kept, len(request.prompt) + forced.kept
        del sequence.tokens[begin:]
        if sequence.computed > begin:
            try:
                self._cache.truncate(sequence.arrival, begin)
                sequence.cut(begin)
            except PoolExhausted:
                self._scheduler.put_back(sequence)
        generated = []
        for token in forced.tokens[: request.max_tokens - forced.kept]:
            sequence.tokens.append(token)
            generated.append(Generated(request.id, token, None, sequence.cached_tokens, forced=True))
            if token in sequence.ends:
                break
        whole = len(generated) == len(forced.tokens)
        generated[0] = replace(generated[0], replaces=replaces)
        generated[-1] = replace(generated[-1], finish=self._finish(sequence, whole))
        return generated

    @staticmethod
    def _finish(sequence: Sequence, followed: bool = True) -> Finish | None:
        """Why the answer ends with its last token; None if it continues. `followed`: whether the matcher has no more
        tokens than the answer."""
        request = sequence.request
        complete = followed and request.matcher is not None and request.matcher.complete
        if sequence.tokens[-1] in sequence.ends or complete:
            return "stop"
        return "length" if sequence.generated == request.max_tokens else None


def _asked(pieces: Iterable[Piece[Sequence]], drafts: Iterable[list[int]]) -> list[tuple[int, Sequence, int]]:
    """The rows of a step whose logits say how probable a token of a prompt is: each with its sequence, and the place of
    the token. `drafts`: the tokens that follow each piece."""
    asked, row = [], 0
    for (entry, first, count), draft in zip(pieces, drafts, strict=True):
        if entry.text.whole and entry.generated == 0:
            asked += [(row + n, entry, first + n + 1) for n in range(min(count, entry.length - first - 1))]
        row += count + len(draft)
    return asked


def _answers(sequence: Sequence) -> list[Sequence]:
    """The sequence, and the other answers that begin with it. Beams choose their tokens together, later."""
    return [sequence, *(sequence.others if sequence.group is None else ())]


def _failure(sequence: Sequence, error: Exception) -> RequestFailed:
    failure = RequestFailed(sequence.request.id, f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _sampled(pieces: Iterable[Piece[Sequence]], drafts: Iterable[list[int]]) -> list[tuple[int, Sequence]]:
    """Indices of the rows of a step whose logits choose the next token of a sequence, or the token after a drafted
    one. `drafts`: the tokens that follow each piece."""
    rows, row = [], 0
    for piece, draft in zip(pieces, drafts, strict=True):
        row += piece.tokens
        if piece.sampled:
            rows += [(row - 1 + n, piece.entry) for n in range(1 + len(draft))]
        row += len(draft)
    return rows
