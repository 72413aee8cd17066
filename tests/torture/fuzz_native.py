"""Calls of the native module with wrong shapes, tables, strides, lengths and sizes: refused, never a crash.

What addresses point to has the size that the accepted arguments ask for: the module cannot check it.

`python -m tests.torture.fuzz_native MODULE LAST`: reads a seed and a number of calls from each line of the standard
input, makes them, and answers "done". The last call is in the file LAST, if the process dies of it.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import os
import resource
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from chunkbench.kernels import cpu
from chunkbench.kernels.cpu.planner import COLUMNS
from chunkbench.kv_dtype import FLOATS as KV_FLOATS
from chunkbench.kv_dtype import KV_DTYPES
from scripts.test_native import BUILDS, ROOT, build, library
from tests.torture.trials import Harm, Trial, Unavailable

Arguments = dict[str, Any]
SIZES = [-1, 0, 1, 2, 3, 15, 16, 17, 24, 32, 48, 64, 255, 256, 257, 272, 1024, 65535, 65536, 65552]
_POWERS = (15, 16, 24, 30, 31, 32, 40, 60, 61, 62, 63, 64)
EDGES = [sign * 2**power + more for power in _POWERS for sign in (1, -1) for more in (-1, 0, 1)]
OTHERS: list[Any] = [None, "", "float32", b"x", 1.5, math.nan, math.inf, True, [], {}, object(), 10**30]
NAMES: list[Any] = ["float32", "float16", "bfloat16", "float64", "", "FLOAT32", "float32\0", "x" * 10_000]
NAMES += ["\ud800", None, 3]
FLOATS = [0.25, 0.0, 1e-30, 1e30, math.inf, math.nan, 1e300, -0.0]
MOST_NUMBERS = 2**21
"""Larger calls would only wait for memory."""
ENOUGH_CALLS = 6000
"""So many calls run every entry point, unless this file does not call it, or not with what it takes."""
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
BYTES = {"float32": 4, "bytes": 1}
"""Of a number, where it is not 2."""


class Chooser:
    """Draws arguments. `kept` holds what their addresses point to."""

    def __init__(self, native: Any, chance: Random) -> None:
        self.native, self.chance = native, chance
        self.kept: list[Any] = []

    def number(self, right: int, wrong: float = 0.1) -> Any:
        if self.chance.random() >= wrong:
            return right
        return self.chance.choice([self.chance.choice(SIZES), self.chance.choice(EDGES), self.chance.choice(OTHERS)])

    def wild(self, values: list[int]) -> int:
        """One of these values, if 64 bits hold it."""
        return max(-(2**63), min(self.chance.choice(values), 2**63 - 1))

    def numbers(self, right: list[int], wrong: float = 0.1) -> Any:
        """An int64 array, or something like one."""
        if self.chance.random() >= wrong:
            return np.array(right, np.int64)
        values = list(right)
        for _ in range(self.chance.randint(0, 2) if values else 0):
            values[self.chance.randrange(len(values))] = self.wild([*SIZES, *EDGES])
        array = np.array(values, np.int64)
        return self.chance.choice(
            (array, array[: len(array) // 2], np.tile(array, 2), np.repeat(array, 2)[::2], array[::-1], array[None],
             array.astype(np.int32), array.astype(np.float64), array.astype(">i8"), array[:0], values, None,
             np.lib.stride_tricks.as_strided(array, (len(array),), (0,)), torch.from_numpy(array.copy()))
        )  # fmt: skip

    def memory(self, count: int, dtype: Any = "float32") -> int:
        """Address of so many numbers, with nothing behind them."""
        made = np.empty(max(0, count) * BYTES.get(dtype, 2), np.uint8)
        made[: 1 << 16] = self.chance.choice([0, 0x3E, 0xFF])
        self.kept.append(made)
        return made.ctypes.data

    def isa(self) -> Any:
        wrong = ["", "sse2", None] if self.chance.random() < 0.1 else []
        return self.chance.choice([*self.native.isas(), *wrong])

    def threads(self) -> Any:
        return self.number(self.chance.randint(1, 3))

    def shape(self) -> Arguments:
        kv_heads = self.chance.choice([1, 1, 2, 3])
        heads = kv_heads * self.chance.choice([1, 1, 2, 5])
        form = self.chance.choice([*KV_DTYPES, "latent"] if self.chance.random() < 0.95 else NAMES)
        head_dim = 16 * self.chance.randint(1, 6)
        width = 16 * self.chance.randint(1, head_dim // 16 if form == "latent" else 6)
        own = form in ("same", "latent") and self.chance.random() < 0.5
        return {
            "dtype": self.chance.choice(list(DTYPES) if self.chance.random() < 0.95 else NAMES),
            "heads": self.number(heads, 0.04),
            "kv_heads": self.number(kv_heads, 0.04),
            "head_dim": self.number(head_dim, 0.04),
            "chunk_size": self.number(16 * self.chance.randint(1, 4), 0.04),
            "kv_dtype": form,
            "value_dim": self.number(width if own else 0, 0.04),
        }

    def value_dim(self, shape: Arguments) -> int:
        return int(shape["value_dim"] or shape["head_dim"])

    def chunk_memory(self, shape: Arguments) -> int:
        """Address of a chunk of K and V."""
        vectors, form = shape["kv_heads"] * shape["chunk_size"], shape["kv_dtype"]
        if form in KV_FLOATS:
            return self.memory(2 * vectors * (shape["head_dim"] + 4 * KV_FLOATS[form]), "bytes")
        numbers = shape["head_dim"] + (0 if form == "latent" else self.value_dim(shape))
        return self.memory(vectors * numbers, shape["dtype"])

    def kv_scales(self, shape: Arguments) -> int:
        """Address of the scales of fp8, or 0."""
        return self.chance.choice([0, self.memory(2 * shape["kv_heads"])])

    def plan_arguments(self) -> tuple[Arguments, bool]:
        """Rows that share some chunks and have others alone; and whether what they point to is there."""
        shape = self.shape()
        sizes = [shape[name] for name in ("heads", "kv_heads", "head_dim", "chunk_size")]
        fits = type(shape["value_dim"]) is int and 0 <= shape["value_dim"] < MOST_NUMBERS // 64
        fits = fits and all(type(size) is int and size >= 0 for size in sizes)
        fits = fits and sizes[0] * max(sizes[2:]) * max(sizes) < MOST_NUMBERS
        fits = fits and 2 * math.prod(max(1, size) for size in sizes) < MOST_NUMBERS
        rows = self.chance.randint(1, 5)
        count = self.chance.randint(rows, 12)
        chunks = [self.chunk_memory(shape) if fits else self.memory(0) for _ in range(count)]
        shared = self.chance.randint(0, len(chunks) - rows) if rows > 1 else 0
        heads = self.chance.randint(1, sizes[1] if fits and sizes[1] else 1)
        items = [[0, shared, 0, rows, -1, 0, 0, 0, 0, heads]] if shared else []
        bounds = sorted(self.chance.randint(shared, len(chunks)) for _ in range(rows - 1))
        for row, (first, end) in enumerate(zip([shared, *bounds], [*bounds, len(chunks)], strict=True)):
            tail = row if end > first else -1
            folds = row if shared else 0, bool(shared)
            items.append([first, end - first, rows + row, 1, tail, self.chance.randint(0, 3), -1, *folds, heads])
        for _ in range(self.chance.choice([0, 0, 0, 1, 2])):
            self.chance.choice(items)[self.chance.randrange(len(COLUMNS))] = self.wild([*SIZES[:8], *EDGES])
        table = np.array(items, np.int64)
        if self.chance.random() >= 0.95:
            table = self.chance.choice([table[:, :8], table.T, table[0], table[::-1]])
        arguments = {
            **shape,
            "columns": COLUMNS,
            "items": table,
            "chunks": self.numbers(chunks, 0.05),
            "rows": self.numbers([*range(rows), *range(rows)], 0.05),
            "folds": self.numbers(list(range(rows if shared else 0)), 0.05),
            "partial_items": self.number(int(bool(shared)), 0.04),
            "batch": self.number(rows, 0.04),
            "partials": self.number(rows if shared else 0, 0.04),
            "threads": self.threads(),
            "fetch_early": self.chance.random() < 0.5,
            "side_by_side": self.chance.random() < 0.5,
            "isa": self.isa(),
        }
        given, batch = arguments["chunks"], arguments["batch"]
        there = isinstance(given, np.ndarray) and {int(chunk) for chunk in given.flat} <= set(chunks)
        return arguments, fits and there and type(batch) is int and 0 <= batch < 100

    def sights(self, rows: int) -> Any:
        """Which tokens each row reads: chunks before the last one, a window, hidden tokens."""
        made = np.zeros((max(0, min(rows, 100)), 7), np.int64)
        for line in made:
            line[:3] = self.chance.randint(0, 5), self.chance.choice([1, 7, 100, 1 << 40]), self.chance.randint(0, 256)
            line[3:] = [self.chance.randint(-(2**63), 2**63 - 1) for _ in range(4)]
            if self.chance.random() < 0.1:
                line[self.chance.randrange(3)] = self.wild([*SIZES[:8], *EDGES])
        return made if self.chance.random() < 0.95 else self.chance.choice([made[:, :6], made.T, made[:0]])

    def tensor(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A tensor of a shape, or another object."""
        right = torch.zeros(shape, dtype=DTYPES.get(dtype, torch.float32))
        makes: list[Callable[[], Any]] = [
            *(lambda: right.transpose(0, -1), lambda: right[..., ::2], lambda: right.expand(2, *shape), right.double),
            *(lambda: right.to("meta"), right.to_sparse, lambda: right[:0], right.numpy, right.flatten, right.conj),
            *(lambda: torch.nn.Parameter(right), lambda: torch.zeros(()), lambda: None, lambda: torch.Tensor, object),
            lambda: torch.empty(0).as_strided((0, 2**31, 2**31), (0, 2**31, 1)),
            *(lambda: torch.zeros(1).expand(shape), lambda: right.view(torch.uint8)),
        ]
        if self.chance.random() < 0.5:
            return right
        try:
            return self.chance.choice(makes)()
        except (RuntimeError, TypeError, ValueError):
            return right


