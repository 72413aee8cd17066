"""The contract of a system: a server under test, and how to observe it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from chunkbench.bench.contract import Answer
from chunkbench.bench.experiment.point import element_bytes
from chunkbench.bench.experiment.terms import Dtype, Style
from chunkbench.llama import LlamaShape
from chunkbench.workloads.serving.result import Moment


@dataclass(frozen=True)
class Setting:
    """The setting that all systems of a run get."""

    shape: LlamaShape
    """Shape of the model."""
    layers: int
    vocabulary: int
    max_length: int
    """Largest number of tokens of prompt and answer together."""
    dtype: Dtype
    device: str
    max_batch: int
    """Largest number of sequences in a step."""
    kv_bytes: int
    """Bytes for K and V of all layers."""
    threads: int
    seed: int = 0
    endpoint: str = ""
    """URL of a server that already runs, for the system `endpoint`."""
    constrained: bool = False
    """Whether answers follow constraints."""
    checkpoint: Path | None = None
    """Folder of the model's weights; None: weights are random."""

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token in all layers."""
        shape = self.shape.model_copy(update={"num_hidden_layers": self.layers})
        return shape.kv_bytes(element_bytes(self.dtype))

    @property
    def weights(self) -> int:
        """Number of weights in products and embeddings. For a checkpoint: computed from the size of its files, at 16
        bits per weight.
        """
        if self.checkpoint is not None:
            files = [file for end in ("*.safetensors", "pytorch_model*.bin") for file in self.checkpoint.glob(end)]
            return sum(file.stat().st_size for file in files) // 2
        shape = self.shape
        rows = shape.qkv_size + shape.num_attention_heads * shape.head_dim + 3 * shape.intermediate_size
        return shape.hidden_size * (self.layers * rows + 2 * self.vocabulary)

    def model_folder(self, folder: Path) -> Path:
        """The folder of the model: its checkpoint; without one `folder`, after writing a Hugging Face `config.json`
        without weights.
        """
        if self.checkpoint is not None:
            return self.checkpoint
        config = {
            **self.shape.model_dump(exclude={"name"}),
            "num_hidden_layers": self.layers,
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.max_length,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": None,
            "torch_dtype": self.dtype,
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return folder


@dataclass(frozen=True)
class Launch:
    """Command and environment variables that start a server."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables besides those of this process."""


class Watch:
    """Observes a running server. This base class observes nothing."""

    sampled: ClassVar[bool] = False
    """Whether moments are samples, so that peaks between two samples are missed."""

    def begin(self) -> None:
        """Called when a measurement of this server begins. `between` ends the measurement."""

    def between(self, start: float, end: float) -> list[Moment]:
        """The states of the server in a window of time."""
        return []

    def constrained(self, start: float, end: float) -> Mapping[str, Mapping[str, Any]]:
        """Name of a request in the server -> cost of following its constraint, in the terms of `serving.constrained`;
        for requests that ended in a window of time. Empty if the server does not record such costs.
        """
        return {}

    def close(self) -> None:
        """Stop observing."""


class System(ABC):
    """A server under test with its settings. A run has one instance of each."""

    label: str
    style: Style = Style()
    compiles: bool = False
    constraint: Literal["sent", "left out", "refused"] = "sent"
    """Whether requests of a constrained experiment name their constraint: yes (sent), no (left out), or never, because
    this server follows no constraints (refused).
    """
    note: str = ""
    """Remark about this system that a reader must know."""
    ready_s: float = 180.0
    """Largest number of seconds to wait until the server listens."""
    start_s: float = 15.0
    """Approximate seconds until the server listens on a CPU; a run measures them."""
    process_bytes: int | None = 1_000_000_000
    """Approximate bytes of the server's processes without weights and K/V; None if the server runs elsewhere."""

    def besides(self, setting: Setting) -> int | None:
        """Bytes of memory that the server holds besides K/V; None if it holds nothing on this machine."""
        if self.process_bytes is None:
            return None
        return self.process_bytes + setting.weights * element_bytes(setting.dtype)

    @abstractmethod
    def availability(self, device: str) -> Answer:
        """Whether the system runs here."""

    @abstractmethod
    def package_version(self) -> str:
        """Name and version of the package that serves."""

    @abstractmethod
    def launch(self, setting: Setting, folder: Path, port: int) -> Launch | None:
        """The command of a server that listens on this port of the loopback; None if the server already runs.

        `folder` is for files of this server.
        """

    def watch(self, url: str, setting: Setting, folder: Path) -> Watch:
        """Begin to observe the server at this URL."""
        return Watch()

    def url(self, setting: Setting, port: int) -> str:
        """The URL of the server, with or without /v1."""
        return f"http://127.0.0.1:{port}"
