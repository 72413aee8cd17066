"""Runs a decoder-only model of transformers, with our kernels for its attention."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from chunkbench.attention import RaggedChunkAttention
from chunkbench.kernels.cpu.store import dtype_name
from chunkbench.kv_dtype import KvDtype, kv_bytes
from chunkbench.llama import WEIGHTS, LlamaShape
from chunkbench.pins import SERVING_INSTALL
from chunkbench.server.engine.attention import attention_of
from chunkbench.server.engine.errors import ModelError
from chunkbench.server.engine.llama import LlamaForward, fits, pack_linear_layers

try:
    import transformers
except ModuleNotFoundError as error:
    raise ModelError(f"the engine needs transformers: {SERVING_INSTALL}") from error
transformers.utils.logging.disable_progress_bar()

PART = 128
INTERFACE = "chunkbench"
"""Name under which our attention function is registered in transformers."""


class ModelNumbers:
    """Sizes and settings of a causal language model of transformers, read from its configuration."""

    def __init__(self, module: Any) -> None:
        config = module.config
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or self.heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.vocabulary: int = config.vocab_size
        self.max_length: int = getattr(config, "max_position_embeddings", 2**31)
        """Maximum number of tokens of a sequence: prompt and answer together."""
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type") == "longrope":
            # A step with a longer sequence would change the positions of all others.
            self.max_length = min(self.max_length, rope["original_max_position_embeddings"])
        eos = module.generation_config.eos_token_id
        ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
        if not all(type(one) is int for one in ids):
            raise ModelError(f"the model's eos_token_id is {eos!r:.80}, not a token id or a list of token ids")
        self.eos_ids = frozenset(ids)
        """Token ids that end an answer, as for `generate` of transformers."""
        self.weights: str = getattr(config, WEIGHTS, "")
        """A note on the origin of the weights, for reports; empty if there is none."""
        self.dtype: torch.dtype = module.dtype
        self.device: torch.device = module.device

    def token_bytes(self, kv_dtype: KvDtype = "same") -> int:
        """Bytes of the K and V of one token in all layers."""
        return self.layers * self.kv_heads * kv_bytes(self.head_dim, self.dtype.itemsize, kv_dtype)

    def facts(self) -> dict[str, Any]:
        """Facts that identify the model in stored results."""
        return {
            "kv_bytes_per_token": self.token_bytes(),
            "layers": self.layers,
            "dtype": dtype_name(self.dtype),
            **({"weights": self.weights} if self.weights else {}),
        }


class Model(ModelNumbers):
    """A model's weights and its forward pass."""

    def __init__(self, module: Any) -> None:
        """`module`: a model from `load_module` or `random_module`, on its device. Raises ModelError."""
        super().__init__(module)
        self.policy, self.softcap = attention_of(module.config)
        """Windows and soft-capping of its layers: see `ModelAttention`."""
        self._llama = LlamaForward(module) if fits(module) else None
        self._module: Any = None
        if self._llama is None:
            pack_linear_layers(module)
            self._module = module.eval()

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"forward": "transformers" if self._llama is None else "native"}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of the parts of the latest step: see `StepReport.parts`."""
        return {} if self._llama is None else self._llama.seconds

    @torch.inference_mode()
    def logits(
        self, tokens: list[int], positions: list[int], rows: list[int], attention: RaggedChunkAttention
    ) -> torch.Tensor:
        """Compute a step. Returns the logits `[len(rows), vocabulary]` of the tokens with the indices `rows`.
        `attention` must have planned the step."""
        self._check(attention)
        if self._llama is not None:
            return self._llama.logits(tokens, positions, rows, attention)
        output = self._module(
            input_ids=torch.tensor([tokens], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            use_cache=False,
            logits_to_keep=torch.tensor(rows, device=self.device),
            chunk_attention=attention,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    @torch.inference_mode()
    def logits_in_parts(
        self, tokens: list[int], positions: list[int], rows: list[int], attention: RaggedChunkAttention
    ) -> Iterator[torch.Tensor]:
        """Like `logits`, but gives the rows in parts of at most `PART`, because the logits of a whole prompt take
        much memory."""
        self._check(attention)
        if self._llama is None:
            yield from self.logits(tokens, positions, rows, attention).split(PART)
        else:
            yield from map(self._llama.head, self._llama.hidden(tokens, positions, rows, attention).split(PART))

    def _check(self, attention: RaggedChunkAttention) -> None:
        policy = attention.policy if attention.policy is not None and attention.policy.exact else None
        if (policy, attention.softcap) != (self.policy, self.softcap):
            raise ModelError("this cache was made for a model with other sliding windows or another soft-capping")


def load_module(folder: Path, dtype: torch.dtype, attention: str = INTERFACE) -> Any:
    """Load a causal language model of transformers from a local checkpoint folder. Raises ModelError, before the
    weights load if the engine cannot compute its attention."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: not a checkpoint, because it has no config.json")
    with reading_with_transformers(folder):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if attention == INTERFACE:
        attention_of(config)
    with reading_with_transformers(folder):
        module, found = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            attn_implementation=attention,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    if missing := sorted(found["missing_keys"]):  # transformers draws missing weights at random, with a warning
        raise ModelError(f"{folder}: {len(missing)} of the model's weights are missing, such as {missing[0]}")
    return module


