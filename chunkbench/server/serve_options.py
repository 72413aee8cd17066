"""The options of `chunkbench serve`, without large imports, so that the command line starts fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chunkbench.kv_dtype import KV_DTYPES, KvDtype

if TYPE_CHECKING:
    from chunkbench.attention.windows import Compress
    from chunkbench.server.build import EngineName
    from chunkbench.server.constrained import Method
    from chunkbench.server.engine.engine import Attention, Cache, Draft, Schedule


SERVED_FORMS: Mapping[EngineName, tuple[KvDtype, ...]] = {
    "chunk": KV_DTYPES,
    "openvino": ("same", "uint8"),
    "transformers": ("same",),
}
"""How each engine can store K and V."""


@dataclass(frozen=True)
class ServeOptions:
    """Options of the model, the engine and the web application. `chunkbench serve --help` explains each."""

    model: str
    engine: EngineName
    attention: Attention
    cache: Cache | None
    schedule: Schedule
    constrained: Method
    compiled: int
    heads: Path | None
    window: int | None
    compress: Compress
    draft: Draft
    draft_tokens: int
    layers: int | None
    vocabulary: int | None
    max_length: int | None
    seed: int
    dtype: str
    kv_dtype: KvDtype
    device: str
    max_batch: int
    prompt_budget: int
    kv_memory: str
    chunk_size: int
    max_waiting: int
    host: str
    port: int
    shutdown_timeout: int
    served_name: str | None
    allow_origin: tuple[str, ...]
    log: Path | None

    @property
    def kv_bytes(self) -> int:
        """The option `--kv-memory` in bytes. Raises ValueError."""
        from pydantic import ByteSize, TypeAdapter

        return TypeAdapter(ByteSize).validate_python(self.kv_memory)
