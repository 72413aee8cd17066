"""Small models with random weights for the tests of the engine."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from chunkbench.server.engine import Engine, EngineOptions, Model, Request
from chunkbench.server.engine.model import INTERFACE

VOCABULARY = 300
SCALES = {"embed_tokens": 50, "q_proj": 15, "k_proj": 15, "v_proj": 10, "o_proj": 10, "lm_head": 20, "sinks": 200}
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}


WINDOWED: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "mistral-window": (transformers.MistralConfig, {"sliding_window": 32}),
    "qwen2-window": (
        transformers.Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1},
    ),
    "phi3": (transformers.Phi3Config, {"sliding_window": 24, "head_dim": 16}),
    "gemma2": (
        transformers.Gemma2Config,
        {"sliding_window": 31, "attn_logit_softcapping": 4.0, "final_logit_softcapping": None},
    ),
    "gemma3": (transformers.Gemma3TextConfig, {"sliding_window": 48, "query_pre_attn_scalar": 20}),
    "gpt-oss": (
        transformers.GptOssConfig,
        {
            "sliding_window": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
}
"""Kind of model with sliding windows -> its configuration class and options."""


def config(kind: str) -> Any:
    """A configuration: llama, llama-grouped, qwen2, qwen3, mistral, or one of `WINDOWED`."""
    if kind in WINDOWED:
        made, options = WINDOWED[kind]
        return made(**SIZES | {"num_key_value_heads": 2, "num_hidden_layers": 3} | options)
    if kind == "llama":
        return transformers.LlamaConfig(**SIZES, num_key_value_heads=4)
    if kind == "llama-grouped":
        return transformers.LlamaConfig(**SIZES, num_key_value_heads=2)
    if kind == "mistral":
        return transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=None)
    classes = {"qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config}
    return classes[kind](**SIZES, num_key_value_heads=2)


END = 256
"""The token behind those of bytes; `MERGES` stand behind it."""
MERGES = *("na", "nam", "name", "ye", "yes", "xy", "xyz", "ab", "abc", "ca", "12", "no"), '":', '":"', '",', '","', '{"'


def byte_tokenizer(merges: Sequence[str] = ()) -> Tokenizer:
    """Tokens of bytes; with merges those, too, and an end of texts. Each merge adds a letter to another one."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*letters, "<end>", *merges] if merges else letters
    pairs = [(name[:-1], name[-1]) for name in merges if name[:-1] in names]
    tokenizer = Tokenizer(models.BPE({name: n for n, name in enumerate(names)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if merges:
        tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def sentencepiece_tokenizer() -> Tokenizer:
    """Tokens as Llama 2 has them: letters and some words, `\u2581` for a space, and bytes for all else."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *map(chr, range(33, 127))]
    pairs = [("y", "e"), ("ye", "s"), ("\u2581", "yes"), ("n", "o"), ("\u2581", "no"), ('"', ":"), ('"', ",")]
    names += [one + other for one, other in pairs]
    model = models.BPE({name: n for n, name in enumerate(names)}, pairs, byte_fallback=True, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def write_byte_tokenizer(checkpoint: Path, merges: Sequence[str] = ()) -> Path:
    """Give a checkpoint a tokenizer of bytes, and a chat template of one line for each message. Returns its folder."""
    return write_tokenizer(checkpoint, byte_tokenizer(merges))


def write_tokenizer(checkpoint: Path, tokenizer: Tokenizer) -> Path:
    """Give a checkpoint a tokenizer, and a chat template of one line for each message. Returns its folder."""
    saved = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    saved.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    saved.save_pretrained(checkpoint)
    return checkpoint


def sharp_module(kind: str, implementation: str) -> Any:
    """A model of transformers whose random weights are scaled up until attention decides the tokens.

    With plain random weights attention is nearly uniform and small beside the residual: an ignored prefix would change
    nothing.
    """
    torch.manual_seed(1)
    module = transformers.AutoModelForCausalLM.from_config(
        config(kind), dtype=torch.float32, attn_implementation=implementation
    )
    sharpen(module, SCALES)
    return module.eval()


def sharpen(module: Any, scales: Mapping[str, float]) -> None:
    """Multiply the weights whose names contain a key of `scales`."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            for part, factor in scales.items():
                if part in name:
                    parameter.mul_(factor)


def write_checkpoint(kind: str, folder: Path) -> Path:
    """A checkpoint with sharp random weights."""
    sharp_module(kind, "eager").save_pretrained(folder)
    return folder


@functools.cache
def small_model(kind: str = "llama-grouped") -> Model:
    """A model for tests that compare the engine with itself."""
    return Model(sharp_module(kind, INTERFACE))


CHUNK_BYTES = small_model().token_bytes() * 64
"""Of a chunk of the usual size."""


def small_engine(chunks: int = 64, **options: Any) -> Engine:
    """An engine of the small model with room for so many chunks."""
    return Engine(small_model(), EngineOptions(kv_bytes=CHUNK_BYTES * chunks, **options))


def answers_of(engine: Engine, *requests: Request) -> dict[str, list[int]]:
    """The tokens of every request, all added at once."""
    for request in requests:
        engine.add(request)
    answers: dict[str, list[int]] = {request.id: [] for request in requests}
    while not engine.idle:
        for made in engine.step().generated:
            answers[made.request].append(made.token)
    return answers


def run_groups(
    engine: Engine,
    groups: Sequence[Sequence[Request]],
    gone: Mapping[int, Sequence[str]] = MappingProxyType({}),
    arrivals: Sequence[int] = (),
) -> tuple[dict[str, list[int]], int]:
    """(the tokens of each answer, number of preemptions) of groups of answers. `gone`: number of a step -> requests
    that are dropped before it. `arrivals`: for each group, the step before which it is added; by default, the first.
    """
    waiting = sorted(zip(arrivals or [0] * len(groups), range(len(groups)), strict=True))
    answers: dict[str, list[int]] = {request.id: [] for group in groups for request in group}
    preempted = 0
    for step in itertools.count():
        while waiting and waiting[0][0] <= step:
            engine.add(*groups[waiting.pop(0)[1]])
        engine.drop(gone.get(step, []))
        if engine.idle and not waiting:
            break
        report = engine.step()
        assert not report.failed
        preempted += report.preempted
        for made in report.generated:
            answers[made.request].append(made.token)
    assert engine.kv_bytes == 0
    assert engine.running == 0
    return answers, preempted
