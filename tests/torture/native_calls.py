"""Random calls of the native module's entry points, many of them wrong.

`python -m tests.torture.native_calls MODULE LAST`: reads a seed and a number of calls from each line of the standard
input, makes them, and answers "done". The last call is in the file LAST, if the process dies of it.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from tests.torture.native_arguments import DTYPES, FLOATS, MOST_NUMBERS, NAMES, Chooser

REFUSALS = (ValueError, TypeError, IndexError, OverflowError, MemoryError, RuntimeError)


class Caller(Chooser):
    """Makes calls. `last` is told each of them before it happens."""

    def __init__(self, native: Any, chance: Random, last: Callable[[str], None]) -> None:
        super().__init__(native, chance)
        self.last = last

    def call(self, function: Any, *given: Any, **named: Any) -> Any:
        """The answer, or None if the call is refused."""
        self.last(f"{getattr(function, '__name__', function)}{given} {named}")
        try:
            return function(*given, **named)
        except REFUSALS:
            return None

    def plan(self) -> None:
        arguments, runs = self.plan_arguments()
        plan = self.call(self.native.DecodePlan, **arguments)
        if plan is None:
            return
        batch, heads, dim, size = (arguments[name] for name in ("batch", "heads", "head_dim", "chunk_size"))
        dtype, kv_heads = arguments["dtype"], arguments["kv_heads"]
        self.call(plan.set_last_tokens, self.numbers([self.chance.randint(1, size) for _ in range(min(batch, 100))]))
        if self.chance.random() < 0.1:
            self.call(self.chance.choice([copy.copy, copy.deepcopy, repr, hash, bool]), plan)
            self.call(plan.__init__, **self.plan_arguments()[0])
            return
        if not runs:
            return
        count, floats = batch * heads * dim, 2 * kv_heads * dim
        q, out, scale = self.memory(count, dtype), self.memory(count, dtype), self.chance.choice(FLOATS)
        match self.chance.randrange(6):
            case 0:
                self.call(plan.decode, q, out, scale, self.threads())
            case 1:
                entries, stride = self.number(2, 0.2), self.number(floats, 0.3)
                kept = self.numbers([self.chance.randint(-1, 1) for _ in range(batch)])
                words = (kept, np.ones(batch, np.float32), np.full(batch, scale, np.float32), entries, stride)
                self.call(plan.set_compensation, *words)
                room = entries * stride if type(entries) is int and type(stride) is int else 0
                sums = self.memory(max(room, floats)) if 0 <= room < MOST_NUMBERS else 0
                self.call(plan.decode, q, out, scale, self.threads(), 0, sums)
            case 2:
                self.call(plan.accumulate, q, self.memory(count), self.memory(2 * batch * heads), scale, self.threads())
            case 3:
                self.call(plan.read, self.threads())
            case 4:
                self.call(plan.trace, self.chance.choice([0, q]), out, scale, self.threads())
            case 5:
                tensors = [self.tensor((batch, heads, dim), dtype) for _ in range(2)]
                self.call(plan.decode_dense, *tensors, scale, self.threads())

    def chunk(self) -> None:
        """`pack` and `cut` of a chunk."""
        shape = self.shape()
        del shape["heads"]
        sizes = [shape[name] for name in ("kv_heads", "head_dim", "chunk_size")]
        if not all(isinstance(size, int) and size >= 0 for size in sizes) or (
            math.prod(max(1, size) for size in sizes) > MOST_NUMBERS
        ):
            none = np.empty(0, np.int64)
            self.call(self.native.pack, **shape, k=0, v=0, chunks=none, slots=none, threads=self.threads())
            return
        address = self.memory(2 * math.prod(sizes), shape["dtype"])
        if self.chance.random() < 0.3:
            self.call(
                self.native.cut, **shape, chunk=address, tokens=self.number(3, 0.3), held=self.number(sizes[2], 0.3)
            )
            return
        tokens = self.chance.randint(0, 40)
        first = self.chance.randint(0, 16)
        slots = self.numbers([first + t for t in range(tokens)] if tokens else [0])
        rows = max(tokens, 1) * 2 * sizes[0] * sizes[1]
        k, v = self.memory(rows, shape["dtype"]), self.memory(rows, shape["dtype"])
        count = slots.size if isinstance(slots, np.ndarray) else tokens
        self.call(
            self.native.pack, **shape, k=k, v=v, chunks=np.full(count, address), slots=slots, threads=self.threads()
        )

    def layers(self) -> None:
        """Linear layers, norms, and both halves of a decoder layer."""
        dtype = self.chance.choice(list(DTYPES))
        heads, kv_heads, d = self.chance.randint(1, 3), self.chance.randint(1, 2), 32 * self.chance.randint(1, 2)
        width, middle, rows = 16 * self.chance.randint(1, 4), 16 * self.chance.randint(1, 4), self.chance.randint(0, 20)
        self.call(
            self.native.make_linear, self.chance.choice(NAMES), *(self.number(16, 0.5) for _ in range(2)), 0, 0, "gate"
        )

        def linear(inputs: int, outputs: int, finish: str) -> Any:
            inputs = self.chance.choice([inputs] * 15 + [inputs + 16, 16])
            blocks = self.chance.choice([outputs // 16] * 15 + [outputs // 16 + 1, 1])
            finish = self.chance.choice([finish] * 15 + ["store", "store32", "add32", "gate", "none"])
            bias = self.chance.choice([0, self.memory(16 * blocks)])
            words = dtype, inputs, blocks, self.memory(16 * inputs * blocks, dtype), bias, finish
            layer = self.call(self.native.make_linear, *words)
            if layer is not None and self.chance.random() < 0.5:
                wide = finish in ("store32", "add32")
                y = self.memory(rows * 16 * blocks // (2 if finish == "gate" else 1), "float32" if wide else dtype)
                x = self.memory(rows * inputs, dtype)
                self.call(
                    self.native.linear, layer, x, self.chance.choice([rows] * 9 + [-1]), y, self.threads(), self.isa()
                )
            return layer

        made = (linear(width, (heads + 2 * kv_heads) * d, "store"), linear(heads * d, width, "add32"),
                linear(width, 2 * middle, "gate"), linear(middle, width, "add32"))  # fmt: skip
        norms = self.memory(width), self.memory(width)
        size = self.number(width) if rows == 0 else width
        words = dtype, self.memory(rows * width), rows, size, norms[0], 1e-5, self.memory(rows * width, dtype)
        self.call(self.native.rms_norm, *words, self.threads())
        layer = self.call(self.native.make_layer, *made, *norms, 1e-5, heads, self.number(kv_heads), self.number(d))
        if layer is None:
            return
        sizes = (width, (heads + 2 * kv_heads) * d, heads * d, kv_heads * d, kv_heads * d, heads * d, middle)
        step = self.native.make_buffers(
            rows, self.memory(rows * width), *(self.memory(rows * size, dtype) for size in sizes),
            self.memory(rows * d // 2), self.memory(rows * d // 2),
        )  # fmt: skip
        self.call(layer.before_attention, self.chance.choice([step, step, None]), self.threads())
        self.call(layer.after_attention, step, self.threads())

    def probes(self) -> None:
        buffer = torch.zeros(self.chance.randint(0, 999))
        odd = self.chance.choice(
            [buffer, buffer[::2], buffer.double(), buffer.numpy(), buffer[None], None, buffer.half()]
        )
        few = self.number(2, 0.5)
        few = few if type(few) is not int or not 64 < few <= 65536 else 3  # so many threads only take time
        self.call(self.native.read_pass, odd, few, self.isa())
        words = self.chance.choice(NAMES), few, self.chance.choice([0.01, 0.0, -1.0, math.nan, math.inf, 60001.0])
        self.call(self.native.matrix_flops_per_s, *words, self.isa())

    def addresses(self) -> None:
        shape = (2, self.chance.randint(0, 3), 16)
        asked = tuple(self.number(size, 0.1) for size in shape[: self.chance.choice([3, 3, 3, 2, 0])])
        asked = asked + (1,) * self.chance.choice([0, 0, 0, 1, 2, 9])
        self.call(self.native.dense_address, self.tensor(shape, "float32"), asked, self.chance.choice(NAMES))
        if self.chance.random() < 0.1:
            self.call(
                self.native.use_tensors_of, self.chance.choice([int, object(), None, type, self.native.DecodePlan])
            )
            self.call(self.native.use_tensors_of, torch.Tensor)

    def any(self) -> None:
        kinds = (self.plan, self.chunk, self.layers, self.probes, self.addresses)
        self.chance.choices(kinds, (12, 4, 3, 1, 2))[0]()
        self.kept.clear()


def loaded(path: str) -> Any:
    if not path:
        from chunkbench.kernels import cpu

        # Wrong sizes must not take the memory of the machine.
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**32, resource.RLIM_INFINITY))
        return cpu.required()
    spec = importlib.util.spec_from_file_location("chunkbench.kernels.cpu._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    native = loaded(sys.argv[1])
    native.use_tensors_of(torch.Tensor)
    torch.set_num_threads(2)
    with Path(sys.argv[2]).open("r+") as file:

        def last(text: str) -> None:
            file.seek(0)
            file.write(text[:5000].encode("ascii", "backslashreplace").decode() + "\n")
            file.truncate()
            file.flush()

        for line in sys.stdin:
            seed, count = map(int, line.split())
            caller = Caller(native, Random(seed), last)
            for _ in range(count):
                caller.any()
            print("done", flush=True)


if __name__ == "__main__":
    main()
