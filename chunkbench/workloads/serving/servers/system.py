"""What a system must provide. A system is a server that is measured, with its settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from chunkbench.bench.contract import YES, Answer
from chunkbench.bench.experiment.point import element_bytes
from chunkbench.bench.experiment.terms import Dtype, Style
from chunkbench.kv_dtype import KvDtype, why_not_stored
from chunkbench.llama import LlamaShape
from chunkbench.workloads.serving.result import Moment


@dataclass(frozen=True)
class Setting:
    """The model and the limits that all servers of a run get."""

    shape: LlamaShape
    layers: int
    vocabulary: int
    max_length: int
    """Largest number of tokens of a request: prompt and answer together."""
    dtype: Dtype
    device: str
    kv_dtype: KvDtype
    """How servers store K and V, unless a system has its own form."""
    max_batch: int
    """Largest number of sequences in a step."""
    kv_bytes: int
    """Bytes of K/V memory for all layers."""
    threads: int
    seed: int = 0
    endpoint: str = ""
    """URL of the running server that the system `endpoint` measures."""
    constrained: bool = False
    """Whether answers follow constraints."""
    beams: bool = False
    """Whether beam search finds some of the answers."""
    checkpoint: Path | None = None
    """Folder with the model's weights. None if the weights are random."""

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token in all layers."""
        shape = self.shape.model_copy(update={"num_hidden_layers": self.layers})
        return shape.kv_bytes(element_bytes(self.dtype), self.kv_dtype)

    @property
    def weights(self) -> int:
        """Number of the model's weights. For a checkpoint, it is the size of the files divided by 2 bytes."""
        if self.checkpoint is not None:
            files = [file for end in ("*.safetensors", "pytorch_model*.bin") for file in self.checkpoint.glob(end)]
            return sum(file.stat().st_size for file in files) // 2
        shape = self.shape
        return self.layers * shape.layer_weights + 2 * self.vocabulary * shape.hidden_size

    def model_folder(self, folder: Path) -> Path:
        """The folder of the model: the checkpoint, or `folder` if there is no checkpoint. Without a checkpoint, this
        method writes a Hugging Face `config.json` into `folder`, and no weights.
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


class ServerFailed(RuntimeError):
    """The server did not start, or it ended. The message contains the last lines that it printed."""


@dataclass(frozen=True)
class Launch:
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the server, in addition to those of this process."""


class Watch:
    """Records what a server does. This base class records nothing."""

    sampled: ClassVar[bool] = False
    """Whether the server is only asked at intervals. Then peaks between two samples are missed."""

    def begin(self) -> None:
        """Begin to record, because a measurement of this server begins. `between` ends the recording."""

    def between(self, start: float, end: float) -> list[Moment]:
        """The recorded moments from `start` to `end`, which are times of `time.perf_counter`."""
        return []

    def constrained(self, start: float, end: float) -> Mapping[str, Mapping[str, Any]]:
        """Costs of following constraints: id of a request in the server -> name of the cost -> value.

        Contains the requests that the server received from `start` to `end`. `ConstrainedAnswers.work` lists the names.
        Empty if the server records no costs.
        """
        return {}

    def close(self) -> None:
        """Stop recording."""


@dataclass(frozen=True)
class OwnEnvironment:
    """The environment of a server that needs other versions of packages than ours."""

    name: str
    """`make NAME-environment` makes the environment .venv-NAME."""
    server: str
    """Words for messages."""
    cpu_only: bool = False
    """Whether we run this server on CPUs only."""

    @property
    def variable(self) -> str:
        """Name of an environment variable: path of the Python interpreter of another such environment."""
        return f"CHUNKBENCH_{self.name.upper().replace('-', '_')}_PYTHON"

    @property
    def python(self) -> Path | None:
        """Path of the Python interpreter. None if there is none."""
        named = os.environ.get(self.variable)
        path = Path(named) if named else Path(sys.prefix).parent / f".venv-{self.name}" / "bin" / "python"
        return path if path.is_file() else None

    def version(self, package: str) -> str:
        """Name and version of a package in this environment. Empty if it is not there."""
        code = f"from importlib.metadata import version; print({package!r}, version({package!r}))"
        done = subprocess.run([str(self.python), "-c", code], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def availability(self, device: str) -> Answer:
        if self.cpu_only and device != "cpu":
            return Answer(False, "runs on a CPU only here", "")
        if self.python is not None:
            return YES
        named = os.environ.get(self.variable)
        reason = f"{self.variable} names no file: {named}" if named else f"{self.server} has no environment here"
        remedy = f"`make {self.name}-environment` makes one, or {self.variable} names the Python of another"
        return Answer(False, reason, remedy)


Sharing = Literal["none", "storage", "reads"]
"""What the sequences of a server share of a common prefix. "none": each computes and stores its own K/V. "storage": K/V
is computed and stored once, and a step reads it once for each sequence. "reads": a step also reads it only once.
"""


class System(ABC):
    """A server that is measured, with its settings. Each run has one instance of each system."""

    label: str
    style: Style = Style()
    compiles: bool = False
    constraint: Literal["sent", "left out", "refused"] = "sent"
    """What happens to constraints in a constrained experiment. "sent": requests to this server contain them.
    "left out": requests to this server do not contain them. "refused": the system is not measured, because its server
    cannot follow constraints.
    """
    note: str = ""
    """A remark on this system that reports print."""
    ready_s: float = 180.0
    """Largest number of seconds to wait until the server answers."""
    start_s: float = 15.0
    """Approximate seconds until the server answers on a CPU. A run replaces it by the measured time."""
    exact: bool = True
    """Whether weights and K/V have the setting's dtype. If not, answers may differ from those of transformers."""
    kv_dtypes: tuple[KvDtype, ...] = ("same",)
    """Forms in which the server can store K and V."""
    sharing: Sharing = "none"
    process_bytes: int | None = 1_000_000_000
    """Approximate bytes of memory of the server's processes, without weights and K/V. None if the server runs
    elsewhere."""

    def besides(self, setting: Setting) -> int | None:
        """Bytes of memory that the server needs in addition to K/V. None if it runs elsewhere."""
        if self.process_bytes is None:
            return None
        return self.process_bytes + setting.weights * element_bytes(setting.dtype)

    @abstractmethod
    def availability(self, device: str) -> Answer:
        """Whether the server can run on this machine."""

    def refusal(self, setting: Setting) -> str:
        """Why the server cannot run with this setting. Empty if it can."""
        return why_not_stored(setting.kv_dtype, self.kv_dtypes)

    @abstractmethod
    def package_version(self) -> str:
        """Name and version of the package that contains the server."""

    @abstractmethod
    def launch(self, setting: Setting, folder: Path, port: int) -> Launch | None:
        """The command that starts the server on a port of 127.0.0.1. None if the server already runs.

        `folder`: folder for files of this server.
        """

    def ids_of(self, text: str) -> list[int]:
        """Token ids of an answer, from the text of a server that does not send ids. Empty if the text does not tell
        them."""
        return []

    def watch(self, url: str, setting: Setting, folder: Path) -> Watch:
        """Begin to watch the server at this URL. `folder`: the folder that `launch` got. Raises ServerFailed if the
        server computes something else than the setting asks for."""
        return Watch()

    def url(self, setting: Setting, port: int) -> str:
        """URL of the server. It may end with /v1."""
        return f"http://127.0.0.1:{port}"
