"""Our engine in three forms, and transformers' engine behind our front."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from chunkbench.baselines.contract import YES, Answer
from chunkbench.experiment.look import Look
from chunkbench.serving.servers.system import Launch, Moment, Setting, System, Watch
from chunkbench.version import __version__

_NEEDED = ("transformers", "starlette", "uvicorn", "prometheus_client")
_COLOUR = "#D55E00"
IDLE_S = 0.05
"""Between steps that are further apart, no request lived."""


class StepLog(Watch):
    """Reads the lines that our server writes about its steps."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def between(self, start: float, end: float) -> list[Moment]:
        moments: list[Moment] = []
        for line in self._path.read_text().splitlines():
            step = json.loads(line)
            began = step["ended"] - step["s"]
            if start <= began and step["ended"] <= end:
                if moments and began - moments[-1].at > IDLE_S:
                    moments += [Moment(moments[-1].at, 0, 0), Moment(began, 0, 0)]
                moments.append(
                    Moment(
                        step["ended"],
                        step["batch"],
                        step["kv_bytes"],
                        step["s"],
                        step["own_s"],
                        step["prompt_tokens"],
                    )
                )
        return moments


class _Served(System):
    """A server of `chunkbench serve`."""

    engine: ClassVar[str] = "chunk"
    attention: ClassVar[str] = "two-phase"
    cache: ClassVar[str] = "live"

    def availability(self, device: str) -> Answer:
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            return Answer(False, f"{', '.join(missing)} is not installed", "pip install 'chunkbench[serving]'")
        return YES

    def package_version(self) -> str:
        return f"chunkbench {__version__}"

    def launch(self, setting: Setting, folder: Path, port: int) -> Launch:
        options = {
            "--engine": self.engine,
            **({"--attention": self.attention, "--cache": self.cache} if self.engine == "chunk" else {}),
            "--dtype": setting.dtype,
            "--device": setting.device,
            "--max-batch": setting.max_batch,
            "--kv-memory": f"{setting.kv_bytes}B",
            "--port": port,
            "--log": folder,
            "--seed": setting.seed,
        }
        words = [str(word) for option in options.items() for word in option]
        threads = {"OMP_NUM_THREADS": str(setting.threads)}
        return Launch([sys.executable, "-m", "chunkbench", "serve", str(setting.write_config(folder)), *words], threads)


class ChunkLlama(_Served):
    """Two-phase partition over the prefix-aware cache: the paper's system."""

    label = "ChunkLlama"
    look = Look(heading=("Chunk", "Llama"), colour=_COLOUR, marker="o", place=950)

    def watch(self, url: str, setting: Setting, folder: Path) -> Watch:
        return StepLog(folder / "steps.jsonl")


class ChunkLlamaNoTpp(ChunkLlama):
    """The same cache and engine; each sequence reads the shared chunks by itself."""

    label = "ChunkLlama, no TPP"
    attention = "sequence-first"
    look = Look(
        heading=("Chunk", "Llama", "no TPP"),
        meaning="the same engine and cache, without two-phase partition",
        colour=_COLOUR,
        marker="^",
        line="dashed",
        place=930,
        ablation_of="chunk_llama",
    )


class ChunkLlamaRadix(ChunkLlama):
    """The same engine; what finished requests leave stays until its memory is needed."""

    label = "ChunkLlama, radix"
    cache = "radix"
    look = Look(
        heading=("Chunk", "Llama", "radix"),
        meaning="the same engine; chunks of finished requests stay for later ones, as in RadixAttention",
        colour=_COLOUR,
        marker="h",
        line="dashdot",
        place=940,
        ablation_of="chunk_llama",
    )


class ChunkLlamaNoSharing(ChunkLlama):
    """The same engine; each sequence has chunks of its own."""

    label = "ChunkLlama, no sharing"
    attention = "no-sharing"
    look = Look(
        heading=("Chunk", "Llama", "no shar."),
        meaning="the same engine, without shared chunks: each request computes and stores its whole prompt",
        colour=_COLOUR,
        marker="v",
        line="dotted",
        place=920,
        ablation_of="chunk_llama",
    )


class Transformers(_Served):
    """transformers' continuous batching."""

    label = "transformers"
    engine = "transformers"
    note = "transformers: its continuous batching with the attention sdpa, behind our web front; it shares pages."
    look = Look(colour="#6E6E6E", marker="s", place=300)

    def package_version(self) -> str:
        return f"transformers {version('transformers')}"
