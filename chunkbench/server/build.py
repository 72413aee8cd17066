"""Loads a checkpoint, or makes a model with random weights, and builds the engine for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

from chunkbench.llama import SHAPES
from chunkbench.server import smollm2
from chunkbench.server.backend import Backend, ChunkBackend
from chunkbench.server.engine import Engine, EngineOptions, Model, ModelError
from chunkbench.server.engine.model import (
    INTERFACE,
    ModelNumbers,
    llama_config,
    load_module,
    random_module,
    reading_with_transformers,
)
from chunkbench.server.openvino_backend import OpenVINOBackend, check_openvino
from chunkbench.server.transformers_backend import TransformersBackend

EngineName = Literal["chunk", "transformers", "openvino"]


@dataclass(frozen=True)
class ModelChoice:
    """The model that a server runs."""

    model: str
    """With trained weights: the folder of a checkpoint, or `smollm2-135m`. With random weights: the name of any other
    shape, or the path of a config.json."""
    dtype: torch.dtype
    device: str = "cpu"
    layers: int | None = None
    """Number of layers of a named shape. None: as many as the shape has."""
    vocabulary: int | None = None
    """Size of the vocabulary of a named shape. None: 32000."""
    max_length: int | None = None
    """Maximum number of tokens of a sequence of a named shape. None: 16384."""
    seed: int = 0

    @property
    def folder(self) -> Path | None:
        """Folder of the checkpoint; None for random weights. Raises ModelError."""
        if self.model == smollm2.NAME:
            return smollm2.checkpoint()
        path = Path(self.model)
        shape = self.model in SHAPES or (path.suffix == ".json" and not path.is_dir())
        return None if shape else path

    @property
    def name(self) -> str:
        """The model's name in requests of clients."""
        if self.model in SHAPES:
            return self.model
        path = Path(os.path.abspath(self.model))  # a link keeps the name that its user gave it
        if self.folder is not None:
            return text_of(path.name)
        return text_of(path.parent.name if path.name == "config.json" else path.stem)

    def config(self) -> Any:
        """The configuration of a model with random weights, as an object of transformers. Raises ModelError."""
        if self.model in SHAPES:
            return llama_config(SHAPES[self.model], self.layers, self.vocabulary or 32000, self.max_length or 16384)
        with reading_with_transformers(self.model):
            return transformers.AutoConfig.from_pretrained(self.model, local_files_only=True, trust_remote_code=False)

    def check(self) -> None:
        """Raise ModelError if the model is unknown, or if an option does not apply to it."""
        folder = self.folder
        if folder is not None and not folder.is_dir():
            raise ModelError(
                f"{folder}: not a folder of a checkpoint, a config.json or the name of a shape ({', '.join(SHAPES)})"
            )
        given = {"layers": self.layers, "vocabulary": self.vocabulary, "max_length": self.max_length}
        for name, value in given.items():
            if value is not None and (folder is not None or self.model not in SHAPES):
                raise ModelError(f"{name} applies only to a named shape; {self.model} has its own")


def text_of(name: str) -> str:
    """A file name or argument as text. U+FFFD replaces bytes that are not UTF-8."""
    return os.fsencode(name).decode(errors="replace")


def build_backend(
    choice: ModelChoice,
    engine: EngineName,
    options: EngineOptions,
    say: Callable[[str], None],
    check: Callable[[ModelNumbers], None] = lambda numbers: None,
) -> tuple[Backend, int]:
    """Load the model and build its engine. Returns the engine, and the maximum number of tokens of prompt and answer
    together.

    `say` receives a line of text before each slow part. `check` may raise an error to refuse the model. Raises
    EngineError and ValueError.
    """
    if engine == "openvino":
        check_openvino(choice.dtype, choice.device)
    if choice.model == smollm2.NAME:
        say(f"{choice.name}: looking for its checkpoint; the first time it is made, in some seconds")
    choice.check()
    say(f"{choice.name}: {'drawing random' if choice.folder is None else 'loading the'} weights")
    attention = INTERFACE if engine == "chunk" else "sdpa"
    if choice.folder is not None:
        module = load_module(choice.folder, choice.dtype, attention)
    else:
        config = choice.config()
        with reading_with_transformers(choice.model):
            module = random_module(config, choice.dtype, attention, choice.seed)
    module = module.to(choice.device)
    numbers = ModelNumbers(module)
    check(numbers)
    if weights := numbers.weights:
        say(f"{choice.name}: weights: {weights} to {str(choice.dtype).removeprefix('torch.')}")
    say(f"{choice.name}: preparing the engine: weights in the layout of the kernels, memory for K/V")
    if engine == "openvino":
        openvino = OpenVINOBackend(module.eval(), options)
        return openvino, openvino.max_length
    if engine == "transformers":
        backend = TransformersBackend(module.eval(), options)
        return backend, backend.max_length
    served = Engine(Model(module), options)
    return ChunkBackend(served), served.max_length
