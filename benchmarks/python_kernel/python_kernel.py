"""Decode attention in plain Python: the kind of code whose speed depends most on where its objects lie in memory.

`benchmarks/project_proof.py` uses it to test the gate.
"""

from __future__ import annotations

import math

import torch

from chunkbench.baselines import YES, Answer, Implementation, Inputs, Session

Rows = list[list[list[float]]]


class PythonSession(Session):
    def __init__(self, inputs: Inputs) -> None:
        self._prompts: list[tuple[Rows, Rows]] = []
        for row, prompt in enumerate(inputs.prompts):
            k, v = inputs.keys_values(row, 0, len(prompt))  # [n, kv_heads, head_dim]
            self._prompts.append((k.tolist(), v.tolist()))
        self.rewind()

    def rewind(self) -> None:
        self._rows = [(list(k), list(v)) for k, v in self._prompts]

    def append(self, token_ids: object, k: torch.Tensor, v: torch.Tensor) -> None:
        for (keys, values), key, value in zip(self._rows, k.tolist(), v.tolist(), strict=True):
            keys.append(key)
            values.append(value)

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        result = [
            [self._attend(query, head, keys, values) for head, query in enumerate(queries)]
            for queries, (keys, values) in zip(q.tolist(), self._rows, strict=True)
        ]
        out.copy_(torch.tensor(result, dtype=out.dtype))

    @staticmethod
    def _attend(query: list[float], head: int, keys: Rows, values: Rows) -> list[float]:
        """Softmax of the scaled products with all keys, times the values: one row of one head."""
        scale = 1 / math.sqrt(len(query))
        weights = [math.exp(scale * sum(a * b for a, b in zip(query, key[head], strict=True))) for key in keys]
        total = sum(weights)
        columns = zip(*(value[head] for value in values), strict=True)
        return [sum(w * x for w, x in zip(weights, column, strict=True)) / total for column in columns]

    def kv_bytes(self) -> int:
        return sum(4 * 2 * len(keys) * len(keys[0]) * len(keys[0][0]) for keys, _ in self._rows)


class PythonKernel(Implementation):
    id = "python_kernel"
    label = "Python"

    def availability(self, device: str) -> Answer:
        return YES if device == "cpu" else Answer(False, "written for CPUs", "run with --device cpu")

    def prepare(self, inputs: Inputs) -> Session:
        return PythonSession(inputs)
