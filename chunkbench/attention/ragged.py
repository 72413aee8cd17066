"""Attention of a step in which some sequences decode one token and others compute parts of their prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from chunkbench.attention.errors import WrongTokens
from chunkbench.attention.heads import HeadDecode
from chunkbench.attention.layered import LayeredChunkAttention
from chunkbench.attention.parts import Kernel, Partition
from chunkbench.attention.tensors import WrongTensor
from chunkbench.attention.windows import HeadPolicy
from chunkbench.kernels.changes import Append
from chunkbench.kernels.cpu.decode import TppNative
from chunkbench.kernels.integers import Ints
from chunkbench.kernels.items import PromptRows
from chunkbench.kernels.plan import Plan
from chunkbench.kernels.query_rows import QueryRows
from chunkbench.kernels.tpp_torch import TppTorch
from chunkbench.kv_dtype import KvDtype

_NONE: Ints = np.empty(0, np.int64)


class RaggedChunkAttention(LayeredChunkAttention):
    """`LayeredChunkAttention` for steps in which each sequence has any number of tokens: iteration-level batching.

    `join` takes a whole prompt. The caller writes its K and V later, over any number of steps. `written` says how many
    tokens are written. A step has these calls:

    1. `join`, `extend` and `remove_sequence`;
    2. `select` for the tokens that the step computes, then `plan_selected`;
    3. in each layer, `write_selected` with K and V of the selected tokens, then `attend_selected` with their queries.

    A later sequence can share chunks whose K and V are not written yet, but must not read them before they are written.
    So select the tokens of these chunks in the same step or before, in any sequence that covers them. If a sequence is
    cut before all its tokens were computed, select the tokens of its last chunk again.

    Sequences that compute only their last token take part in the two-phase partition. The rows of prompts read the
    cached chunks in place, a block of rows at a time. Kernels: native and PyTorch ("auto" chooses between these).
    """

    _deferred = True

    def __init__(
        self,
        layers: int,
        heads: int,
        head_dim: int,
        kv_heads: int | None = None,
        chunk_size: int = 64,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        max_tokens: int | None = None,
        partition: Partition = "two-phase",
        kernel: Kernel = "auto",
        share: bool = True,
        retain: bool = False,
        policy: HeadPolicy | None = None,
        kv_dtype: KvDtype = "same",
        softcap: float = 0.0,
    ) -> None:
        if kernel == "auto" and torch.device(device).type != "cpu":
            kernel = "torch"
        if kernel == "triton":
            raise ValueError("kernel='triton' cannot take prompts in parts yet; use 'torch'")
        super().__init__(
            *(layers, heads, head_dim, kv_heads, chunk_size, dtype, device),
            *(max_tokens, partition, kernel, share, retain, policy, kv_dtype),
            softcap=softcap,
        )
        assert isinstance(self._kernel, TppNative | TppTorch | HeadDecode)
        self._ragged = self._kernel
        self._decoding: list[tuple[int, int]] = []  # sequences, and the number of their last tokens
        self._prompts: list[PromptRows] = []
        self._writes: list[tuple[Ints, Ints, Ints]] = []  # chunks, slots and rows of new tokens, by prompt
        self._filled: list[Ints] = []  # chunks that the selected tokens fill, and that count as written
        self._filling: list[Ints] = []  # those of them that decoding sequences fill
        # The next attributes describe the planned step.
        self._planned_filled: list[Ints] = []
        self._rows = 0
        self._writing = _NONE  # rows whose K and V are new
        self._places = Append(_NONE, _NONE, _NONE, every_row=False)
        self._subset: tuple[Plan, bytes, Plan] | None = None

    @property
    def drafts(self) -> bool:
        """Whether the kernel can verify drafts: `select(decoding=True)` of several tokens."""
        return isinstance(self._ragged, TppNative)

    def written(self, sequence: int) -> int:
        """Number of leading tokens of a sequence whose K and V are written, or will be written by a step that selected
        them. Only tokens of full chunks count. Raises UnknownSequence."""
        return self._tree.written_tokens(sequence)

    def select(self, sequence: int, first: int, count: int, decoding: bool = False) -> None:
        """Select tokens `first` to `first + count - 1` of a sequence for the next step. They become the next rows of
        the step's tensors.

        `decoding`: whether the sequence decodes: it computes only its last token, or its last tokens, a draft, which no
        other sequence shares. First select those that decode, in the order of `sequences`, and then all others. For
        another order, `plan_selected` raises WrongTokens. Raises UnknownSequence. Raises WrongTokens if the sequence
        does not have these tokens.
        """
        length = self.length(sequence)
        if count < 1 or first < 0 or first + count > length:
            raise WrongTokens(
                f"tokens {first} to {first + count - 1} of sequence {sequence}: it has tokens 0 to {length - 1}"
            )
        if decoding:
            self._decoding.append((sequence, count))
            if length // self.chunk_size > first // self.chunk_size:
                # A sequence that is selected later may share the chunks that become full, and must not write them.
                path = self._tree.path(sequence)[first // self.chunk_size : length // self.chunk_size]
                full = np.array(path, np.int64)
                self._filling.append(full[~self._tree.written(full)])
                self._fill(self._filling[-1])
            return
        chunks = np.array(self._tree.path(sequence), np.int64)
        positions = np.arange(first, first + count)
        own = chunks[positions // self.chunk_size]
        new = ~self._tree.written(own)
        before = sum(tokens for _, tokens in self._decoding) + sum(prompt.count for prompt in self._prompts)
        rows = before + np.flatnonzero(new)
        self._writes.append((own[new], positions[new] % self.chunk_size, rows))
        self._prompts.append(PromptRows(chunks, first, count))
        self._fill(own[new & ((positions + 1) % self.chunk_size == 0)])

    def plan_selected(self) -> int:
        """Plan the step of the selected tokens, and return their number. The next `select` begins another step."""
        decoding = {sequence: row for row, sequence in enumerate(self._tree.sequences)}
        rows = np.array([decoding[sequence] for sequence, _ in self._decoding], np.int64)
        of_rows = QueryRows(np.array([count for _, count in self._decoding], np.int64))
        if (np.diff(rows) <= 0).any():
            raise WrongTokens("the sequences that compute their last token come first, by row, each once")
        plan = self._plan_of(rows)
        writes = self._writes
        if len(rows):
            last, slots = of_rows.of_sequences(plan.last_chunks), of_rows.of_sequences(plan.last_tokens - 1)
            if of_rows.total > len(rows):
                last, slots = self._places_of_drafts(last, slots - of_rows.behind)
            new = ~self._tree.written(last) | np.isin(last, np.concatenate([_NONE, *self._filling]))
            writes = [(last[new], slots[new], np.flatnonzero(new)), *writes]
        columns = zip(*writes, strict=True) if writes else [()] * 3
        chunks, slots, self._writing = (np.concatenate([_NONE, *column]) for column in columns)
        self._places = Append(chunks, slots, chunks[slots == 0], every_row=False)
        self._rows = of_rows.total + sum(prompt.count for prompt in self._prompts)
        if of_rows.total > len(rows):
            assert isinstance(self._ragged, TppNative)  # `drafts` says so
            self._ragged.plan(plan, self._prompts, query_rows=of_rows)
        else:
            self._ragged.plan(plan, self._prompts)
        self._planned = False  # this is not the plan that `attend` needs
        self._planned_filled = self._filled
        self._decoding, self._prompts, self._writes, self._filled, self._filling = [], [], [], [], []
        return self._rows

    def _places_of_drafts(self, last: Ints, slots: Ints) -> tuple[Ints, Ints]:
        """The chunk and the slot of each row. `last` `[rows]`: last chunks of the rows' sequences. `slots` `[rows]`:
        slots counted from the first one of that chunk, negative in the chunks before it."""
        back, row = slots // self.chunk_size, 0
        last = last.copy()
        for sequence, count in self._decoding:
            if back[row] < 0:
                path = np.array(self._tree.path(sequence)[int(back[row]) - 1 :], np.int64)
                last[row : row + count] = path[back[row : row + count] - 1]
            row += count
        return last, slots % self.chunk_size

    def undo_planned(self) -> None:
        """Declare that the K and V of the planned step were not written in all layers. The caller must select the
        step's tokens again."""
        for chunks in self._planned_filled:
            self._tree.mark_written(chunks, False)
        self._planned_filled = []

    def forget(self, sequence: int) -> None:
        """When this sequence leaves, do not keep the chunks that only it covers. Raises UnknownSequence."""
        self._tree.mark_written(self._tree.own_chunks(sequence), False)

    def run_layers(self, layers: Sequence[Any], step: Any) -> list[float]:
        """`write_selected` and `attend_selected` of all layers, with the rest of these layers, in one native call.
        `layers`, `step` and what it returns: see `NativeDecode.run_layers`.

        Returns an empty list and does nothing if the kernel is not native, or if K and V of some rows are already in
        the cache.
        """
        if not isinstance(self._kernel, TppNative) or len(layers) != self.layers:
            return []
        if len(self._writing) != self._rows or not self._rows:
            return []
        return self._kernel.run_layers(layers, step, self._places.chunks, self._places.slots)

    def write_selected(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write K and V of the selected tokens in one layer, k and v `[rows, kv_heads, head_dim]`.

        Skips tokens whose K and V are already in the cache.
        """
        self._check_layer(layer)
        k, v = self._checked_kv(k, v, self._rows)
        if len(self._writing) < self._rows:
            index = torch.from_numpy(self._writing).to(self.device)
            k, v = k.index_select(0, index), v.index_select(0, index)
        if len(self._writing):
            self._store.append(self._places, k, v, layer)

    def attend_selected(
        self, layer: int, q: torch.Tensor, out: torch.Tensor | None = None, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute attention of the selected tokens in a layer, scaled by 1/sqrt(head_dim). Each token attends to all
        tokens up to itself.

        q and out are `[rows, heads, head_dim]`. Without `out` a new tensor is made. Returns out. `sinks` `[heads]`: a
        scaled score of each head that has no V, but counts in the softmax. Only the native kernel takes sinks; others
        raise ValueError.
        """
        self._check_layer(layer)
        q, out = self._checked_q(q, out, self._rows)
        if sinks is not None:
            if sinks.shape != (self.heads,):
                raise WrongTensor(f"sinks must have the shape ({self.heads},), not {tuple(sinks.shape)}")
            sinks = sinks.detach().to(self.device, torch.float32).contiguous()
        if self._rows:
            self._ragged.decode(q, out, layer, sinks)
        return out

    def _fill(self, chunks: Ints) -> None:
        self._tree.mark_written(chunks)
        self._filled.append(chunks)

    def _plan_of(self, rows: Ints) -> Plan:
        """The plan of some rows. If nothing changed, returns the same object as last time, so that the kernel keeps its
        work descriptors."""
        plan = self._tree.plan()
        if len(rows) == len(self._tree):
            return plan
        key = rows.tobytes()
        if self._subset is None or self._subset[0] is not plan or self._subset[1] != key:
            self._subset = plan, key, plan.only(rows)
        return self._subset[2]
