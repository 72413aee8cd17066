"""Shapes of decoder layers, from which the bytes and FLOPs of a Llama-like model are computed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from chunkbench.kv_dtype import KvDtype, kv_bytes
from chunkbench.text_file import TextError, did_you_mean, from_json, problem_of, read_text

_Count = Annotated[int, Field(gt=0, lt=2**31)]

WEIGHTS = "chunkbench_weights"
"""The key of `config.json` that sets `LlamaShape.weights`."""


class ShapeError(ValueError):
    """The model is unknown, or its `config.json` lacks a value."""


class LlamaShape(BaseModel):
    """A model with rotary positions, a gated MLP and grouped heads. Field names are those of Hugging Face."""

    model_config = ConfigDict(frozen=True)

    name: str
    hidden_size: _Count
    intermediate_size: _Count
    num_hidden_layers: _Count
    num_attention_heads: _Count
    num_key_value_heads: _Count
    head_dim: _Count
    folder: Annotated[str, Field(exclude=True)] = ""
    """Folder of the checkpoint with the model's weights; empty if there is none. It is also empty for `smollm2-135m`,
    whose weights are found by this name."""
    weights: Annotated[str, Field(exclude=True)] = ""
    """Notes on a checkpoint's weights, besides their dtype, that a reader needs to know; empty if there are none."""

    def __str__(self) -> str:
        return self.name

    @model_validator(mode="after")
    def _heads_divide(self) -> LlamaShape:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads = {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads = {self.num_key_value_heads}"
            )
        return self

    @property
    def qkv_size(self) -> int:
        """Columns of the Q, K and V matrices together."""
        return (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Number of weights of the matrices of one layer."""
        attention = self.qkv_size + self.num_attention_heads * self.head_dim
        return self.hidden_size * (attention + 3 * self.intermediate_size)

    def kv_bytes(self, element_bytes: int = 2, kv_dtype: KvDtype = "same") -> int:
        """Bytes of K and V of one token in all layers."""
        return self.num_hidden_layers * self.num_key_value_heads * kv_bytes(self.head_dim, element_bytes, kv_dtype)


def _llama(
    name: str, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, weights: str = ""
) -> LlamaShape:
    return LlamaShape(
        name=name,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        weights=weights,
    )


SHAPES = {
    shape.name: shape
    for shape in (
        _llama("llama2-7b", 4096, 11008, 32, 32, 32),
        _llama("llama2-13b", 5120, 13824, 40, 40, 40),
        _llama("llama2-70b", 8192, 28672, 80, 64, 8),
        _llama("llama3-8b", 4096, 14336, 32, 32, 8),
        _llama("llama3-70b", 8192, 28672, 80, 64, 8),
        _llama("mistral-7b", 4096, 14336, 32, 32, 8),
        _llama("smollm2-135m", 576, 1536, 30, 9, 3, "4-bit, dequantised"),
        # For servers on two cores: attention takes about twice the time of the products at 2048 tokens, as on the
        # paper's GPU (Table 1).
        LlamaShape(
            name="small-llama",
            hidden_size=2048,
            intermediate_size=5504,
            num_hidden_layers=2,
            num_attention_heads=32,
            num_key_value_heads=32,
            head_dim=128,
        ),
    )
}


def shape_of(model: str) -> LlamaShape:
    """The shape of a known model, or of a Hugging Face `config.json`. Raises `ShapeError`."""
    if model in SHAPES:
        return SHAPES[model]
    path = Path(model)
    if os.path.isdir(model):
        path = path / "config.json"
    if path.suffix != ".json":
        shown = model if len(model) <= 200 else f"{model[:200]}..."
        raise ShapeError(f"{shown}: neither a known model nor a config.json{did_you_mean(shown, list(SHAPES))}")
    try:
        config = from_json(read_text(path))
    except TextError as error:
        raise ShapeError(str(error)) from None
    except ValueError as error:
        raise ShapeError(f"{path}: {error}") from None
    if not isinstance(config, dict):
        raise ShapeError(f"{path}: must hold a JSON object, as a config.json of Hugging Face does")
    return _from_config(config, path)


def _from_config(config: dict[str, Any], path: Path) -> LlamaShape:
    """Fill in fields that older files leave out: num_key_value_heads is then the number of heads, and head_dim is
    hidden_size / heads."""
    fields: dict[str, Any] = {
        name: config.get(name) for name in LlamaShape.model_fields if name not in ("name", "folder", "weights")
    }
    heads, hidden = fields["num_attention_heads"], fields["hidden_size"]
    if fields["num_key_value_heads"] is None:
        fields["num_key_value_heads"] = heads
    if fields["head_dim"] is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        fields["head_dim"] = hidden // heads
    name = str(config.get("_name_or_path") or config.get("model_type") or path.parent.name or "model")
    checkpoint = {"folder": str(path.parent), "weights": config.get(WEIGHTS, "")} if _has_weights(path.parent) else {}
    try:
        return LlamaShape(name=name, **fields, **checkpoint)
    except ValidationError as error:
        wrong = "; ".join(map(problem_of, error.errors()))
        raise ShapeError(f"{path}: not the config of a Llama-like model: {wrong}") from None


def _has_weights(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in ("*.safetensors", "pytorch_model*.bin"))
