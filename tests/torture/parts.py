"""All parts, in the order in which `make torture` does them."""

from __future__ import annotations

from tests.torture.trials import Part

PARTS: tuple[Part, ...] = ()
