"""Checks that servers give the same greedy answers as transformers, in float32."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chunkbench.attention.tokens import alike
from chunkbench.run_error import RunError
from chunkbench.server.engine.errors import ModelError
from chunkbench.server.engine.model import ModelNumbers, load_module
from chunkbench.server.protocol import ApiError
from chunkbench.server.text import CheckpointTokenizer
from chunkbench.traffic import Chat
from chunkbench.traffic.texts import Texts
from chunkbench.workloads.serving.result import EqualAnswers

Ids = tuple[int, ...]
_BATCH, _ALIKE = 8, 32
"""Transformers answers at most `_BATCH` questions together. All prompts of a batch begin with the same `_ALIKE`
tokens."""


@dataclass(frozen=True)
class Question:
    """A question and the answer that transformers gave in float32."""

    prompt: Ids
    last_message: str
    """The last message of the question, as text."""
    answer: Ids
    """Token ids of the answer, without the id that ends the text."""
    gaps: Sequence[float]
    """`[token]`: difference between the two largest logits when the token was chosen. If the text ended, the last entry
    belongs to the id that ends it."""


class QuestionSet:
    """The questions that every server answers, as token ids."""

    def __init__(self, texts: Texts, folder: Path, count: int, longest: int, n_c: int) -> None:
        """Choose `count` texts at equal distances among those with at most `longest` tokens.

        Answers will have at most `n_c` tokens. `folder`: folder of the checkpoint. Raises `RunError`.
        """
        found: dict[Ids, str] = {}
        try:
            self.text = CheckpointTokenizer(folder)
            for line in texts.lines:
                prompt = line[0][0]
                if isinstance(prompt, Chat):
                    found[tuple(self.text.encode_chat(prompt.sent))] = prompt.sent[-1]["content"]
                elif isinstance(prompt, str):
                    found[tuple(self.text.encode(prompt))] = prompt
        except (ApiError, ModelError) as error:
            raise RunError(f"equal_answers: {error}") from None
        fitting = [(ids, said) for ids, said in found.items() if len(ids) <= longest]
        if len(fitting) < count:
            raise RunError(f"equal_answers: needs {count} texts of at most {longest} tokens, and finds {len(fitting)}")
        self.last_messages = dict(fitting[number * len(fitting) // count] for number in range(count))
        """Prompt -> the question's last message, as text."""
        self.folder, self.n_c = folder, n_c

    def batches(self) -> Iterator[dict[Ids, str]]:
        """Split `last_messages` into batches. Prompts of a batch begin with the same tokens, which transformers
        computes only once.
        """
        ordered = sorted(self.last_messages.items())
        while ordered:
            begin = ordered[0][0][:_ALIKE]
            batch = [prompt for prompt in ordered[:_BATCH] if prompt[0][:_ALIKE] == begin]
            yield dict(batch)
            ordered = ordered[len(batch) :]


class Answers:
    """Answers of transformers, with which the answers of servers are compared."""

    def __init__(self, asked: QuestionSet) -> None:
        """Load the model in float32 and answer all questions. Raises `RunError`."""
        try:
            module = load_module(asked.folder, torch.float32, "sdpa")
            self._ends = ModelNumbers(module).eos_ids
        except ModelError as error:
            raise RunError(f"equal_answers: {error}") from None
        found = [_answered(module, part, asked.n_c, self._ends) for part in asked.batches()]
        self.questions = [question for questions, _ in found for question in questions]
        self.error = max(error for _, error in found)
        """Largest change of a gap, see `EqualAnswers.near_tie_below`."""
        self._text = asked.text

    def compare(self, server_answers: Mapping[Ids, Sequence[int]]) -> EqualAnswers:
        """Compare the answers of a server with those of transformers.

        `server_answers`: token ids of a prompt -> token ids of the server's answer. Prompts without an answer are left
        out.
        """
        compared = [
            (question, server_answers[question.prompt])
            for question in self.questions
            if server_answers.get(question.prompt)
        ]
        places = [(question, self._first_other(question.answer, tokens)) for question, tokens in compared]
        others = [question.gaps[place] for question, place in places if place is not None]
        ties = sum(gap < self.error for gap in others)
        shown = min(self.questions, key=lambda question: len(question.last_message))
        return EqualAnswers(
            compared=len(compared),
            near_ties=ties,
            different=len(others) - ties,
            near_tie_below=self.error,
            question=shown.last_message,
            answer=self._text.decode([*server_answers.get(shown.prompt, ())]).strip(),
        )

    def _first_other(self, wanted: Ids, got: Sequence[int]) -> int | None:
        """Index of the first token at which two answers differ; None if they are equal. An id that ends the text is
        ignored, because not all servers return it.
        """
        told = tuple(got[:-1] if got[-1] in self._ends else got)
        return None if told == wanted else alike(told, wanted)


@torch.inference_mode()
def _answered(module: Any, prompts: Mapping[Ids, str], n_c: int, ends: Collection[int]) -> tuple[list[Question], float]:
    """Questions of a batch with their answers, and the largest change of a token's gap if all tokens are computed at
    once.
    """
    first = next(iter(prompts))
    shared = min(alike(first, prompt[:-1]) for prompt in prompts)
    begin, *rests = first[:shared], *(prompt[shared:] for prompt in prompts)
    longest = max(map(len, rests))
    # After the shared tokens, shorter prompts are padded on the left.
    ids = torch.tensor([[*begin, *[0] * (longest - len(rest)), *rest] for rest in rests])
    mask = torch.tensor([[1] * shared + [0] * (longest - len(rest)) + [1] * len(rest) for rest in rests])
    made = module.generate(
        ids,
        attention_mask=mask,
        past_key_values=_cache(module, begin, len(rests)),
        do_sample=False,
        max_new_tokens=n_c,
        eos_token_id=sorted(ends) or None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    answers = made.sequences[:, ids.shape[1] :]
    best = torch.stack(made.logits, 1).topk(2)  # [prompt, token, 2]
    gaps = best.values[..., 0] - best.values[..., 1]
    mask = torch.nn.functional.pad(mask, (0, answers.shape[1]), value=1)
    again = module(
        made.sequences[:, shared:],
        attention_mask=mask,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0)[:, shared:],
        past_key_values=_cache(module, begin, len(rests)),
        logits_to_keep=answers.shape[1] + 1,
    ).logits[:, :-1]
    pairs = again.gather(2, best.indices)
    errors = (pairs[..., 0] - pairs[..., 1] - gaps).abs()
    questions, error = [], 0.0
    for row, (prompt, said) in enumerate(prompts.items()):
        tokens = answers[row].tolist()
        length = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
        steps = min(length + 1, len(tokens))
        questions.append(Question(prompt, said, tuple(tokens[:length]), gaps[row, :steps].tolist()))
        error = max(error, errors[row, :steps].max().item())
    return questions, error


def _cache(module: Any, begin: Ids, count: int) -> Any:
    """K/V of the tokens `begin`, repeated for `count` prompts; None if there are no tokens."""
    if not begin:
        return None
    cache = module(torch.tensor([begin]), use_cache=True, logits_to_keep=1).past_key_values
    cache.batch_repeat_interleave(count)
    return cache
