"""Makes token ids, K/V and queries of a point from a seed.

All values are random rows of one pool of standard normal numbers. Copying a row from the pool takes a tenth of the time
of making new random numbers. A point of the paper's Table 3 has up to 2 GB of K/V per copy in float16. The pool is far
larger than the K/V of one sequence and head, so a wrong index reads wrong values.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property, lru_cache
from typing import Protocol

import torch

from chunkbench.bench.experiment.point import AttentionPoint, SessionPoint
from chunkbench.bench.measure.loop import Feed
from chunkbench.kv_dtype import KvDtype

VOCABULARY = 32000
_POOL = 1 << 24
_STRIDE = 16  # rows start at multiples of 16 elements, so that copies stay aligned


class PointInputs(Feed, Protocol):
    """The inputs of a point, as a worker needs them for any kind of work."""

    @property
    def point(self) -> SessionPoint: ...

    def out_shape(self, implementation: str) -> tuple[int, ...]:
        """Shape of the output of one call."""
        ...


def prime(seed: int, dtype: torch.dtype, device: str) -> None:
    """Make the pool of random numbers for this seed now, before the first point needs it."""
    _pool(_stream(seed, 0), dtype, device)


@lru_cache(maxsize=1)
def _pool(seed: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """The pool of normals. Points with the same seed, dtype and device share it; usually that is all of a run."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(_POOL, generator=generator).to(dtype=dtype, device=device)


class PooledInputs:
    """The inputs of a point of attention. The same seed gives the same values in every process."""

    def __init__(self, point: AttentionPoint, seed: int) -> None:
        self.point = point
        self._seed = seed
        self._dtype: torch.dtype = getattr(torch, point.dtype)
        self._paths = point.paths(seed)
        self._kv_rows = self._rows_of(point.kv_heads * point.head_dim)
        self._segments: dict[int, tuple[torch.Tensor, torch.Tensor, list[int]]] = {}
        for path in self._paths:
            for segment in path:
                if segment.id not in self._segments:
                    self._segments[segment.id] = self._segment(segment.id, segment.tokens)
        steps = torch.Generator().manual_seed(self._stream(1))
        shape = (2, point.n_c, point.batch_size)
        self._step_rows = torch.randint(len(self._kv_rows), shape, generator=steps).to(point.device)
        self._step_tokens = torch.randint(VOCABULARY, shape[1:], generator=steps).tolist()

    def stored_as(self, kv_dtype: KvDtype) -> PooledInputs:
        """The same inputs, for an implementation that stores K and V in this form."""
        other = copy(self)
        other.point = self.point.model_copy(update={"kv_dtype": kv_dtype})
        return other

    @cached_property
    def prompts(self) -> Sequence[Sequence[int]]:
        return [[token for s in path for token in self._segments[s.id][2]] for path in self._paths]

    @property
    def capacity(self) -> int:
        return max(len(prompt) for prompt in self.prompts) + self.point.n_c

    def keys_values(self, sequence: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        path = self._paths[sequence]
        k = torch.cat([self._segments[s.id][0] for s in path])[start:stop]
        v = torch.cat([self._segments[s.id][1] for s in path])[start:stop]
        return self._draw(k), self._draw(v)

    def completion(self, step: int) -> tuple[list[int], torch.Tensor, torch.Tensor]:
        """Token ids `[b]`, K and V `[b, kv_heads, head_dim]` of completion token `step`, counted from 1."""
        k, v = self._step_rows[0, step - 1], self._step_rows[1, step - 1]
        return self._step_tokens[step - 1], self._draw(k), self._draw(v)

    def context(self, sequence: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V `[n, kv_heads, head_dim]` of a sequence after `steps` completion tokens."""
        k, v = self.keys_values(sequence, 0, len(self.prompts[sequence]))
        rows = self._step_rows[:, :steps, sequence]
        return torch.cat([k, self._draw(rows[0])]), torch.cat([v, self._draw(rows[1])])

    def out_shape(self, implementation: str) -> tuple[int, ...]:
        return self.point.rows, self.point.heads, self.point.head_dim

    def queries(self, *purpose: int) -> torch.Tensor:
        """Random queries `[rows, heads, head_dim]`. The same `purpose` gives the same queries."""
        point = self.point
        return self.draw_rows(point.heads * point.head_dim, *purpose).view(-1, point.heads, point.head_dim)

    def weights(self, name: str, rows: int, columns: int, only: Sequence[int] | None = None) -> torch.Tensor:
        """A random weight matrix `[rows, columns]` with variance 1 / columns. `only` selects some of its rows."""
        generator = self._generator(4, *name.encode())
        indices = torch.randint(len(self._rows_of(columns)), (rows,), generator=generator)
        if only is not None:
            indices = indices[list(only)]
        weight = self._rows_of(columns).index_select(0, indices.to(self.point.device))
        return weight.mul_(columns**-0.5)

    def draw_rows(self, width: int, *purpose: int) -> torch.Tensor:
        """Random normal rows `[rows, width]`. The same `purpose` gives the same rows."""
        rows = self._rows_of(width)
        generator = self._generator(2, *purpose)
        indices = torch.randint(len(rows), (self.point.rows,), generator=generator)
        return rows.index_select(0, indices.to(self.point.device))

    def _rows_of(self, width: int) -> torch.Tensor:
        """All rows of this width in the pool."""
        pool = _pool(self._stream(0), self._dtype, self.point.device)
        return pool.as_strided(((_POOL - width) // _STRIDE, width), (_STRIDE, 1))

    def _draw(self, rows: torch.Tensor) -> torch.Tensor:
        return self._kv_rows.index_select(0, rows).view(len(rows), self.point.kv_heads, self.point.head_dim)

    def _segment(self, segment: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        generator = self._generator(3, segment)
        rows = torch.randint(len(self._kv_rows), (2, tokens), generator=generator).to(self.point.device)
        return rows[0], rows[1], torch.randint(VOCABULARY, (tokens,), generator=generator).tolist()

    def _generator(self, *stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(self._stream(*stream))

    def _stream(self, *parts: int) -> int:
        return _stream(self._seed, *parts)


def _stream(seed: int, *parts: int) -> int:
    value = seed
    for part in parts:  # one mixing step per part, so that neighbouring seeds give different streams
        value = (value * 6364136223846793005 + part * 1442695040888963407 + 1) % (1 << 63)
    return value
