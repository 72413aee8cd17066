"""Systems behind our HTTP server: our engine with different options, and the engines of transformers and OpenVINO."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chunkbench.bench.contract import YES, Answer
from chunkbench.bench.environment.cpu import read_cpu
from chunkbench.bench.experiment.terms import Style
from chunkbench.kv_dtype import KvDtype
from chunkbench.server.serve_options import SERVED_FORMS
from chunkbench.version import __version__
from chunkbench.workloads.serving.result import Moment
from chunkbench.workloads.serving.servers.system import Launch, OwnEnvironment, Setting, Sharing, System, Watch

if TYPE_CHECKING:
    from chunkbench.server.build import EngineName

_NEEDED = ("transformers", "starlette", "uvicorn", "prometheus_client")
_COLOUR = "#D55E00"
IDLE_S = 0.05
"""Longest pause between two steps, in seconds, in which the server counts as busy. In a longer pause it counts as
idle."""


class StepLog(Watch):
    """Reads the log in which our server records its steps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._requests = path.with_name("requests.jsonl")

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
                        at=step["ended"],
                        batch=step["batch"],
                        kv_bytes=step["kv_bytes"],
                        seconds=step["s"],
                        overhead_seconds=step["overhead_s"],
                        tree_seconds=step["tree_s"],
                        prompt_tokens=step["prompt_tokens"],
                        parts=step["parts"],
                    )
                )
        return moments

    def constrained(self, start: float, end: float) -> dict[str, Any]:
        requests = map(json.loads, self._requests.read_text().splitlines())
        return {r["id"]: r["constrained"] for r in requests if "constrained" in r and start <= r["received"] <= end}


OPENVINO = OwnEnvironment("openvino", "OpenVINO", cpu_only=True)


@dataclass(frozen=True)
class ChunkbenchServer(System):
    """Our HTTP server with one of its engines."""

    label: str
    style: Style
    engine: EngineName = "chunk"
    attention: str = "two-phase"
    cache: str = "live"
    constraint: Literal["sent", "left out", "refused"] = "sent"
    constrained: Mapping[str, object] = field(default_factory=dict)
    """Command line options of the server for constrained answers: option -> value."""
    kv_dtype: KvDtype | None = None
    """How it stores K and V. None: as the setting says."""
    environment: OwnEnvironment | None = None
    """The environment that contains the engine. None: that of this process."""
    note: str = ""

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.kv_dtype in (None, "same")

    @property
    def kv_dtypes(self) -> tuple[KvDtype, ...]:  # type: ignore[override]
        return SERVED_FORMS[self.engine]

    @property
    def sharing(self) -> Sharing:  # type: ignore[override]
        if self.attention == "no-sharing" or (self.engine == "openvino" and self.cache != "radix"):
            return "none"
        return "reads" if self.engine == "chunk" and self.attention == "two-phase" else "storage"

    def availability(self, device: str) -> Answer:
        if self.environment is not None:
            return self.environment.availability(device)
        needed = (*_NEEDED, "llguidance") if self.constrained else _NEEDED
        missing = [name for name in needed if importlib.util.find_spec(name) is None]
        if missing:
            extras = "serving,constrained" if self.constrained else "serving"
            return Answer(False, f"{', '.join(missing)} is not installed", f"pip install 'chunkbench[{extras}]'")
        return YES

    def refusal(self, setting: Setting) -> str:
        if self.engine == "openvino" and setting.dtype == "bfloat16" and not read_cpu().bfloat16_flags:
            return "this CPU has no bfloat16 arithmetic, so OpenVINO computes in float32"
        return super().refusal(setting)

    def package_version(self) -> str:
        if self.environment is not None:
            return self.environment.version(f"{self.engine}-genai")
        return f"chunkbench {__version__}" if self.engine == "chunk" else f"{self.engine} {version(self.engine)}"

    def launch(self, setting: Setting, folder: Path, port: int) -> Launch:
        options = {
            "--engine": self.engine,
            "--attention": self.attention,
            "--cache": self.cache,
            "--dtype": setting.dtype,
            "--kv-dtype": self.kv_dtype or setting.kv_dtype,
            "--device": setting.device,
            "--max-batch": setting.max_batch,
            "--kv-memory": f"{setting.kv_bytes}B",
            "--port": port,
            "--log": folder,
            "--seed": setting.seed,
            **self.constrained,
        }
        words = [str(word) for option in options.items() for word in option]
        threads = {"OMP_NUM_THREADS": str(setting.threads)}
        model = setting.model_folder(folder)
        if setting.checkpoint is None:
            model /= "config.json"
        python = sys.executable if self.environment is None else str(self.environment.python)
        return Launch([python, "-m", "chunkbench", "serve", str(model), *words], threads)

    def watch(self, url: str, setting: Setting, folder: Path) -> Watch:
        return StepLog(folder / "steps.jsonl")


def _following(name: str, colour: str, marker: str, order: int, meaning: str, **options: object) -> ChunkbenchServer:
    """A variant that differs in how answers follow constraints."""
    style = Style(heading=tuple(name.split()), meaning=meaning, colour=colour, marker=marker, column_order=order)
    chosen = {f"--{option}": value for option, value in options.items()}
    return ChunkbenchServer(f"ChunkLlama, {name}", style, constrained=chosen)


