"""Writes GGUF files, which llama.cpp reads, for models of the Llama family.

The text of token i is "i," so that a server streams the text of every token at once. A real vocabulary would hold back
tokens whose bytes are no whole character, and needs a tokenizer, which random weights do not have. The servers get
prompts as token ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from chunkbench.server.engine.errors import ModelError
from chunkbench.server.engine.model import ModelNumbers, refuse_other_attention
from chunkbench.server.smollm2 import LAYER

if TYPE_CHECKING:
    from gguf import GGUFWriter

_NAMES = {name: of_gguf for of_gguf, name in LAYER.items()}
"""Tensors of a layer: name in transformers -> name in GGUF."""
_KINDS = ("llama", "mistral")
"""Kinds of models of transformers that can be written. Both are "llama" in GGUF."""
_ENDS = ("eos", "eot", "eom")
"""Names of the tokens that end an answer. GGUF has one field for each."""


def write_gguf(module: Any, path: Path, dtype: torch.dtype) -> None:
    """Write a model of transformers. Norms are float32, as in files of llama.cpp. Raises ModelError for a model of
    another family."""
    kind = module.config.model_type
    if kind not in _KINDS:
        raise ModelError(f"a model of the kind {kind}: only {' and '.join(_KINDS)} can be written as GGUF")
    refuse_other_attention(module.config)
    _write(path, module.config, sorted(ModelNumbers(module).eos_ids), _tensors(module, dtype))


def write_packed(source: Path, module: Any, path: Path) -> None:
    """Write the tensors of the GGUF file `source` as they are, such as weights in 4 bits. `module`: the same model in
    transformers."""
    from gguf import GGUFReader

    tensors = GGUFReader(source).tensors
    ends = sorted(ModelNumbers(module).eos_ids)
    _write(path, module.config, ends, ((one.name, one.data, one.tensor_type) for one in tensors))


def _tensors(module: Any, dtype: torch.dtype) -> Iterable[tuple[str, Any, Any]]:
    heads = {"attn_q": module.config.num_attention_heads, "attn_k": module.config.num_key_value_heads}
    others = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    if not module.config.tie_word_embeddings:
        others["lm_head"] = "output"
    for name, weight in module.state_dict().items():
        _, _, rest = name.removesuffix(".weight").partition("layers.")
        layer, _, kind = rest.partition(".")
        if not layer and name.removesuffix(".weight") not in others:
            continue  # the head, if it is the embedding
        wanted = _NAMES.get(kind, "")
        if wanted in heads:  # GGUF stores the two numbers of a rotary pair side by side, transformers half a head apart
            rows = weight.view(heads[wanted], 2, -1, weight.shape[1])
            weight = rows.transpose(1, 2).reshape(weight.shape)
        told = f"blk.{layer}.{wanted}" if layer else others[name.removesuffix(".weight")]
        yield f"{told}.weight", weight.to(torch.float32 if weight.dim() == 1 else dtype).numpy(), None
    rotary = module.model.rotary_emb.inv_freq.float()
    base: float = module.config.rope_parameters["rope_theta"]
    plain = base ** -(torch.arange(len(rotary)) / len(rotary))
    if not torch.allclose(rotary, plain, rtol=1e-5):  # Llama 3 stretches its slow frequencies
        yield "rope_freqs.weight", (plain / rotary).numpy(), None


def _write(path: Path, config: Any, ends: Iterable[int], tensors: Iterable[tuple[str, Any, Any]]) -> None:
    from gguf import GGUFWriter

    writer: GGUFWriter = GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"{token}," for token in range(config.vocab_size)])
    writer.add_token_types([1] * config.vocab_size)
    writer.add_token_merges(["0 ,"])  # readers refuse a file without any; a server that gets token ids needs none
    writer.add_add_bos_token(False)
    for name, token in zip(_ENDS, ends, strict=False):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    for name, data, kind in tensors:
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
