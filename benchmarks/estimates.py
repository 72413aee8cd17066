"""How well `--dry-run` estimates memory and time: runs experiments, and compares.

    python -m benchmarks.estimates            ten runs, about ten minutes on two cores

For each run: the estimate of time over the seconds that `chunkbench run` took (report excluded), and the estimate of
memory over the most that its worker held (resident).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

RUNS = (
    ("table3", "--set", "n_p=1024", "--budget", "40s"),
    ("table3", "--set", "n_p=512,2048", "--set", "n_s=0", "--budget", "1s"),
    ("table3", "--set", "n_p=2048", "--only", "chunk_attn", "--only", "paged_attn_star", "--budget", "30s"),
    ("figure4", "--set", "batch_size=8,32", "--budget", "20s"),
    ("heads", "--set", "n_s=1024", "--budget", "10s"),
    ("break-even", "--set", "batch_size=4", "--budget", "20s"),
    ("memory",),
    ("gate",),
    ("smoke",),
    ("prompts", "--budget", "30s"),
)


def seconds_of(text: str) -> float:
    """A duration as the dry run prints it."""
    value, unit = re.search(r"time: about ([\d.]+) (s|min)", text).groups()  # type: ignore[union-attr]
    return float(value) * (60 if unit == "min" else 1)


def main() -> None:
    """Print a line for each run."""
    good_time = good_memory = 0
    for words in RUNS:
        run = [sys.executable, "-m", "chunkbench", "run", *words]
        plan = subprocess.run([*run, "--dry-run"], check=True, capture_output=True, text=True).stdout
        expected_s = seconds_of(plan)
        expected_gb = float(re.search(r"memory: up to ([\d.]+) GB", plan).group(1))  # type: ignore[union-attr]
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            process = subprocess.Popen([*run, "-q", "--out", str(Path(folder) / "run")], stdout=subprocess.DEVNULL)
            peak = 0
            while process.poll() is None:
                for child in psutil.Process(process.pid).children():
                    try:
                        peak = max(peak, child.memory_info().rss)
                    except psutil.NoSuchProcess:
                        continue
                time.sleep(0.2)
            took_s = time.monotonic() - started
        time_ratio, memory_ratio = expected_s / took_s, expected_gb * 1e9 / peak
        good_time += 1 / 1.4 <= time_ratio <= 1.4
        good_memory += 0.75 <= memory_ratio <= 1.25
        print(f"{' '.join(words):<75} time {time_ratio:.2f} of {took_s:.0f} s, memory {memory_ratio:.2f}", flush=True)
    print(f"time within 40%: {good_time} of {len(RUNS)}; memory within 25%: {good_memory} of {len(RUNS)}")


if __name__ == "__main__":
    main()
