"""The contract of an implementation: what an adapter file must provide.

An adapter is one file with one or more subclasses of `Implementation`. Rows of `baselines/registry.py` name our
adapters; the entry point group `chunkbench.baselines` names the adapters of other packages (`name =
"package.module:Class"`). All implementations of a point get the same token ids and the same K/V values. Each
implementation chooses its own layout. No implementation is told how many tokens are shared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias

from typing_extensions import TypeVar

from chunkbench.bench.experiment.terms import Style
from chunkbench.draft import CHAIN, Drafts, why_not_verified
from chunkbench.kv_dtype import KvDtype, why_not_stored
from chunkbench.latent import QueryForm, why_not_latent

if TYPE_CHECKING:
    import torch

    from chunkbench.bench.experiment.point import AttentionPoint, SessionPoint
    from chunkbench.kernels.trace import Trace, TracedCall

__all__ = ["YES", "Answer", "AnyImplementation", "Implementation", "Inputs", "Session", "Style", "supported"]


@dataclass(frozen=True)
class Answer:
    """A yes, or a no with its reason. A no may have a remedy: a command to type, or something to change."""

    ok: bool
    reason: str = ""
    remedy: str = ""
    fault: bool = False
    """Whether the implementation itself causes the no, for example because its adapter does not load. Results of the
    implementation then have the status `error`."""


YES = Answer(True)


class Inputs(Protocol):
    """The inputs that every implementation of a point gets."""

    @property
    def point(self) -> AttentionPoint: ...

    @property
    def prompts(self) -> Sequence[Sequence[int]]:
        """Token ids of each sequence's prompt, in the order in which sequences are added."""
        ...

    @property
    def capacity(self) -> int:
        """Number of tokens of the longest prompt, plus n_c completion tokens."""
        ...

    def keys_values(self, sequence: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V `[stop - start, kv_heads, head_dim]` of prompt tokens start..stop of a sequence."""
        ...


class Session(ABC):
    """The K/V of one point in an implementation's own layout.

    Row i of k and v belongs to sequence i of `inputs.prompts`. q and out have `query_rows` rows for each sequence, one
    sequence after the other: those of its last tokens, in token order.
    """

    @abstractmethod
    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        """Append one token to each sequence. `k` and `v` are `[b, kv_heads, head_dim]`. Timed separately.

        An implementation that packs K/V does so here.
        """

    def plan(self) -> None:
        """Prepare the data that tells the kernel which K/V to read. Timed separately."""
        return

    @abstractmethod
    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        """Write the attention of `q` `[rows, heads, head_dim]` over all stored tokens to `out`. This is the timed call.

        With several query rows of a sequence, a row reads of the last `query_rows` tokens only those that
        `kernels.query_rows.seen_in_draft` says.
        The scale is 1/sqrt(head_dim). The call must not synchronise with the host or allocate memory, unless the
        library forces it.
        """

    @abstractmethod
    def rewind(self) -> None:
        """Remove all completion tokens and keep the prompts. Untimed."""

    @abstractmethod
    def kv_bytes(self) -> int:
        """Physical bytes of K and V in use now. Partly filled blocks or chunks count in full."""

    def work_items(self) -> int | None:
        """Number of independent work items in the current plan; None if the implementation has no such number."""
        return None

    def trace(self, q: torch.Tensor, out: torch.Tensor, call: TracedCall) -> Trace | None:
        """Run one decode for `chunkbench profile`. Returns the times of each unit of work, or None if the
        implementation cannot record these times.

        `call` selects the whole decode, only its reads, or only its arithmetic.
        """
        return None


PointT = TypeVar("PointT", bound="SessionPoint", default="AttentionPoint", contravariant=True)
InputsT = TypeVar("InputsT", default=Inputs, contravariant=True)


class Implementation(ABC, Generic[PointT, InputsT]):
    """One way to compute decode attention. For another kind of work, the type parameters name the points and the inputs
    of this kind."""

    id: str
    """Lower-case identifier, as written in experiments."""
    label: str
    """Name in tables and figures."""
    style: Style = Style()
    """Heading, column order, colour and marker in reports. By default, the heading is the label, and the colour is one
    that no other implementation uses."""
    note: str = ""
    """A footnote for tables: what a reader must know before comparing numbers."""
    shares_storage: bool = False
    """Whether the implementation stores a shared prefix once (used to predict memory)."""
    reads_shared_once: bool = False
    """Whether decode reads a shared prefix once for all of its sequences (used for `bandwidth_fraction`)."""
    compiles: bool = False
    """Whether the first use compiles kernels, which takes minutes."""
    kv_dtypes: tuple[KvDtype, ...] = ("same",)
    """Forms in which the implementation can store K and V."""
    drafts: Drafts = "none"
    """The drafts that the implementation can verify, with a query row for each token. A chain: each token follows the
    one before it."""
    latent: QueryForm | None = None
    """The queries that the implementation takes if it computes latent attention; None for ordinary attention."""

    @abstractmethod
    def availability(self, device: str) -> Answer:
        """Whether the implementation can run on this machine's `device` (`cpu` or `cuda`). If not, the answer has the
        reason and the remedy."""

    def supports(self, point: PointT) -> Answer:
        """Whether the implementation can compute this point. If not, the answer has the reason, such as head size,
        dtype or grouped heads."""
        return YES

    @abstractmethod
    def prepare(self, inputs: InputsT) -> Session:
        """Store the prompts' K/V in the implementation's own layout. Untimed."""

    def package_version(self) -> str | None:
        """Name and version of the library that does the work, e.g. `torch 2.13.0`."""
        return None

    def isa(self) -> str | None:
        """Instruction set that the kernel uses; None if unknown."""
        return None


AnyImplementation: TypeAlias = Implementation[Any, Any]


def supported(implementation: Any, point: Any) -> Answer:
    """Whether an implementation can compute a point: by its attributes, and by `supports`. Work of other kinds may lack
    the attributes, and its points the axes."""
    rows, draft = getattr(point, "query_rows", 1), getattr(point, "draft", CHAIN)
    reasons = (
        why_not_stored(getattr(point, "kv_dtype", "same"), getattr(implementation, "kv_dtypes", ("same",))),
        why_not_latent(getattr(point, "latent", None), getattr(implementation, "latent", None)),
        why_not_verified(rows, draft, getattr(implementation, "drafts", "none")),
    )
    answer: Answer = next((Answer(False, reason) for reason in reasons if reason), None) or implementation.supports(
        point
    )
    return answer
