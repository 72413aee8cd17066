"""vLLM's engine with our plug-in against vLLM's own attention, offline: steps, attention, prefill, building of plans.

The two sides take turns, each in a process of its own, on two layers of Llama2-7B's shape (vocabulary 2,048, bfloat16,
b = 32, prefix caching on, blocks of 32 tokens). Run it with `python benchmarks/vllm_plugin.py [--turns 3]
[--dtype float32]`; `make vllm-environment` installs vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from chunkbench.experiment.llama import SHAPES
from chunkbench.experiment.terms import Dtype
from chunkbench.serving.servers.system import Setting
from chunkbench.serving.servers.vllm import vllm_python, vllm_variables

SIDES = {"ours": "chunkbench", "vllm": ""}
"""Plug-ins that vLLM loads."""
BLOCK = 32


def measure(side: str, points: list[list[int]], dtype: Dtype) -> list[dict[str, float]]:
    """The points, measured in a new process."""
    threads, kv_bytes, most = os.cpu_count() or 1, 8 * 2**30, max(b for _, _, b, _ in points)
    setting = Setting(SHAPES["llama2-7b"], 2, 2048, 16384, dtype, "cpu", most, kv_bytes, threads)
    one_process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    environment = os.environ | vllm_variables(threads, kv_bytes, SIDES[side]) | one_process
    script = Path(__file__).with_name("vllm_steps.py")
    with tempfile.TemporaryDirectory() as folder:
        model = str(setting.write_config(Path(folder)).parent)
        told = {"model": model, "dtype": dtype, "block_size": BLOCK, "points": points}
        done = subprocess.run(
            [str(vllm_python()), str(script)], input=json.dumps(told), capture_output=True, text=True, env=environment,
            check=False,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{side}: vLLM failed:\n{done.stderr[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--n-p", type=int, action="append", help="prompt lengths [default: 1024 and 4096]")
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    if vllm_python() is None:
        raise SystemExit("vLLM is not here: `make vllm-environment` installs it")
    lengths = arguments.n_p or [1024, 4096]
    # vLLM decodes beside the prompts that it computes: the first sequence must not end before the last one has begun.
    tokens = {n_p: 32 + arguments.batch * n_p // 1024 for n_p in lengths}
    points = [[n_p, n_s, arguments.batch, tokens[n_p]] for n_p in lengths for n_s in (0, n_p)]
    found: dict[str, list[list[dict[str, float]]]] = {"ours": [], "vllm": []}
    for turn in range(arguments.turns):
        for side in ("ours", "vllm") if turn % 2 == 0 else ("vllm", "ours"):
            found[side].append(measure(side, points, arguments.dtype))
            print(f"turn {turn + 1}: {side} measured", flush=True)
    print("ms of ours / ms of vLLM's own = ratio (lowest..highest of the turns)")
    for number, (n_p, n_s, b, _) in enumerate(points):
        for name in ("step", "attention", "build", "prefill"):
            ours, theirs = ([turn[number][name] * 1e3 for turn in found[side]] for side in ("ours", "vllm"))
            ratios = sorted(mine / other for mine, other in zip(ours, theirs, strict=True))
            middle = f"{statistics.median(ours):8.2f} / {statistics.median(theirs):8.2f}"
            spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f}..{ratios[-1]:.3f})"
            print(f"n_p={n_p} n_s={n_s} b={b} {name:>10}: {middle} = {spread}")


if __name__ == "__main__":
    main()
