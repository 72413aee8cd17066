"""The forward pass of Llama-like models on a CPU. It uses packed weights and native loops.

In transformers, a decode step of a small model has hundreds of small operations. Calling an operation takes longer than
its computation. Here all layers of most steps are one native call. If a row's K and V are already in the cache, a layer
has two native calls: one before and one after its attention.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch

from chunkbench.attention import RaggedChunkAttention
from chunkbench.kernels.cpu import native, required
from chunkbench.kernels.cpu.linear import BLOCK, PackedWeights, can_pack
from chunkbench.kernels.cpu.store import dtype_name

_CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")


def fits(module: Any) -> bool:
    """Whether `LlamaForward` supports this model of transformers."""
    config = module.config
    if type(module).__name__ not in _CLASSES or config.hidden_act != "silu" or native() is None:
        return False
    layer = module.model.layers[0]
    return (
        layer.self_attn.head_dim % 32 == 0
        and module.model.rotary_emb.inv_freq.numel() == layer.self_attn.head_dim // 2
        and config.hidden_size % BLOCK == 0
        and config.intermediate_size % BLOCK == 0
        and can_pack(layer.self_attn.q_proj)
    )


class PackedLinear(torch.nn.Module):
    """Replaces `nn.Linear` with weights in the layout of the CPU kernels. For inference only."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self._weights = PackedWeights([linear])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x `[..., in_features]` -> x times the weight, plus the bias: `[..., out_features]`."""
        return self._weights(x)


def pack_linear_layers(model: torch.nn.Module) -> None:
    """Replace the linear layers of a model by `PackedLinear`, where the kernels support their weights.

    For models that `LlamaForward` does not support. The original weights are freed.
    """
    if native() is None:
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and can_pack(child):
                setattr(parent, name, PackedLinear(child))


class LlamaForward:
    """Weights and buffers of a model. The residual stream is float32, whatever the model's dtype is."""

    def __init__(self, module: Any) -> None:
        """`module`: a model of transformers for which `fits` is true. The weights of its layers are removed."""
        config, model = module.config, module.model
        self._native, self._dtype = required(), module.dtype
        attention = model.layers[0].self_attn
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._d, self._hidden = attention.head_dim, config.hidden_size
        self._inner, self._epsilon = config.intermediate_size, config.rms_norm_eps
        self._embedding, self._angles = model.embed_tokens.weight.detach(), model.rotary_emb
        self._norm = model.norm.weight.detach().float()
        self._head = PackedWeights([module.lm_head], "store32")
        self._kept: list[Any] = []
        self._layers = [self._layer(layer) for layer in model.layers]
        self._rows = 0
        self._buffers: dict[str, torch.Tensor] = {}
        self.seconds: dict[str, float] = {}
        """Seconds of the parts of the latest step: see `StepReport.parts`."""

    def _layer(self, layer: Any) -> Any:
        attention, mlp = layer.self_attn, layer.mlp
        weights = [
            PackedWeights([attention.q_proj, attention.k_proj, attention.v_proj]),
            PackedWeights([attention.o_proj], "add32"),
            PackedWeights([mlp.gate_proj, mlp.up_proj], "gate"),
            PackedWeights([mlp.down_proj], "add32"),
        ]
        norms = [norm.weight.detach().float() for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
        self._kept += [weights, norms]
        for part in layer.modules():  # one layer after the other, so that memory never holds the model twice
            if isinstance(part, torch.nn.Linear):
                part.register_parameter("weight", None)
        shape = self._epsilon, self._heads, self._kv_heads, self._d
        return self._native.make_layer(*[one.native for one in weights], *[n.data_ptr() for n in norms], *shape)

    def logits(
        self, tokens: list[int], positions: list[int], rows: list[int], attention: RaggedChunkAttention
    ) -> torch.Tensor:
        """Compute a step. Returns the logits `[len(rows), vocabulary]`, float32, of the tokens with the indices
        `rows`. `attention` must have planned the step."""
        return self.head(self.hidden(tokens, positions, rows, attention))

    def hidden(
        self, tokens: list[int], positions: list[int], rows: list[int], attention: RaggedChunkAttention
    ) -> torch.Tensor:
        """Compute a step. Returns the residual stream `[len(rows), hidden size]` after the last layer, for the
        tokens with the indices `rows`."""
        count, threads = len(tokens), torch.get_num_threads()
        buffers = self._space(count)
        hidden, q, k, v, attended = (buffers[name][:count] for name in ("hidden", "q", "k", "v", "attended"))
        hidden.copy_(self._embedding[torch.tensor(tokens)])
        angles = self._angles(hidden[None], torch.tensor([positions]))
        cosines, sines = (one[0, :, : self._d // 2].contiguous() for one in angles)
        addresses = [
            buffers[name].data_ptr() for name in ("hidden", "normed", "qkv", "q", "k", "v", "attended", "gated")
        ]
        step = self._native.make_buffers(count, *addresses, cosines.data_ptr(), sines.data_ptr())
        seconds = attention.run_layers(self._layers, step)
        self.seconds = dict(zip(("products", "write K/V", "attention"), seconds, strict=False))
        if not seconds:
            for number, layer in enumerate(self._layers):
                layer.before_attention(step, threads)
                attention.write_selected(number, k, v)
                attention.attend_selected(number, q, attended)
                layer.after_attention(step, threads)
        return hidden[rows]

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Residual stream `[n, hidden size]` -> logits `[n, vocabulary]`, float32."""
        began = perf_counter()
        normed, threads = torch.empty(hidden.shape, dtype=self._dtype), torch.get_num_threads()
        numbers = len(hidden), self._hidden, self._norm.data_ptr(), self._epsilon
        self._native.rms_norm(dtype_name(self._dtype), hidden.data_ptr(), *numbers, normed.data_ptr(), threads)
        logits = self._head(normed)
        if self.seconds:
            self.seconds["head"] = self.seconds.get("head", 0.0) + perf_counter() - began
        return logits

    def _space(self, rows: int) -> dict[str, torch.Tensor]:
        """Buffers for a step of `rows` rows."""
        if rows > self._rows:
            self._rows = rows
            q, kv = (self._heads, self._d), (self._kv_heads, self._d)
            all_heads = (self._heads + 2 * self._kv_heads) * self._d
            shapes = {"normed": (self._hidden,), "qkv": (all_heads,), "q": q, "k": kv, "v": kv}
            shapes |= {"attended": q, "gated": (self._inner,)}
            self._buffers = {name: torch.empty(rows, *shape, dtype=self._dtype) for name, shape in shapes.items()}
            self._buffers["hidden"] = torch.empty(rows, self._hidden)
        return self._buffers
