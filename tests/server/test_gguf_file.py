"""GGUF files that we write, read by transformers, which has a reader of its own."""

from __future__ import annotations

import pytest

pytest.importorskip("gguf")
pytest.importorskip("transformers")

import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from chunkbench.server.engine.errors import ModelError
from chunkbench.server.engine.model import random_module
from chunkbench.server.gguf_file import write_gguf, write_packed

LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
IDS = torch.tensor([[3, 50, 7, 88, 21, 4, 4, 90]])


def model(tied=False, seed=0, **settings):
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=100, max_position_embeddings=256, tie_word_embeddings=tied, eos_token_id=[5, 9],
        **settings,
    )  # fmt: skip
    return random_module(config, torch.float32, "sdpa", seed).eval()


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_reads_the_file_as_the_same_model(tmp_path, tied):
    module = model(tied=tied)
    write_gguf(module, tmp_path / "model.gguf", torch.float32)
    other = model(tied=tied, seed=1)
    read = load_gguf_checkpoint(tmp_path / "model.gguf", return_tensors=True, model_to_load=other)
    other.load_state_dict(read["tensors"], strict=not tied)
    with torch.inference_mode():
        torch.testing.assert_close(other(IDS).logits, module(IDS).logits, atol=1e-5, rtol=1e-4)
    packed = tmp_path / "packed.gguf"
    write_packed(tmp_path / "model.gguf", module, packed)
    assert packed.read_bytes() == (tmp_path / "model.gguf").read_bytes()


def test_fields_and_stretched_frequencies(tmp_path):
    from gguf import GGUFReader

    module = model(rope_parameters=LLAMA_3)
    write_gguf(module, tmp_path / "model.gguf", torch.float16)
    reader = GGUFReader(tmp_path / "model.gguf")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    factors = torch.tensor(tensors["rope_freqs.weight"].data)
    plain = 10000.0 ** -(torch.arange(8) / 8)
    torch.testing.assert_close(plain / factors, module.model.rotary_emb.inv_freq)
    assert factors.max() == 8.0
    assert tensors["blk.1.ffn_up.weight"].data.dtype.name == "float16"
    assert tensors["blk.1.ffn_norm.weight"].data.dtype.name == "float32"
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["tokenizer.ggml.tokens"][:2] == ["0,", "1,"]
    assert (fields["tokenizer.ggml.eos_token_id"], fields["tokenizer.ggml.eot_token_id"]) == (5, 9)


def test_a_model_of_another_family_is_refused(tmp_path):
    with pytest.raises(ModelError, match="gpt2: only llama and mistral can be written as GGUF"):
        write_gguf(random_module(transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=99),
                                 torch.float32, "sdpa"), tmp_path / "x", torch.float32)  # fmt: skip
