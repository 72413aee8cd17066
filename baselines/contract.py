"""The contract of an implementation: what an adapter file has to provide.

An adapter is one file with one or more subclasses of `Implementation`, registered under the entry point group
`chunkbench.baselines` (`name = "package.module:Class"`). All implementations of a point get the same token ids and
the same K/V values and lay them out as they need; nobody is told how many tokens are shared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from chunkbench.experiment.look import Look

if TYPE_CHECKING:
    import torch

    from chunkbench.experiment.point import Point

__all__ = ["YES", "Answer", "Implementation", "Inputs", "Look", "Session"]


@dataclass(frozen=True)
class Answer:
    """Yes, or no with the reason and, where there is one, the remedy (a command to type, or what to change)."""

    ok: bool
    reason: str = ""
    remedy: str = ""


YES = Answer(True)


class Inputs(Protocol):
    """What every implementation of a point is given."""

    @property
    def point(self) -> Point: ...

    @property
    def prompts(self) -> Sequence[Sequence[int]]:
        """Token ids of each sequence's prompt, in the order of addition."""
        ...

    @property
    def capacity(self) -> int:
        """Most tokens that any sequence will hold: its prompt and n_c completion tokens."""
        ...

    def weights(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """A weight `[rows, columns]` of a layer, normal with variance 1 / columns; equal names give equal values."""
        ...

    def keys_values(self, sequence: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V `[stop - start, kv_heads, head_dim]` of prompt tokens start..stop of a sequence."""
        ...


class Session(ABC):
    """The K/V of one point in an implementation's own layout. Rows of q, out and append follow `inputs.prompts`."""

    @abstractmethod
    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        """Take one token per sequence in; k, v `[b, kv_heads, head_dim]`. Timed apart; packing happens here."""

    def plan(self) -> None:
        """Bring the work descriptors up to date. Timed apart."""
        return

    @abstractmethod
    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        """The timed call: attention of q `[b, heads, head_dim]` over all tokens held into out; scale 1/sqrt(head_dim).

        No host synchronisation and no allocation that the library does not force.
        """

    @abstractmethod
    def rewind(self) -> None:
        """Back to the prompts alone. Untimed."""

    @abstractmethod
    def kv_bytes(self) -> int:
        """Physical bytes of K and V now in use, whole blocks or chunks."""

    def work_items(self) -> int | None:
        """Independent pieces of work of the current plan, where the implementation has such."""
        return None


class Implementation(ABC):
    """One way to compute decode attention."""

    id: str
    """Lower-case identifier, as written in experiments."""
    label: str
    """Name in tables and figures."""
    look: Look = Look()
    """Heading, place, colour and marker; what is left out follows from the label and from what is free."""
    note: str = ""
    """A footnote for tables: what a reader has to know before comparing."""
    shares_storage: bool = False
    """Whether a shared prefix is held once (used to predict memory)."""
    reads_shared_once: bool = False
    """Whether decode reads a shared prefix once for all of its sequences (used for `bandwidth_fraction`)."""
    compiles: bool = False
    """Whether it is compiled at its first use, which takes minutes."""

    @abstractmethod
    def availability(self, device: str) -> Answer:
        """Whether it can run on `cpu` or `cuda` here; else the reason and the remedy."""

    def supports(self, point: Point) -> Answer:
        """Whether it can compute this point; else the reason (head size, dtype, grouped heads, ragged prompts)."""
        return YES

    def out_shape(self, point: Point) -> tuple[int, ...]:
        """Shape of what a call gives."""
        return point.batch_size, point.heads, point.head_dim

    @abstractmethod
    def prepare(self, inputs: Inputs) -> Session:
        """Lay the prompts' K/V out. Untimed."""

    def package_version(self) -> str | None:
        """Name and version of the library that does the work, e.g. `torch 2.13.0`."""
        return None

    def isa(self) -> str | None:
        """Instruction set that the kernel uses, where it is known."""
        return None