def _openvino(name: str, marker: str, order: int, meaning: str, **chosen: Any) -> ChunkbenchServer:
    """A variant of OpenVINO's engine. `chosen`: fields of the server."""
    style = Style(
        heading=("Open-", "VINO", *name.split(" ")),
        meaning=meaning,
        colour="#0068B5",
        marker=marker,
        line="dashed" if name else "solid",
        column_order=order,
    )
    label = f"OpenVINO, {name}" if name else "OpenVINO"
    chosen = {"cache": "radix"} | chosen
    return ChunkbenchServer(label, style, "openvino", constraint="refused", environment=OPENVINO, **chosen)


def _in_8_bits(kv_dtype: KvDtype, marker: str, order: int) -> ChunkbenchServer:
    style = Style(
        heading=("Chunk", "Llama", kv_dtype),
        meaning=f"as ChunkLlama, radix, with K/V in {kv_dtype}",
        colour=_COLOUR,
        marker=marker,
        line="dashed",
        column_order=order,
        ablation_of="chunk_llama",
    )
    return ChunkbenchServer(f"ChunkLlama, {kv_dtype}", style, cache="radix", kv_dtype=kv_dtype)


SYSTEMS: Mapping[str, System] = {
    "chunk_llama": ChunkbenchServer(
        "ChunkLlama", Style(heading=("Chunk", "Llama"), colour=_COLOUR, marker="o", column_order=950)
    ),
    "chunk_llama_no_tpp": ChunkbenchServer(
        "ChunkLlama, no TPP",
        Style(
            heading=("Chunk", "Llama", "no TPP"),
            meaning="as ChunkLlama, without two-phase partition",
            colour=_COLOUR,
            marker="^",
            line="dashed",
            column_order=930,
            ablation_of="chunk_llama",
        ),
        attention="sequence-first",
    ),
    "chunk_llama_radix": ChunkbenchServer(
        "ChunkLlama, radix",
        Style(
            heading=("Chunk", "Llama", "radix"),
            meaning="as ChunkLlama, but chunks of finished requests stay for later requests, as in RadixAttention",
            colour=_COLOUR,
            marker="h",
            line="dashdot",
            column_order=940,
            ablation_of="chunk_llama",
        ),
        cache="radix",
    ),
    "chunk_llama_int8": _in_8_bits("int8", "s", 942),
    "chunk_llama_uint8": _in_8_bits("uint8", "D", 944),
    "chunk_llama_fp8": _in_8_bits("fp8", "^", 946),
    "chunk_llama_no_sharing": ChunkbenchServer(
        "ChunkLlama, no sharing",
        Style(
            heading=("Chunk", "Llama", "no shar."),
            meaning="as ChunkLlama, without shared chunks: each request computes and stores its whole prompt",
            colour=_COLOUR,
            marker="v",
            line="dotted",
            column_order=920,
            ablation_of="chunk_llama",
        ),
        attention="no-sharing",
    ),
    "unconstrained": ChunkbenchServer(
        "ChunkLlama, unconstrained",
        Style(
            heading=("uncon-", "strained"),
            meaning="the same prompts without a constraint",
            colour="#555555",
            marker="D",
            line="dashed",
            column_order=800,
        ),
        constraint="left out",
    ),
    "chunk_llama_mask": _following(
        "mask", "#D55E00", "o", 810, "tokens that break the constraint cannot be chosen", constrained="mask"
    ),
    "chunk_llama_interleaved": _following(
        "interleaved", "#E69F00", "v", 820, "fixed texts of a template are appended", constrained="interleaved"
    ),
    "chunk_llama_forced_tokens": _following(
        "forced tokens", "#009E73", "s", 830, "tokens that llguidance finds are appended", constrained="forced-tokens"
    ),
    "chunk_llama_jump_compiled": _following(
        "jump compiled",
        "#882255",
        "<",
        840,
        "like jump, but every request compiles its constraint",
        constrained="jump",
        compiled=0,
    ),
    "chunk_llama_jump": _following(
        "jump", "#0072B2", "^", 850, "bytes without a choice are appended", constrained="jump"
    ),
    "chunk_llama_jump_retokenize": _following(
        "jump, retokenize",
        "#56B4E9",
        "P",
        860,
        "like jump, and the answer is tokenised again",
        constrained="jump-retokenize",
    ),
    "openvino": _openvino(
        "no caching", "v", 240, "its pipeline GenAI without prefix caching, behind our HTTP server", cache="live"
    ),
    "openvino_prefix_caching": _openvino(
        "", "o", 242, "its pipeline GenAI with prefix caching, behind our HTTP server"
    ),
    "openvino_u8": _openvino(
        "8-bit K/V", "s", 244, "as OpenVINO, with K/V in 8 bits, its default on x86", kv_dtype="uint8"
    ),
    "transformers": ChunkbenchServer(
        "transformers",
        Style(colour="#6E6E6E", marker="s", column_order=300),
        engine="transformers",
        constraint="refused",
        note="transformers: its continuous batching with sdpa attention, behind our HTTP server; requests share pages.",
    ),
}