def entry_points(native: Any) -> set[str]:
    """Names of the functions and methods that the module has, and of the class that is made by a call."""
    found = {"DecodePlan"}
    for name in dir(native):
        made = getattr(native, name)
        found |= {method for method in dir(made) if method[0] != "_"} if isinstance(made, type) else {name}
    return {name for name in found if name[0] != "_"} - {"isas", "compiled_isas", "cpu_features"}  # which take nothing


REFUSALS = (ValueError, TypeError, IndexError, OverflowError, MemoryError, RuntimeError)


class Caller(Chooser):
    """Makes calls. `last` is told each of them before it happens."""

    def __init__(self, native: Any, chance: Random, last: Callable[[str], None]) -> None:
        super().__init__(native, chance)
        self.last = last
        self.worked = set[str]()
        self.before: Any = None
        """The last plan that ran."""

    def call(self, function: Any, *given: Any, **named: Any) -> Any:
        """The answer, or None if the call is refused."""
        name = getattr(function, "__name__", str(function))
        self.last(f"{name}{given} {named}")
        try:
            answer = function(*given, **named)
        except REFUSALS:
            return None
        self.worked.add(name)
        return answer

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
        width = self.value_dim(arguments)
        if self.chance.random() < 0.5:
            self.call(plan.set_sights, self.sights(batch))
        if self.chance.random() < 0.5:
            self.call(plan.take_memory, self.chance.choice([self.before, self.before, plan]))
        self.before = plan
        count, floats = batch * heads * width, 2 * kv_heads * dim
        q, out, scale = self.memory(batch * heads * dim, dtype), self.memory(count, dtype), self.chance.choice(FLOATS)
        match self.chance.randrange(8):
            case 0:
                changes = self.chance.choice([0.0, 3.0, *FLOATS]), self.chance.choice([0, self.memory(heads)])
                self.call(plan.decode, q, out, scale, self.threads(), 0, 0, self.kv_scales(arguments), *changes)
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
                tensors = [self.tensor((batch, heads, size), dtype) for size in (dim, width)]
                self.call(plan.decode_dense, *tensors, scale, self.threads())
            case 6:
                other = self.chance.choice([None, plan, self.call(self.native.DecodePlan, **arguments)])
                bytes_ = count * BYTES.get(dtype, 2)
                told = bytes_ if other is None else self.number(bytes_)
                self.call(plan.reserve_results)
                self.call(plan.decode_beside, q, out, other, q, self.memory(count, dtype), told, scale, self.threads())
            case 7:
                layers, step = self.decoder_layers(dtype, batch, heads, kv_heads, dim)
                chunks = [self.chance.choice(arguments["chunks"].tolist()) for _ in range(batch)]
                slots = [self.chance.randrange(size) for _ in range(batch)]
                at = self.numbers(chunks, 0.0)
                self.call(plan.run_layers, layers, step, at, self.numbers(slots), 0, scale, self.threads())

    def chunk(self) -> None:
        """`pack` and `cut` of a chunk."""
        shape = self.shape()
        del shape["heads"]
        sizes = [shape[name] for name in ("kv_heads", "head_dim", "chunk_size")]
        fits = all(isinstance(size, int) and size >= 0 for size in (*sizes, shape["value_dim"]))
        fits = fits and shape["value_dim"] < MOST_NUMBERS // 64
        if not fits or math.prod(max(1, size) for size in sizes) > MOST_NUMBERS:
            none = np.empty(0, np.int64)
            self.call(self.native.pack, **shape, k=0, v=0, chunks=none, slots=none, threads=self.threads())
            return
        address = self.chunk_memory(shape)
        if self.chance.random() < 0.3:
            tokens, held = self.number(3, 0.3), self.number(sizes[2], 0.3)
            self.call(self.native.cut, **shape, chunk=address, tokens=tokens, held=held)
            return
        tokens = self.chance.randint(0, 40)
        first = self.chance.randint(0, 16)
        slots = self.numbers([first + t for t in range(tokens)] if tokens else [0])
        rows = max(tokens, 1) * 2 * sizes[0] * max(sizes[1], shape["value_dim"])
        k, v = self.memory(rows, shape["dtype"]), self.memory(rows, shape["dtype"])
        count = slots.size if isinstance(slots, np.ndarray) else tokens
        chunks = np.full(count, address)
        more = {"threads": self.threads(), "kv_scales": self.kv_scales(shape)}
        self.call(self.native.pack, **shape, k=k, v=v, chunks=chunks, slots=slots, **more)

    def layers(self) -> None:
        """Linear layers, norms, and both halves of a decoder layer."""
        dtype = self.chance.choice(list(DTYPES))
        heads, kv_heads, d = self.chance.randint(1, 3), self.chance.randint(1, 2), 32 * self.chance.randint(1, 2)
        width, rows = 16 * self.chance.randint(1, 4), self.chance.randint(0, 20)
        odd = self.chance.choice(NAMES), self.number(16, 0.5), self.number(16, 0.5)
        self.call(self.native.make_linear, *odd, 0, 0, "gate")
        size = self.number(width) if rows == 0 else width
        words = dtype, self.memory(rows * width), rows, size, self.memory(width), 1e-5, self.memory(rows * width, dtype)
        self.call(self.native.rms_norm, *words, self.threads())
        (layer,), step = self.decoder_layers(dtype, rows, heads, kv_heads, d, 1)
        if layer is not None:
            self.call(layer.before_attention, self.chance.choice([step, step, None]), self.threads())
            self.call(layer.after_attention, step, self.threads())

    def decoder_layers(
        self, dtype: str, rows: int, heads: int, kv_heads: int, d: int, count: int = 2
    ) -> tuple[list[Any], Any]:
        """Decoder layers, None where they are refused, and the buffers of a step of so many rows."""
        width, middle = (16 * self.chance.randint(1, 4) for _ in range(2))

        def linear(inputs: int, outputs: int, finish: str) -> Any:
            inputs = self.chance.choice([inputs] * 60 + [inputs + 16, 16])
            blocks = self.chance.choice([outputs // 16] * 60 + [outputs // 16 + 1, 1])
            finish = self.chance.choice([finish] * 60 + ["store", "store32", "add32", "gate", "none"])
            bias = self.chance.choice([0, self.memory(16 * blocks)])
            words = dtype, inputs, blocks, self.memory(16 * inputs * blocks, dtype), bias, finish
            layer = self.call(self.native.make_linear, *words)
            if layer is not None and self.chance.random() < 0.5:
                wide = finish in ("store32", "add32")
                y = self.memory(rows * 16 * blocks // (2 if finish == "gate" else 1), "float32" if wide else dtype)
                x = self.memory(rows * inputs, dtype)
                called = self.chance.choice([rows] * 9 + [-1])
                self.call(self.native.linear, layer, x, called, y, self.threads(), self.isa())
            return layer

        def decoder_layer() -> Any:
            made = (linear(width, (heads + 2 * kv_heads) * d, "store"), linear(heads * d, width, "add32"),
                    linear(width, 2 * middle, "gate"), linear(middle, width, "add32"))  # fmt: skip
            norms = self.memory(width), self.memory(width)
            words = heads, self.number(kv_heads), self.number(d)
            return self.call(self.native.make_layer, *made, *norms, 1e-5, *words)

        sizes = (width, (heads + 2 * kv_heads) * d, heads * d, kv_heads * d, kv_heads * d, heads * d, middle)
        step = self.call(
            self.native.make_buffers,
            rows, self.memory(rows * width), *(self.memory(rows * size, dtype) for size in sizes),
            self.memory(rows * d // 2), self.memory(rows * d // 2),
        )  # fmt: skip
        return [decoder_layer() for _ in range(count)], step

    def probes(self) -> None:
        buffer = torch.zeros(self.chance.randint(0, 999))
        kinds = [buffer, buffer[::2], buffer.double(), buffer.numpy(), buffer[None], None, buffer.half()]
        odd = self.chance.choice(kinds)
        few = self.number(2, 0.5)
        few = few if type(few) is not int or not 64 < few <= 65536 else 3  # so many threads only take time
        self.call(self.native.read_pass, odd, few, self.isa())
        words = (
            self.chance.choice([*DTYPES, *NAMES]),
            few,
            self.chance.choice([0.01, 0.02, 0.05, 0.0, -1.0, math.nan, math.inf, 60001.0]),
        )
        self.call(self.native.matrix_flops_per_s, *words, self.isa())

    def addresses(self) -> None:
        shape = (2, self.chance.randint(0, 3), 16)
        asked = tuple(self.number(size, 0.1) for size in shape[: self.chance.choice([3, 3, 3, 2, 0])])
        asked = asked + (1,) * self.chance.choice([0, 0, 0, 1, 2, 9])
        self.call(self.native.dense_address, self.tensor(shape, "float32"), asked, self.chance.choice(NAMES))
        if self.chance.random() < 0.1:
            kind = self.chance.choice([int, object(), None, type, self.native.DecodePlan])
            self.call(self.native.use_tensors_of, kind)
            self.call(self.native.use_tensors_of, torch.Tensor)

    def any(self) -> None:
        kinds = (self.plan, self.chunk, self.layers, self.probes, self.addresses)
        self.chance.choices(kinds, (12, 4, 3, 1, 2))[0]()
        self.kept.clear()


def loaded(path: str) -> Any:
    if not path:
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

        worked, calls = set[str](), 0
        for line in sys.stdin:
            seed, count = map(int, line.split())
            caller = Caller(native, Random(seed), last)
            for _ in range(count):
                caller.any()
            worked |= caller.worked
            calls += count
            if calls >= ENOUGH_CALLS and (missing := entry_points(native) - worked):
                sys.exit(f"after {calls} calls, none of {', '.join(sorted(missing))} worked")
            print("done", flush=True)


CALLS = 50
LIMIT_S = 300.0
"""Calls that take longer hang."""
SEEDS = Path(__file__).with_name("native_seeds.txt")
"""Seeds that together reach all entry points and nine of ten refusals; a run with sanitizers begins with them. A seed
that fails is added."""


class Child:
    """A process that makes calls; a new one after a crash."""

    def __init__(self, module: str, folder: Path, environment: dict[str, str]) -> None:
        self.last = folder / "last-call"
        self.last.touch()
        self.errors = (folder / "errors").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.fuzz_native", module, str(self.last)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, cwd=ROOT, env=environment,
        )  # fmt: skip

    def calls(self, seed: int, count: int) -> bool:
        """Whether the process lived through them."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(seed, count, file=self.process.stdin, flush=True)
        if not select.select([self.process.stdout], [], [], LIMIT_S)[0]:
            return False
        return self.process.stdout.readline() == "done\n"

    def end(self) -> str:
        """What it said on the standard error."""
        self.process.kill()
        self.process.communicate()
        with self.errors as errors:
            errors.seek(0)
            return errors.read()


def sanitized() -> tuple[str, dict[str, str]]:
    """The module with sanitizers, and the variables that its process needs. Raises Unavailable."""
    variant = BUILDS["sanitize"]
    try:
        preload = " ".join(library(name) for name in variant.preload)
        return str(build("sanitize")), {**os.environ, **variant.environment, "LD_PRELOAD": preload}
    except SystemExit as error:
        raise Unavailable(str(error)) from None
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"the build with sanitizers failed: {error.cmd[0]} returned {error.returncode}") from None


@contextmanager
def wrong_calls(sanitize: bool) -> Iterator[Harm]:
    if cpu.native() is None:
        raise Unavailable(cpu.why_missing())
    module, environment = sanitized() if sanitize else ("", dict(os.environ))
    children: list[Child] = []
    room = TemporaryDirectory()
    known = [int(line) for line in SEEDS.read_text().split()] if sanitize else []

    def harm(trial: Trial) -> int:
        if not children:
            children.append(Child(module, Path(room.name), environment))
        seeds = [trial.number, *known]
        known.clear()
        for seed in seeds:
            if not children[0].calls(seed, CALLS):
                child = children.pop()
                said = child.end()
                shutil.copy(child.last, trial.folder)
                (trial.folder / "errors").write_text(said)
                raise AssertionError(f"seed {seed}, {child.last.read_text().strip()[:600]}:\n{said[-3000:]}")
        return CALLS * len(seeds)

    try:
        yield harm
    finally:
        for child in children:
            child.end()
        room.cleanup()


if __name__ == "__main__":
    main()
