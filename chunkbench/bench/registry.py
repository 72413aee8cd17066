"""Finds implementations by id: rows of this package, and entry points that other packages register."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, Generic, NamedTuple, Protocol, runtime_checkable

from typing_extensions import TypeVar

from chunkbench.bench.contract import Answer, Style

GROUP = "chunkbench.baselines"
"""Entry points of implementations of decode attention."""


class UnknownImplementation(LookupError):
    """No implementation has this id."""


class Surveyed(NamedTuple):
    id: str
    label: str
    answer: Answer


class Listed(Protocol):
    """The properties of an implementation that a registry needs, for any kind of work."""

    @property
    def label(self) -> str: ...

    @property
    def style(self) -> Style: ...

    @property
    def compiles(self) -> bool: ...

    def availability(self, device: str) -> Answer: ...


ListedT = TypeVar("ListedT", bound=Listed, covariant=True)


@runtime_checkable
class Loadable(Protocol):
    """An entry point, or a row of this package that names a module. Only `load` imports this module."""

    def load(self) -> Any:
        """Import the module and return the implementation or its class."""


class Registry(Generic[ListedT]):
    """The implementations of one kind of work, by id.

    They are the rows of this package and, if `group` names a group of entry points, those of other packages. A row
    replaces an entry point with the same id.
    """

    def __init__(self, rows: Mapping[str, Loadable | ListedT], group: str = "") -> None:
        self._rows, self._group = rows, group

    def refresh(self) -> None:
        """Forget the entry points, so that the next use looks for them again."""
        self.__dict__.pop("_entries", None)

    @cached_property
    def _entries(self) -> Mapping[str, Loadable | ListedT]:
        if not self._group:
            return self._rows
        others = {point.name: point for point in entry_points(group=self._group)}
        return dict(sorted({**others, **self._rows}.items()))

    def _provider(self, implementation: str) -> Any:
        """The class or object behind an id. Raises what the import raises."""
        entry = self._entries[implementation]
        return entry.load() if isinstance(entry, Loadable) else entry

    def names(self) -> list[str]:
        return list(self._entries)

    def load(self, implementation: str) -> ListedT:
        """Load the implementation with this id. Raises `UnknownImplementation`, or the error of the import."""
        if implementation not in self._entries:
            close = difflib.get_close_matches(implementation, self.names(), n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(self.names())}"
            raise UnknownImplementation(f"no implementation {implementation!r} is registered{hint}")
        provider = self._provider(implementation)
        instance: ListedT = provider() if isinstance(provider, type) else provider
        return instance

    def style(self, implementation: str) -> Style:
        """How reports show an implementation. If the implementation is not registered or does not load, the default
        style."""
        try:
            entry = self._entries[implementation]
            # Our rows state it, so that reports need not import the libraries of every implementation.
            style: Style = (entry if hasattr(entry, "style") else self._provider(implementation)).style
        except Exception:
            return Style()
        return style

    def styles(self, implementations: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The styles of these implementations, in the form that runs record."""
        return {name: self.style(name).model_dump() for name in implementations}

    def availability(self, implementation: str, device: str) -> tuple[str, Answer]:
        """Label and availability of one implementation. If its adapter fails to import, the answer is no, without an
        error."""
        try:
            loaded = self.load(implementation)
            answer = loaded.availability(device)  # before the label, which may depend on the device
            return loaded.label, answer
        except UnknownImplementation:
            raise
        except Exception as error:
            problem = f"its adapter does not load: {type(error).__name__}: {error}"
            return implementation, Answer(False, problem, fault=True)

    def survey(self, device: str) -> list[Surveyed]:
        return [Surveyed(name, *self.availability(name, device)) for name in self.names()]

    def compiling(self) -> list[str]:
        """Implementations whose first use compiles kernels, which takes minutes."""
        return [name for name in self.names() if self._compiles(name)]

    def _compiles(self, implementation: str) -> bool:
        try:
            compiles: bool = self._provider(implementation).compiles
        except Exception:  # `availability` reports the cause
            return False
        return compiles
