"""Lets commands share options: one decorator adds a list of options, and one argument holds their values."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from typing import Any

import click

Decorated = Callable[..., Any]


class FiniteRange(click.FloatRange):
    """A number in a range. Refuses `inf` and `nan`, which click accepts as numbers."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def with_options(command: Decorated, options: Sequence[Callable[[Decorated], Decorated]]) -> Decorated:
    """The command with these options added. `--help` lists the options in this order."""
    for option in reversed(options):  # click lists options in the reverse order of their decorators
        command = option(command)
    return command


def without(words: Sequence[str], valued: Collection[str], flags: Collection[str] = ()) -> list[str]:
    """The arguments of a command line without some options. `valued`: options that take a value; `flags`: options
    without a value."""
    kept: list[str] = []
    skip = False
    for word in words:
        name, equals, _ = word.partition("=")
        if not skip and name not in valued and name not in flags:
            kept.append(word)
        skip = not skip and name in valued and not equals
    return kept


def gathered(kind: type[Any], argument: str = "options") -> Callable[[Decorated], Decorated]:
    """Decorator of a command: gathers the options that are fields of a dataclass into one argument."""
    names = [field.name for field in fields(kind)]

    def decorate(command: Decorated) -> Decorated:
        @functools.wraps(command)
        def call(*arguments: Any, **values: Any) -> Any:
            gathered_values = kind(**{name: values.pop(name) for name in names})
            return command(*arguments, **{argument: gathered_values}, **values)

        return call

    return decorate
