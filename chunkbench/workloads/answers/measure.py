"""Measures answers: each context is computed once, then written into the cache of each choice of heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch

from chunkbench.bench.experiment.point import Case
from chunkbench.bench.runner.case_facts import now
from chunkbench.bench.runner.passes import Budget
from chunkbench.bench.runner.target import Target
from chunkbench.run_error import CannotRunError
from chunkbench.server import smollm2
from chunkbench.server.engine import Model
from chunkbench.server.engine.model import INTERFACE, load_module
from chunkbench.server.find_heads import INTERFACE as WATCHED
from chunkbench.server.find_heads import find_heads, tokens_for
from chunkbench.server.heads import HeadScores, HeadsError, read_heads
from chunkbench.workloads.answers.haystack import Haystack, haystack
from chunkbench.workloads.answers.methods import METHODS
from chunkbench.workloads.answers.recall import NO_DEVIATION, CompressedContext, deviation, read
from chunkbench.workloads.answers.result import AnswersContext, AnswersPoint, AnswersResult
from chunkbench.workloads.answers.spec import AnswersExperiment

_ANSWER = 7
"""Tokens of an answer: a space, the digits of a value, and one further token."""
_QUESTION = 32
"""Largest number of tokens of a question."""


class AnswersMeasurer:
    """Measures all choices of heads at the points of a run, with one model."""

    def __init__(
        self,
        experiment: AnswersExperiment,
        target: Target,
        points: Sequence[AnswersPoint],
        notify: Callable[[str], None],
    ) -> None:
        """Load the model and find its retrieval heads. Raises `RunError`."""
        self._experiment, self._target = experiment, target
        self.styles = METHODS.styles(experiment.implementations)
        shapes = {point.model for point in points}
        if len(shapes) > 1:
            raise CannotRunError("a run of kind: answers has one model")
        (shape,), dtype = shapes, getattr(torch, points[0].dtype)
        folder = smollm2.checkpoint_of(shape)
        assert folder is not None  # the experiment's rules
        self._encode, self._decode = _tokenizer(folder)
        self._scores = self._heads(folder, dtype, notify)
        self._model = Model(load_module(folder, dtype, INTERFACE))
        try:
            self._scores.check(
                Path(experiment.heads or ""), self._model.layers, self._model.heads, self._model.kv_heads
            )
        except HeadsError as error:
            raise CannotRunError(str(error)) from None

    def _heads(self, folder: Path, dtype: torch.dtype, notify: Callable[[str], None]) -> HeadScores:
        """Read the scores of heads from the file that the experiment names; without a file, compute the scores. Raises
        `RunError`.
        """
        if self._experiment.heads is not None:
            try:
                return read_heads(Path(self._experiment.heads))
            except HeadsError as error:
                raise CannotRunError(str(error)) from None
        watched = load_module(folder, dtype, WATCHED).eval()
        tokens = self._experiment.tested or tokens_for(watched.config.max_position_embeddings)
        notify(f"finding the retrieval heads of {folder.name}: {tokens} random tokens, read four times")
        return find_heads(watched, folder.name, tokens)

    def measure(
        self,
        points: Sequence[AnswersPoint],
        cases_of: Mapping[AnswersPoint, Sequence[Case[AnswersPoint]]],
        budget: Budget,
        announce: Callable[[str], None],
    ) -> Mapping[AnswersPoint, Sequence[AnswersResult]]:
        """Try all choices of heads on as many contexts of a point as the budget allows, at least one context."""
        (point,) = points
        started_at = now()
        contexts: dict[str, list[AnswersContext]] = {case.implementation: [] for case in cases_of[point]}
        count, held = self._experiment.contexts, self._experiment.held
        most = self._model.max_length - max(held, _QUESTION + _ANSWER)
        if point.n_p > most:
            told = (
                f"the model has positions for {self._model.max_length} tokens: with what follows, n_p is at most {most}"
            )
            return {point: [self._facts(case, (), started_at, told) for case in cases_of[point]]}
        for seed in range(count):
            announce(f"context {seed + 1} of {count}")
            try:
                text = haystack(self._encode, point.n_p, held, seed)
            except ValueError as error:
                return {point: [self._facts(case, (), started_at, str(error)) for case in cases_of[point]]}
            self._try(point, text, seed, contexts)
            budget.share_done = (seed + 1) / count
            if not budget.fits_another(seed + 1):
                break
        return {point: [self._facts(case, contexts[case.implementation], started_at) for case in cases_of[point]]}

    def close(self) -> None:
        """Do nothing: this measurer holds no processes."""

    def _try(
        self, point: AnswersPoint, text: Haystack, seed: int, contexts: Mapping[str, list[AnswersContext]]
    ) -> None:
        """Try every choice of heads on one context, and append the results to `contexts`."""
        context = read(self._model, text.context)
        whole = CompressedContext(self._model, context)
        by_all, expected, full_bytes = self._found(whole, text), whole.read_on(text.held), whole.kv_bytes
        for name, done in contexts.items():
            policy = METHODS.load(name).policy(self._scores, point.window, seed)
            exact = policy is None and point.kv_dtype == "same"
            compressed = whole if exact else CompressedContext(self._model, context, policy, point.kv_dtype)
            read_on = expected if exact else compressed.read_on(text.held)
            pairs = zip(read_on.next_tokens, expected.next_tokens, strict=True)
            off = NO_DEVIATION if exact else deviation(context, policy, point.kv_dtype)
            done.append(
                AnswersContext(
                    context_seed=seed,
                    found=by_all if exact else self._found(compressed, text),
                    found_by_all=by_all,
                    agreement=fmean(one == other for one, other in pairs),
                    logprob=read_on.logprob,
                    full_logprob=expected.logprob,
                    deviation=off.all,
                    median_deviation=off.median,
                    worst_deviation=off.worst,
                    kv_bytes=compressed.kv_bytes,
                    full_bytes=full_bytes,
                )
            )

    def _found(self, context: CompressedContext, text: Haystack) -> tuple[bool, ...]:
        answers = context.answers(text.questions, _ANSWER)
        return tuple(
            self._decode(answer).strip().startswith(value) for answer, value in zip(answers, text.values, strict=True)
        )

    def _facts(
        self, case: Case[AnswersPoint], contexts: Sequence[AnswersContext], started_at: str, obstacle: str = ""
    ) -> AnswersResult:
        choice = METHODS.load(case.implementation)
        policy = choice.policy(self._scores, case.point.window, 0)
        full = self._model.layers * self._model.kv_heads if policy is None else sum(map(sum, policy.full))
        return AnswersResult.of_case(
            case,
            experiment=self._experiment.name,
            label=choice.label,
            status="unsupported" if obstacle else "ok",
            reason=obstacle,
            seed=self._experiment.seed,
            started_at=started_at,
            machine=self._target.machine,
            threads=torch.get_num_threads(),
            full_heads=full,
            tested_tokens=self._scores.tokens,
            contexts=tuple(contexts),
        )


def _tokenizer(folder: Path) -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False)), tokenizer.decode
