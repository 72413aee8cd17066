"""What an answer of the server holds: log-probabilities, several answers, beams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import transformers

from tests.server.conftest import PROMPT, ask, chat, text_of
from tests.server.processes import Served


def test_several_answers_to_several_prompts(client: openai.OpenAI) -> None:
    """Each answer is that of a request of its own, also in a stream; usage counts each prompt once."""
    prompts, fields = [[*range(70), 1], [*range(70), 2]], {"temperature": 3, "max_tokens": 12}
    one = [ask(client, prompt=prompt, seed=5 + n, **fields).choices[0] for prompt in prompts for n in range(3)]
    assert len({choice.text for choice in one}) == 6
    stop = one[1].text[6:9]
    whole = ask(client, prompt=prompts, n=3, seed=5, stop=stop, **fields)
    assert [choice.index for choice in whole.choices] == list(range(6))
    assert (whole.usage.prompt_tokens, whole.usage.prompt_tokens_details.cached_tokens) == (142, 128)
    assert whole.usage.completion_tokens == sum(len(choice.token_ids) for choice in whole.choices)
    for alone, choice in zip(one, whole.choices, strict=True):
        assert choice.text == alone.text.partition(stop)[0]
        assert choice.finish_reason == ("stop" if stop in alone.text else "length")
    assert {choice.finish_reason for choice in whole.choices} == {"stop", "length"}
    events = list(ask(client, prompt=prompts, n=3, seed=5, stop=stop, stream=True, **fields))
    order = [event.choices[0].index for event in events]
    assert order != sorted(order)
    for choice in whole.choices:
        own = [event for event in events if event.choices[0].index == choice.index]
        assert (text_of(own), own[-1].choices[0].finish_reason) == (choice.text, choice.finish_reason)


def test_several_answers_of_a_chat(served: Served, client: openai.OpenAI) -> None:
    fields = {"said": "w8 w9", "max_tokens": 5, "temperature": 1}
    before = served.metric("prompt_tokens_total")
    four = chat(client, n=4, seed=1, **fields)
    alone = [chat(client, seed=1 + n, **fields).choices[0].message.content for n in range(4)]
    assert [choice.message.content for choice in four.choices] == alone
    assert served.metric("prompt_tokens_total") - before == 5 * four.usage.prompt_tokens
    roles = [event.choices[0].delta.role for event in chat(client, n=4, stream=True, **fields)]
    assert roles.count("assistant") == 4


def reference_logprobs(checkpoint: Path, tokens: list[int]) -> torch.Tensor:
    """`[tokens, vocabulary]`: log-probabilities of transformers, row i for the token after token i."""
    module = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = module(torch.tensor([tokens])).logits[0]
    return logits.log_softmax(-1)


@pytest.mark.parametrize("repeated", [False, True])
def test_logprobs_of_a_completion_and_its_prompt(client: openai.OpenAI, checkpoint: Path, repeated: bool) -> None:
    """Also if the prompt is cached, and with several answers: all are those of transformers."""
    prompt = [(7 * n) % 250 for n in range(300)]
    fields = {"prompt": prompt, "temperature": 2, "seed": 3, "n": 2, "logprobs": 3}
    answers = ask(client, echo=True, **fields).choices
    for answer in answers:
        tokens = [*prompt, *answer.token_ids]
        expected, told = reference_logprobs(checkpoint, tokens), answer.logprobs
        own = expected[range(len(tokens) - 1), tokens[1:]]
        assert told.token_logprobs[0] is told.top_logprobs[0] is None
        torch.testing.assert_close(torch.tensor(told.token_logprobs[1:]), own, atol=2e-3, rtol=1e-4)
        assert told.tokens == [f" w{token}" for token in tokens]
        assert told.text_offset == [sum(map(len, told.tokens[:n])) for n in range(len(tokens))]
        for row, token, top in zip(expected, tokens[1:], told.top_logprobs[1:], strict=False):
            values, best = row.topk(3)
            assert {f" w{id}" for id in best.tolist()} | {f" w{token}"} == top.keys()
            assert max(top.values()) == pytest.approx(values[0].item(), abs=2e-3)
        assert answer.text.split() == [text.strip() for text in told.tokens]
    assert answers[0].token_ids != answers[1].token_ids
    (alone,) = ask(client, **fields | {"n": 1, "logprobs": 0}).choices
    assert alone.logprobs.token_logprobs == pytest.approx(answers[0].logprobs.token_logprobs[300:], abs=1e-3)
    assert [list(top) for top in alone.logprobs.top_logprobs] == [[f" w{token}"] for token in alone.token_ids]
    stream = list(ask(client, echo=True, stream=True, **fields | {"n": 1}))
    joined = [value for event in stream for value in event.choices[0].logprobs.token_logprobs]
    assert joined[1:] == pytest.approx(answers[0].logprobs.token_logprobs[1:], abs=1e-3)
    offsets = [offset for event in stream for offset in event.choices[0].logprobs.text_offset]
    assert offsets == answers[0].logprobs.text_offset
    assert text_of(stream) == answers[0].text


def test_prompt_logprobs_and_those_of_a_chat(client: openai.OpenAI, checkpoint: Path) -> None:
    fields = {"said": "w8 w9", "max_tokens": 4, "logprobs": True}
    whole = chat(client, top_logprobs=2, prompt_logprobs=1, **fields)
    content = whole.choices[0].logprobs.content
    tokens = [1, 8, 9, *(int(one.token[2:]) for one in content)]
    expected = reference_logprobs(checkpoint, tokens)
    assert whole.choices[0].message.content == "".join(one.token for one in content).strip()
    for place, one in enumerate(content, 3):
        assert one.logprob == pytest.approx(expected[place - 1, tokens[place]].item(), abs=2e-3)
        assert [other.token for other in one.top_logprobs] == [f" w{id}" for id in expected[place - 1].topk(2).indices]
        assert bytes(one.bytes).decode() == one.token
    nothing, *prompt = whole.prompt_logprobs
    assert nothing is None
    for place, told in enumerate(prompt, 1):
        own = told[str(tokens[place])]
        assert own["logprob"] == pytest.approx(expected[place - 1, tokens[place]].item(), abs=2e-3)
        assert own["rank"] == 1 + (expected[place - 1] > expected[place - 1, tokens[place]]).sum()
        assert {other["rank"] for other in told.values()} == {1, own["rank"]}
    told = [one.logprob for event in chat(client, stream=True, **fields) for one in event.choices[0].logprobs.content]
    assert told == pytest.approx([one.logprob for one in content], abs=1e-3)
    (completion,) = ask(client, prompt=tokens[:3], prompt_logprobs=0).choices
    assert [len(one) for one in completion.prompt_logprobs[1:]] == [1, 1]
    assert completion.logprobs is None


def test_beams(client: openai.OpenAI, checkpoint: Path) -> None:
    reference: Any = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    options = {"num_beams": 3, "num_return_sequences": 3, "do_sample": False, "pad_token_id": 0}
    expected = reference.generate(torch.tensor([PROMPT]), max_new_tokens=6, **options)[:, len(PROMPT) :].tolist()
    answer = ask(client, n=3, temperature=1, use_beam_search=True, length_penalty=1.0)
    assert [choice.token_ids for choice in answer.choices] == expected
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(PROMPT), 18)
    two = chat(client, max_tokens=3, n=2, use_beam_search=True, temperature=1)
    assert len({choice.message.content for choice in two.choices}) == 2
