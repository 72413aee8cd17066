"""Iteration-level batching: prompts in pieces beside decoding sequences, against float64 attention."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from chunkbench.attention import RaggedChunkAttention
from chunkbench.attention.errors import UnknownSequence, WrongTokens
from chunkbench.kernels.eight_bits import stored
from tests.attention.contexts import KERNELS, causal_attention
from tests.pairs import pairs

HEADS, DIM, LAYERS = 4, 32, 2
TABLES = {
    (what, layer): torch.randn(2, 256, HEADS, DIM, generator=torch.Generator().manual_seed(10 * layer + i))
    for i, what in enumerate("qkv")
    for layer in range(LAYERS)
}
"""[token or position]: what is added up to K, V or q of a token. So equal prefixes have equal vectors."""


@dataclass
class Live:
    tokens: list[int]
    computed: int = 0

    def rows(self, what: str, layer: int, heads: int, first: int, count: int) -> torch.Tensor:
        by_token, by_position = TABLES[what, layer]
        span = slice(first, first + count)
        return (by_token[torch.tensor(self.tokens[span])] + by_position[span])[:, :heads]


class Server:
    """Drives the class as an engine does, and checks every row of every step. `seed`: of the tokens it decodes."""

    def __init__(self, kernel: Any, kv_heads: int = HEADS, seed: int = 0, **options: Any) -> None:
        self.kv_heads = kv_heads
        self.attention = RaggedChunkAttention(LAYERS, HEADS, DIM, kv_heads, 16, kernel=kernel, **options)
        self.live: dict[int, Live] = {}
        self.computed_tokens = 0
        self.tokens = random.Random(seed)

    def join(self, tokens: list[int]) -> int:
        sequence = self.attention.join(tokens).sequence
        self.live[sequence] = Live(list(tokens))
        return sequence

    def leave(self, sequence: int) -> None:
        self.attention.remove_sequence(sequence)
        del self.live[sequence]

    def truncate(self, sequence: int, length: int) -> None:
        self.attention.truncate(sequence, length)
        live = self.live[sequence]
        whole = live.computed == len(live.tokens)
        self.live[sequence] = Live(live.tokens[:length], min(live.computed, length if whole else length // 16 * 16))

    def fork(self, sequence: int) -> None:
        live = self.live[sequence]
        self.live[self.attention.fork(sequence)] = Live(list(live.tokens), live.computed)

    def step(self, budget: int = 1000, drafted: int = 0) -> list[tuple[int, int, int]]:
        """`drafted`: most tokens of a draft, which a decoding sequence computes behind its next token. Some are cut off
        again, as an engine rejects them."""
        done = [s for s, live in self.live.items() if live.computed == len(live.tokens)]
        counts = [1 + self.tokens.randint(0, drafted) for _ in done]
        parts = [(s, len(self.live[s].tokens), count) for s, count in zip(done, counts, strict=True)]
        if done:
            new = [[self.tokens.randrange(50) for _ in range(count)] for count in counts]
            self.attention.extend([token for tokens in new for token in tokens], done, counts)
            for sequence, tokens in zip(done, new, strict=True):
                self.live[sequence].tokens += tokens
        for part in parts:
            self.attention.select(*part, decoding=True)
        for sequence, live in self.live.items():
            if sequence in done or budget == 0:
                continue
            live.computed = min(max(live.computed, self.attention.written(sequence)), len(live.tokens) - 1)
            part = (sequence, live.computed, min(budget, len(live.tokens) - live.computed))
            self.attention.select(*part)
            parts.append(part)
            budget -= part[2]
        assert self.attention.plan_selected() == sum(part[2] for part in parts)
        self.computed_tokens += sum(part[2] for part in parts)
        for sequence, first, count in parts:
            self.live[sequence].computed = first + count
        for layer in range(LAYERS):
            self._check(layer, parts)
        for sequence, first, count in parts if drafted else ():
            if sequence in done:
                self.truncate(sequence, first + self.tokens.randint(1, count))
        return parts

    def _check(self, layer: int, parts: list[tuple[int, int, int]]) -> None:
        def of(what: str, heads: int) -> torch.Tensor:
            return torch.cat([self.live[s].rows(what, layer, heads, first, count) for s, first, count in parts])

        self.attention.write_selected(layer, of("k", self.kv_heads), of("v", self.kv_heads))
        out = self.attention.attend_selected(layer, of("q", HEADS))
        row = 0
        for sequence, first, count in parts:
            live = self.live[sequence]
            k, v = (live.rows(w, layer, self.kv_heads, 0, first + count) for w in "kv")
            kv = stored(torch.stack([k, v]), self.attention.kv_dtype)
            expected = causal_attention(live.rows("q", layer, HEADS, first, count), *kv)
            torch.testing.assert_close(out[row : row + count].double(), expected, rtol=1e-4, atol=1e-5)
            row += count


@pytest.mark.parametrize(("kernel", "kv_heads", "partition"), pairs(KERNELS, [4, 2], ["two-phase", "sequence-first"]))
def test_prompts_in_pieces_beside_decoding_sequences(kernel: Any, kv_heads: int, partition: Any) -> None:
    server = Server(kernel, kv_heads, partition=partition)
    chance = random.Random(3)
    system = [chance.randrange(50) for _ in range(50)]
    for step in range(25):
        if step % 3 == 0 and len(server.live) < 7:
            shared = chance.choice([[], system[:20], system[:32], system, system])
            server.join(shared + [chance.randrange(50) for _ in range(chance.choice([1, 3, 16, 40]))])
        if step % 7 == 6:
            server.leave(chance.choice(list(server.live)))
        server.step(budget=chance.choice([1, 7, 16, 30, 200]))
    while server.live:
        server.leave(next(iter(server.live)))
    assert server.attention.kv_bytes == 0


@pytest.mark.parametrize(("share", "computed"), [(True, 64 + 3), (False, 3 * 65)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_shared_prompt_is_computed_once_even_in_one_step(kernel: Any, share: bool, computed: int) -> None:
    server = Server(kernel, share=share)
    for last in range(3):
        server.join([*range(64), 90 + last])
    server.step()
    assert server.computed_tokens == computed


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_sequence_that_leaves_half_way_leaves_the_rest_to_those_that_share_it(kernel: Any) -> None:
    server = Server(kernel)
    first = server.join(list(range(64)))
    server.join([*range(64), 1])
    server.join([*range(64), 2])
    server.step(budget=20)
    assert server.attention.written(1) == 16
    server.leave(first)
    server.step(budget=30)
    server.step(budget=1000)
    server.step()
    # The 4 tokens of the half-filled chunk are computed again.
    assert server.computed_tokens == 20 + (64 - 16) + 2 + 2


def cut_and_fork(server: Server, chance: random.Random, steps: int, drafted: int = 0) -> int:
    """Sequences that are cut anywhere and forked while others go on. How often a cut was inside of a chunk."""
    system = [chance.randrange(50) for _ in range(70)]
    cut_inside = 0
    for step in range(steps):
        if len(server.live) < 5:
            shared = chance.choice([20, 32, 50, 64, 70])
            server.join(system[:shared] + [chance.randrange(50) for _ in range(chance.choice([0, 1, 16, 20]))])
        if step % 2:
            sequence = chance.choice(list(server.live))
            length = chance.randrange(1, len(server.live[sequence].tokens) + 1)
            cut_inside += length % 16 != 0
            server.truncate(sequence, length)
        if step % 9 == 8:
            server.leave(chance.choice(list(server.live)))
        if step % 7 == 3:
            server.fork(chance.choice(list(server.live)))
        server.step(chance.choice([1, 7, 16, 30, 200]), drafted)
    return cut_inside


@pytest.mark.parametrize(("kernel", "share", "retain"), pairs(KERNELS, [True, False], [False, True]))
def test_sequences_are_cut_anywhere_and_forked_while_others_go_on(kernel: Any, share: bool, retain: bool) -> None:
    """Many more, with drafts: `make torture PART=forests`."""
    server = Server(kernel, share=share, retain=retain, max_tokens=640)
    drafted = 4 if server.attention.drafts else 0
    assert cut_and_fork(server, random.Random(5), 60, drafted) > 20


def test_nothing_may_be_selected_and_what_is_wrong_is_refused() -> None:
    attention = RaggedChunkAttention(1, 2, 16, chunk_size=16, kernel="torch")
    assert attention.plan_selected() == 0
    nothing = torch.zeros(0, 2, 16)
    attention.write_selected(0, nothing, nothing)
    assert attention.attend_selected(0, nothing).shape == (0, 2, 16)
    attention.join([1, 2, 3])
    attention.join([4, 5])
    for first, count in [(0, 0), (-1, 2), (0, 4), (3, 1)]:
        with pytest.raises(WrongTokens, match="it has tokens 0 to 2"):
            attention.select(0, first, count)
    with pytest.raises(UnknownSequence):
        attention.select(7, 0, 1)
    attention.select(1, 1, 1, decoding=True)
    attention.select(0, 2, 1, decoding=True)
    with pytest.raises(WrongTokens, match="by row"):
        attention.plan_selected()
    with pytest.raises(ValueError, match="use 'torch'"):
        RaggedChunkAttention(1, 2, 64, kernel="triton")
