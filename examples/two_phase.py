"""The idea of ChunkAttention in PyTorch alone, compared with plain attention: `python examples/two_phase.py`

Sequences decode one token each. Their prompts begin with the same tokens, so the keys and values (K/V) of these tokens
are the same. Plain attention reads a copy of them for each sequence. Here K/V lie in chunks, found by a prefix tree
(section 3.1 of the paper, arxiv.org/abs/2402.15220): what several prompts begin with is there once. Attention has two
phases (section 3.2). Chunk-first: a shared chunk is read once, for the queries of all its sequences. Sequence-first:
each sequence reads the chunks that only it has. The result is exact: a softmax over parts of a context can be put
together from each part's largest score m, the sum of its weights n, and its weighted sum of values o.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median

import torch

CHUNK = 64  # tokens


@dataclass
class Chunk:
    """K/V of some tokens, and the sequences whose prompts begin with all tokens up to the end of these."""

    keys: torch.Tensor  # [heads, tokens, dim], like the values
    values: torch.Tensor
    sequences: list[int] = field(default_factory=list)


def prefix_tree(prompts: list[list[int]], k: torch.Tensor, v: torch.Tensor) -> list[Chunk]:
    """The chunks of all prompts. k and v `[heads, vocabulary, dim]` stand for the model: K/V of each token."""
    chunks: dict[tuple[int, ...], Chunk] = {}
    for sequence, prompt in enumerate(prompts):
        for start in range(0, len(prompt), CHUNK):
            path, tokens = tuple(prompt[: start + CHUNK]), prompt[start : start + CHUNK]
            if path not in chunks:
                chunks[path] = Chunk(k[:, tokens], v[:, tokens])
            chunks[path].sequences.append(sequence)
    return list(chunks.values())


def two_phase_attention(q: torch.Tensor, chunks: list[Chunk]) -> torch.Tensor:
    """Attention of one query for each sequence, q `[heads, sequences, dim]`, over the chunks of its prompt."""
    o, n = torch.zeros_like(q), torch.zeros_like(q[..., :1])
    m = torch.full_like(n, -torch.inf)

    def fold(chunk: Chunk) -> None:
        """Attend to a chunk, and add the part to what its sequences have so far."""
        rows = chunk.sequences
        scores = q[:, rows] @ chunk.keys.mT * q.shape[-1] ** -0.5  # [heads, rows, tokens]
        largest = torch.maximum(m[:, rows], scores.amax(-1, keepdim=True))
        weights, before = (scores - largest).exp(), (m[:, rows] - largest).exp()
        o[:, rows] = before * o[:, rows] + weights @ chunk.values
        n[:, rows] = before * n[:, rows] + weights.sum(-1, keepdim=True)
        m[:, rows] = largest

    for chunk in [one for one in chunks if len(one.sequences) > 1]:  # phase 1, chunk-first: many queries, one chunk
        fold(chunk)
    for chunk in [one for one in chunks if len(one.sequences) == 1]:  # phase 2, sequence-first: one query, its chunks
        fold(chunk)
    return o / n


def plain_attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The same from a copy of K/V for each sequence, `[heads, sequences, tokens, dim]`."""
    weights = torch.softmax(q.unsqueeze(-2) @ keys.mT * q.shape[-1] ** -0.5, -1)
    return torch.squeeze(weights @ values, -2)


def main() -> None:
    """32 sequences: a system prompt of 1024 tokens, one of four examples of 128 tokens, a question of 64 tokens."""
    heads, dim, vocabulary = 16, 128, 4096
    k, v = torch.randn(2, heads, vocabulary, dim)
    system, *examples = torch.randint(vocabulary, (5, 1024)).tolist()
    prompts = [system + examples[i % 4][:128] + torch.randint(vocabulary, (64,)).tolist() for i in range(32)]
    q = torch.randn(heads, len(prompts), dim)

    chunks = prefix_tree(prompts, k, v)
    copies = k[:, prompts], v[:, prompts]
    times: dict[str, list[float]] = {"plain": [], "two-phase": []}
    for _ in range(10):  # in turns
        started = time.perf_counter()
        expected = plain_attention(q, *copies)
        between = time.perf_counter()
        result = two_phase_attention(q, chunks)
        times["plain"].append(between - started)
        times["two-phase"].append(time.perf_counter() - between)

    sizes = {"plain": copies[0].nbytes + copies[1].nbytes, "two-phase": sum(2 * chunk.keys.nbytes for chunk in chunks)}
    for name, seconds in times.items():
        print(f"{name:>9}: {1000 * median(seconds):6.1f} ms, {sizes[name] / 1e6:6.1f} MB of K/V")
    print(f"largest difference: {(result - expected).abs().max():.1e}")


if __name__ == "__main__":
    main()
