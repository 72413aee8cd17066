"""Writes models of the Llama family in OpenVINO's format.

The graph is that of OpenVINO GenAI's reader of GGUF files, but with the exact weights: the reader takes only float16.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chunkbench.server.engine.errors import ModelError
from chunkbench.server.engine.model import ModelNumbers, refuse_other_attention

_KINDS = ("llama", "mistral")
_ROTARY = ("default", "linear", "llama3")
"""Kinds of rotary embeddings whose frequencies do not depend on the length of a sequence."""


def write_model(module: Any, folder: Path) -> None:
    """Write a causal language model of transformers into a folder. All weights become float32: OpenVINO converts them
    when it loads the model. Raises ModelError for a model of another family."""
    config = module.config
    if config.model_type not in _KINDS or config.hidden_act != "silu":
        kind = f"{config.model_type} with {config.hidden_act}"
        raise ModelError(f"a model of the kind {kind}: the engine openvino takes only {' and '.join(_KINDS)} with silu")
    refuse_other_attention(config)
    rotary = config.rope_parameters["rope_type"]
    if rotary not in _ROTARY or 2 * len(module.model.rotary_emb.inv_freq) != ModelNumbers(module).head_dim:
        raise ModelError(f"a model with rotary embeddings of the kind {rotary}: the engine openvino does not take it")
    openvino = importlib.import_module("openvino")
    model = _Graph(module).model()
    openvino.save_model(model, str(folder / "openvino_model.xml"), compress_to_fp16=False)
    (folder / "generation_config.json").write_text("{}", encoding="utf-8")  # the pipeline needs this file


class _Graph:
    """The nodes of OpenVINO that compute a model. Methods take nodes and return nodes."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._numbers = ModelNumbers(module)
        self._openvino: Any = importlib.import_module("openvino")
        self._op: Any = importlib.import_module("openvino.opset13")
        self._sinks: list[Any] = []
        """Nodes that keep K and V for the next call."""

    def model(self) -> Any:
        op, numbers, body = self._op, self._numbers, self._module.model
        ids, mask, positions = (self._input(name, [-1, -1]) for name in ("input_ids", "attention_mask", "position_ids"))
        self._beams = self._input("beam_idx", [-1])
        self._batch = op.gather(op.shape_of(ids), self._ints(0), op.constant(0))
        frequencies = op.constant(body.rotary_emb.inv_freq.float().numpy()[None, :, None])
        wide = op.concat([self._batch, self._ints(1), self._ints(1)], 0)
        times = op.convert(op.unsqueeze(positions, self._ints(1)), "f32")
        angles = op.matmul(op.broadcast(frequencies, wide, broadcast_spec="BIDIRECTIONAL"), times, False, False)
        angles = op.transpose(angles, self._ints(0, 2, 1))
        angles = op.concat([angles, angles], -1)
        self._cos, self._sin = (op.unsqueeze(wave(angles), self._ints(1)) for wave in (op.cos, op.sin))
        # The pipeline replaces the mask by its own, but knows attention only with a mask.
        length = op.gather(op.shape_of(mask), op.constant(1), op.constant(0))
        every = op.range(op.constant(np.int64(0)), length, op.constant(np.int64(1)), "i64")
        self._seen = op.less_equal(every, op.unsqueeze(positions, self._ints(1, 3)))

        embedding = self._weight(body.embed_tokens.weight)
        x = op.gather(embedding, op.convert(ids, "i32"), op.constant(0))
        for number, layer in enumerate(body.layers):
            x = op.add(x, self._attention(number, layer.self_attn, self._norm(x, layer.input_layernorm)))
            y, mlp = self._norm(x, layer.post_attention_layernorm), layer.mlp
            gated = op.multiply(op.swish(self._linear(y, mlp.gate_proj)), self._linear(y, mlp.up_proj))
            x = op.add(x, self._linear(gated, mlp.down_proj))
        tied = self._module.lm_head.weight is body.embed_tokens.weight
        head = embedding if tied else self._weight(self._module.lm_head.weight)
        logits = op.matmul(self._norm(x, body.norm), head, False, True)
        logits.output(0).set_names({"logits"})
        inputs = [ids, mask, positions, self._beams]
        return self._openvino.Model([op.result(logits)], self._sinks, inputs, f"{numbers.layers} layers")

    def _input(self, name: str, shape: list[int]) -> Any:
        node = self._op.parameter(shape, np.int32 if name == "beam_idx" else np.int64, name=name)
        node.output(0).set_names({name})
        return node

    def _ints(self, *values: int) -> Any:
        return self._op.constant(np.array(values, np.int64))

    def _floats(self, value: float, dimensions: int = 3) -> Any:
        return self._op.constant(np.full((1,) * dimensions, value, np.float32))

    def _weight(self, weight: torch.Tensor) -> Any:
        return self._op.constant(weight.detach().float().contiguous().numpy(), shared_memory=True)

    def _linear(self, x: Any, layer: Any) -> Any:
        y = self._op.matmul(x, self._weight(layer.weight), False, True)
        return y if layer.bias is None else self._op.add(y, self._weight(layer.bias))

    def _norm(self, x: Any, layer: Any) -> Any:
        op = self._op
        mean = op.reduce_mean(op.power(x, self._floats(2)), self._ints(-1), True)
        root = op.sqrt(op.add(mean, self._floats(layer.variance_epsilon)))
        return op.multiply(op.multiply(op.divide(self._floats(1), root), x), self._weight(layer.weight[None, None]))

    def _attention(self, number: int, layer: Any, x: Any) -> Any:
        op, heads, kv_heads = self._op, self._numbers.heads, self._numbers.kv_heads
        query = self._rotated(self._split(self._linear(x, layer.q_proj), heads))
        key = self._rotated(self._split(self._linear(x, layer.k_proj), kv_heads))
        value = self._split(self._linear(x, layer.v_proj), kv_heads)
        keys, values = (self._kept(new, f"{name}.{number}") for name, new in (("key", key), ("value", value)))
        out = op.scaled_dot_product_attention(query, keys, values, self._seen)
        joined = op.reshape(
            op.transpose(out, self._ints(0, 2, 1, 3)), self._ints(0, 0, heads * self._numbers.head_dim), True
        )
        return self._linear(joined, layer.o_proj)

    def _split(self, x: Any, heads: int) -> Any:
        shaped = self._op.reshape(x, self._ints(0, 0, heads, self._numbers.head_dim), True)
        return self._op.transpose(shaped, self._ints(0, 2, 1, 3))

    def _rotated(self, x: Any) -> Any:
        op, half = self._op, self._numbers.head_dim // 2
        first = op.slice(x, self._ints(0), self._ints(half), self._ints(1), self._ints(3))
        second = op.slice(x, self._ints(half), self._ints(2**63 - 1), self._ints(1), self._ints(3))
        turned = op.concat([op.multiply(second, self._floats(-1, 4)), first], -1)
        return op.add(op.multiply(x, self._cos), op.multiply(turned, self._sin))

    def _kept(self, new: Any, name: str) -> Any:
        """The K or V of all tokens, for each query head, after those of new tokens are appended."""
        op, heads, kv_heads, d = self._op, self._numbers.heads, self._numbers.kv_heads, self._numbers.head_dim
        none = op.concat([self._batch, self._ints(kv_heads), self._ints(0), self._ints(d)], 0)
        shape = self._openvino.PartialShape([-1, kv_heads, -1, d])
        before = op.read_value(op.broadcast(self._floats(0, 0), none), name, self._openvino.Type.f32, shape)
        after = op.concat([op.gather(before, self._beams, op.constant(0)), new], 2)
        self._sinks.append(op.assign(after, name))
        shape = op.concat([self._batch, *(self._ints(n) for n in (kv_heads, heads // kv_heads, 0, d))], 0)
        repeated = op.broadcast(op.unsqueeze(after, self._ints(2)), shape, broadcast_spec="BIDIRECTIONAL")
        return op.reshape(repeated, self._ints(0, heads, -1, d), True)
