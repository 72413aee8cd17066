"""Lets commands share options: one decorator adds several options, and one argument receives their values."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from typing import Any

import click

Decorated = Callable[..., Any]


class FiniteRange(click.FloatRange):
    """The type of an option: a number in a range. Unlike click's type, it refuses `inf` and `nan`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def with_options(command: Decorated, options: Sequence[Callable[[Decorated], Decorated]]) -> Decorated:
    """Add options to a command. `--help` lists them in this order."""
    for option in reversed(options):  # click lists options in the reverse order of their decorators
        command = option(command)
    return command


def without(words: Sequence[str], valued: Collection[str], flags: Collection[str] = ()) -> list[str]:
    """Remove options from the arguments of a command line. `valued`: names of options with a value; `flags`: names
    of options without one."""
    kept: list[str] = []
    skip = False
    for word in words:
        name, equals, _ = word.partition("=")
        if not skip and name not in valued and name not in flags:
            kept.append(word)
        skip = not skip and name in valued and not equals
    return kept


def gathered(kind: type[Any], argument: str = "options") -> Callable[[Decorated], Decorated]:
    """Make a decorator for a command. The command receives one argument of the dataclass `kind`, in place of the
    options that are its fields."""
    names = [field.name for field in fields(kind)]

    def decorate(command: Decorated) -> Decorated:
        @functools.wraps(command)
        def call(*arguments: Any, **values: Any) -> Any:
            gathered_values = kind(**{name: values.pop(name) for name in names})
            return command(*arguments, **{argument: gathered_values}, **values)

        return call

    return decorate
