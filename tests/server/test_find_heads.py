"""The search for retrieval heads, on a model of two layers whose heads were set by hand, and files of heads."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import transformers

from chunkbench.server.find_heads import INTERFACE, find_heads, tokens_for
from chunkbench.server.heads import HeadScores, HeadsError, read_heads

WIDTH, HEAD_DIM, WORD = 128, 64, 32
TOKEN, BEFORE, ALWAYS = slice(0, WORD), slice(WORD, 2 * WORD), 2 * WORD
"""Parts of the residual stream: the token, what the first layer writes of the token before it, and a constant."""


def model_with_known_heads() -> torch.nn.Module:
    """Attention only. Layer 0: a head looks at the token before its own, the other one at everything alike.

    Layer 1: an induction head compares its token with the token before each position; an echo head compares tokens.
    """
    config = transformers.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=HEAD_DIM,
        vocab_size=4096,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 1e12},  # most pairs of dimensions do not turn
        rms_norm_eps=1e-9,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=INTERFACE).eval()
    for weight in model.parameters():
        weight.data.zero_()
    words = torch.randn(config.vocab_size, WORD)
    table = model.model.embed_tokens.weight.data
    table[:, TOKEN] = words / words.norm(dim=1, keepdim=True)
    table[:, ALWAYS] = 1
    # Dimensions i and i + 32 of a head turn together; those from 16 on hardly turn: there content is compared.
    content = [*range(16, 32), *range(48, 64)]
    for layer in model.model.layers:
        layer.input_layernorm.weight.data.fill_(1)
        layer.post_attention_layernorm.weight.data.fill_(1)
    model.model.norm.weight.data.fill_(1)
    first, second = (layer.self_attn for layer in model.model.layers)
    for i in range(32):
        angle = 1e12 ** (-i / 32)
        first.k_proj.weight.data[i, ALWAYS] = 4
        first.q_proj.weight.data[i, ALWAYS] = 4 * math.cos(angle)
        first.q_proj.weight.data[32 + i, ALWAYS] = -4 * math.sin(angle)  # turned back by one position
    first.v_proj.weight.data[:WORD, TOKEN] = torch.eye(WORD)
    first.o_proj.weight.data[BEFORE, :WORD] = torch.eye(WORD)
    for head, part in ((0, BEFORE), (1, TOKEN)):
        rows = torch.tensor(content) + head * HEAD_DIM
        second.q_proj.weight.data[rows, TOKEN] = 4 * torch.eye(WORD)
        second.k_proj.weight.data[rows, part] = 4 * torch.eye(WORD)
    return model


def test_known_heads_are_found() -> None:
    shares: list[float] = []
    scores = find_heads(model_with_known_heads(), "by hand", 30, advance=shares.append)
    induction, echo = torch.tensor(scores.induction), torch.tensor(scores.echo)
    assert induction[1, 0] > 0.9 > 0.2 > max(induction[0, 0], induction[0, 1], induction[1, 1])
    assert echo[1, 1] > 0.3 > 0.2 > max(echo[0, 0], echo[0, 1], echo[1, 0])
    assert scores.retrieval_heads() == ((False, False), (True, True))
    assert scores.retrieval_heads(echo=False) == ((False, False), (True, False))
    assert shares == [0.5, 1.0]


def test_shares_are_rounded_up_and_a_kv_head_is_its_best_query_head() -> None:
    layers, heads = 10, 6
    induction = tuple(tuple(0.01 * (layer * heads + head) for head in range(heads)) for layer in range(layers))
    echo = tuple(tuple(1.0 if (layer, head) == (0, 3) else 0.0 for head in range(heads)) for layer in range(layers))
    scores = HeadScores(model="m", tokens=8, kv_heads=2, echo=echo, induction=induction)
    full = scores.retrieval_heads()  # of 20 KV heads: 3 by induction, 1 by echo
    assert [(layer, head) for layer in range(layers) for head in range(2) if full[layer][head]] == [
        *((0, 1), (8, 1)),
        *((9, 0), (9, 1)),
    ]
    assert scores.of_kv_heads(induction)[9] == pytest.approx((0.56, 0.59))


def test_as_many_tokens_as_there_are_positions() -> None:
    assert (tokens_for(8192), tokens_for(100_000)) == (2048, 2500)


def test_a_file_of_scores_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "heads.json"
    scores = find_heads(model_with_known_heads(), "by hand", 30)
    path.write_text(scores.as_json())
    assert read_heads(path) == scores
    assert json.loads(path.read_text())["retrieval"] == [[1, 0], [1, 1]]
    policy = read_heads(path).policy(window=128)
    assert (policy.full, policy.window, policy.compress) == (((False, False), (True, True)), 128, "own")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "heads.json: cannot be read: No such file"),
        ("{", "heads.json: not JSON"),
        ("[]", "not the scores of heads"),
        ('{"echo": [[NaN]]}', "NaN is no finite number"),
        ('{"model": "m"}', "tokens: Field required"),
        ('{"model": "m", "tokens": 1, "kv_heads": 1, "echo": [["x"]], "induction": []}', "echo.0.0"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "heads.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(HeadsError, match=message):
        read_heads(path)


def test_scores_of_another_model_are_refused() -> None:
    scores = HeadScores(model="m", tokens=8, kv_heads=2, echo=((0.1, 0.2),), induction=((0.1, 0.2),))
    scores.check(Path("heads.json"), 1, 2, 2)
    for other in ((2, 2, 2), (1, 4, 2), (1, 2, 1)):
        with pytest.raises(HeadsError, match=r"heads\.json: is of m, with 1 layers of 2 heads.*this model.*find-heads"):
            scores.check(Path("heads.json"), *other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_heads": 0}, "kv_heads: .*greater than 0"),
        ({"kv_heads": 3}, "kv_heads: 3 does not divide the number of heads"),
        ({"tokens": -5}, "tokens: .*greater than 0"),
        ({"echo": []}, "must have one score for each head of each layer"),
        ({"echo": [[], []], "induction": [[], []]}, "must have one score for each head"),
        ({"echo": [[0.1, 0.2], [0.3]]}, "must have one score for each head"),
        ({"induction": [[0.1, 0.2]]}, "must have one score for each head"),
        ({"retrieval": [[1, 1], [0, 0], [0, 1]]}, "retrieval: is not what the scores say"),
    ],
)
def test_scores_that_no_search_wrote_are_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    scores = ((0.1, 0.2), (0.3, 0.4))
    good = HeadScores(model="m", tokens=8, kv_heads=2, echo=scores, induction=scores)
    path = tmp_path / "heads.json"
    path.write_text(good.as_json())
    assert read_heads(path) == good
    path.write_text(json.dumps(json.loads(good.as_json()) | changes))
    with pytest.raises(HeadsError, match=rf"{message}.*find-heads"):
        read_heads(path)
    path.write_text("[" * 100_000)
    with pytest.raises(HeadsError, match="not JSON"):
        read_heads(path)