@contextlib.contextmanager
def reading_with_transformers(path: Path | str) -> Iterator[None]:
    """A context that turns every exception into a ModelError, because transformers raises many different ones for
    damaged files."""
    try:
        yield
    except Exception as error:
        raise ModelError(f"{path}: transformers cannot read it: {type(error).__name__}: {error}") from error


def random_module(config: Any, dtype: torch.dtype, attention: str = INTERFACE, seed: int = 0) -> Any:
    """Make a causal language model of transformers with random weights. It is as fast as a trained model, but its
    answers have no meaning. The same seed gives the same weights for every `attention`. Raises ModelError if the engine
    cannot compute its attention."""
    if attention == INTERFACE:
        attention_of(config)
    torch.manual_seed(seed)
    setattr(config, WEIGHTS, "")  # this key describes the weights of a checkpoint
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)


def llama_config(shape: LlamaShape, layers: int | None = None, vocabulary: int = 32000, max_length: int = 16384) -> Any:
    """transformers' configuration of a Llama-like shape. `layers`: number of layers, if not the shape's own."""
    return transformers.LlamaConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=layers or shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        vocab_size=vocabulary,
        max_position_embeddings=max_length,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
    )


def refuse_other_attention(config: Any) -> None:
    """Raise ModelError unless the model uses full attention, for callers that compute no other."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention"}:
        other = ", ".join(sorted(kinds - {"full_attention"}))
        raise ModelError(f"this model has layers of the kind {other}; only full attention is possible here")
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        raise ModelError(
            f"this model has a sliding window of {config.sliding_window} tokens; only full attention is possible here"
        )
    if getattr(config, "attn_logit_softcapping", None):
        raise ModelError("this model caps its attention scores (soft-capping), which is not possible here")


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    chunk_attention: RaggedChunkAttention | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls: takes query, key and value `[1, heads, tokens, d]`, returns `[1,
    tokens, heads, d]`."""
    if chunk_attention is None:
        raise ModelError("this attention runs inside the engine only: it needs the argument chunk_attention")
    layer, policy = module.layer_idx, chunk_attention.policy
    window = policy.exact_window if policy is not None and not any(policy.full[layer]) else None
    if others.get("sliding_window") not in (None, window) or (others.get("softcap") or 0) != chunk_attention.softcap:
        told = {name: others.get(name) for name in ("sliding_window", "softcap")}
        raise ModelError(f"layer {layer}: transformers asks for {told}, which the model's configuration does not say")
    if not getattr(module, "is_causal", True):
        raise ModelError(f"layer {layer}: the attention is not causal")
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    usual = chunk_attention.head_dim**-0.5  # the kernels always use this scale
    if scaling is not None and abs(scaling / usual - 1) > 1e-6:
        q = q * (scaling / usual)
    chunk_attention.write_selected(layer, k, v)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    chunk_attention.attend_selected(layer, q, out, others.get("s_aux"))
    return out[None], None


transformers.AttentionInterface.register(INTERFACE, _attend)
