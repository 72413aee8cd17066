"""The system `endpoint`: a server that already runs, on this machine or elsewhere."""

from __future__ import annotations

from pathlib import Path

from chunkbench.bench.contract import YES, Answer
from chunkbench.bench.experiment.terms import Style
from chunkbench.workloads.serving.servers.system import Launch, Setting, System


class Endpoint(System):
    """Any server that speaks OpenAI's protocol and accepts token ids. ChunkBench does not set its limits."""

    label = "endpoint"
    style = Style(colour="#009E73", marker="X", column_order=400)
    start_s = 0.0
    process_bytes = None
    note = "endpoint: a server that already ran; the suite set none of its limits."

    def availability(self, device: str) -> Answer:
        return YES

    def package_version(self) -> str:
        return ""

    def launch(self, setting: Setting, folder: Path, port: int) -> Launch | None:
        return None

    def url(self, setting: Setting, port: int) -> str:
        return setting.endpoint
