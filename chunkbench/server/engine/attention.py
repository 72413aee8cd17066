"""Reads from a model's configuration which attention its layers have, and refuses what the engine cannot compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from chunkbench.attention.windows import HeadPolicy
from chunkbench.kernels import cpu
from chunkbench.server.engine.errors import ModelError

_KINDS = {"full_attention", "sliding_attention"}
_OTHERS: Mapping[str, str] = {
    "per_layer_attributes": "its layers differ in size",
    "is_encoder_decoder": "it has an encoder",
    "use_bidirectional_attention": "its attention is not causal",
    "num_kv_shared_layers": "its last layers read K and V of other layers",
    "kv_lora_rank": "its attention is latent",
}
"""Fields that must be empty, 0 or false."""
_SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")


class ModelAttention(NamedTuple):
    """The attention of a model, as far as it is not the usual one."""

    policy: HeadPolicy | None
    """The layers with sliding windows; None if all layers have full attention."""
    softcap: float
    """Soft-capping of the scores; 0 if there is none."""


def attention_of(config: Any) -> ModelAttention:
    """The attention of a model with this configuration of transformers. Raises ModelError, which names the field, if
    the engine cannot compute it."""
    if config.get_text_config() is not config:
        raise _refused(config, "text_config", "it reads more than text; a checkpoint of its text model alone may run")
    for field, why in _OTHERS.items():
        if getattr(config, field, None):
            raise _refused(config, field, why)
    for field in ("is_decoder", "is_causal"):
        # GPT-NeoX has the field is_decoder, but is always causal.
        if getattr(config, field, True) is False and config.model_type != "gpt_neox":
            raise _refused(config, field, "its attention is not causal")
    for field in _SIZES:
        if type(getattr(config, field, None)) is not int:
            raise _refused(config, field, "the engine needs one number")
    # Imported here because `model` says what to install if transformers is missing.
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    found = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if found is not None and not (found[0] if isinstance(found, tuple) else found).is_backend_compatible():
        raise _refused(config, "model_type", "transformers gives its attention no other kernel")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if type(head_dim) is not int or head_dim % 16:
        raise _refused(config, "head_dim", f"heads of {head_dim} numbers: it must be one multiple of 16")
    if getattr(config, "v_head_dim", None) not in (None, head_dim):
        raise _refused(config, "v_head_dim", f"V and K, of {head_dim} numbers, must have one size")
    if len(set(getattr(config, "num_attention_heads_per_layer", None) or ())) > 1:
        raise _refused(config, "num_attention_heads_per_layer", "all layers must have one number of heads")
    windowed, window = _windows(config)
    softcap = float(getattr(config, "attn_logit_softcapping", None) or 0)
    if (softcap or window) and cpu.native() is None:
        field = "sliding_window" if window else "attn_logit_softcapping"
        raise _refused(config, field, f"only the native kernel can do this, and {cpu.why_missing()}")
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return ModelAttention(HeadPolicy.of_layers(windowed, kv_heads, window) if window else None, softcap)


def _windows(config: Any) -> tuple[list[bool], int]:
    """Whether each layer has a window, and the number of tokens of the windows; 0 if there are none."""
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    if other := sorted(set(kinds or ()) - _KINDS):
        raise _refused(config, "layer_types", f"the engine computes no {' and no '.join(other)}")
    for field in ("layer_types", "sliding_window"):
        if getattr(config, field, None) and not hasattr(type(config), field):
            raise _refused(config, field, f"transformers' {type(config).__name__} has no such field")
    if kinds is None:
        some = window is not None and getattr(config, "use_sliding_window", True)
        kinds = ["sliding_attention" if some else "full_attention"] * config.num_hidden_layers
    windowed = [kind == "sliding_attention" for kind in kinds]
    if not any(windowed):
        return windowed, 0
    if type(window) is not int or window < 1:
        raise _refused(config, "sliding_window", "all windows must have one number of tokens")
    return windowed, window


def _refused(config: Any, field: str, why: str) -> ModelError:
    value = getattr(config, field, None)
    told = "is missing" if value is None else f"is {value!r:.60}" if isinstance(value, str | int) else "is set"
    kind = f"the configuration of this {config.model_type} model"
    return ModelError(f"{kind}: {field} {told}: {why}; --engine transformers may run the model")
