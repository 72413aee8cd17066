"""Shapes of models: known models, and config files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chunkbench.llama import ShapeError, shape_of

CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 32000,
}


def test_llama2_7b_needs_half_a_mebibyte_per_token() -> None:
    assert shape_of("llama2-7b").kv_bytes() == 512 * 1024
    assert shape_of("llama3-8b").kv_bytes() == 128 * 1024


@pytest.mark.parametrize("folder", [False, True])
def test_a_config_file_may_omit_fields_with_defaults(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    shape = shape_of(str(tmp_path if folder else path))
    assert (shape.name, shape.num_key_value_heads, shape.head_dim) == ("llama", 8, 128)
    path.write_text(json.dumps(CONFIG | {"num_key_value_heads": 2, "head_dim": 64}))
    assert shape_of(str(path)).kv_bytes() == 2 * 2 * 2 * 64 * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "must hold a JSON object"),
        (json.dumps({"hidden_size": 64}), "intermediate_size: Input should be a valid integer"),
        (json.dumps(CONFIG | {"num_key_value_heads": 3}), "not a multiple of num_key_value_heads = 3"),
        (json.dumps(CONFIG | {"num_attention_heads": 0}), "num_attention_heads: Input should be greater than 0"),
    ],
)
def test_an_invalid_config_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ShapeError, match=message):
        shape_of(str(path))


@pytest.mark.parametrize(
    ("name", "message"), [("llama2-7", "did you mean llama2-7b"), ("nowhere/config.json", "No such file")]
)
def test_an_unknown_model_gets_a_hint(name: str, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        shape_of(name)
