"""Loads the experiment of a command, and applies the command's options to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, get_args

import click

if TYPE_CHECKING:
    from chunkbench.bench.experiment import Experiment

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class Changes:
    """What options change in an experiment. None or an empty value changes nothing."""

    sets: Sequence[str] = ()
    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    budget: str | None = None
    full: bool = False
    only: Sequence[str] = ()
    modes: str | None = None
    caches: str | None = None


def choose_experiment(experiment: str, options: Changes) -> Experiment:
    """Load an experiment and apply the options. Raises `ExperimentError`, and `click.BadParameter` for a wrong
    option."""
    from chunkbench.bench.experiment import TimedExperiment, load_experiment
    from chunkbench.bench.experiment.terms import Cache, Mode
    from chunkbench.text_file import did_you_mean

    if options.full and options.budget is not None:
        raise click.UsageError("--full has no time limit; leave --budget out")
    sets = (*options.sets, f"model={options.model}") if options.model else options.sets
    loaded = load_experiment(experiment, axes_of(sets, "--set"), "--set")
    changes: dict[str, object] = {}
    if options.device is not None:
        changes["device"] = options.device
    if options.dtype is not None:
        changes["dtype"] = options.dtype
    if options.budget is not None:
        changes["budget_s"] = parse_budget(options.budget)
    for key, text, choices in (("modes", options.modes, get_args(Mode)), ("caches", options.caches, get_args(Cache))):
        if text is None:
            continue
        if not isinstance(loaded, TimedExperiment):
            raise click.BadParameter("this experiment times nothing", param_hint=f"--{key}")
        changes[key] = parse_list(key, text, choices)
    if options.only:
        missing = [name for name in options.only if name not in loaded.implementations]
        if missing:
            hint = did_you_mean(missing[0], loaded.implementations)
            raise click.BadParameter(f"{missing[0]} is not in this experiment{hint}", param_hint="--only")
        names = tuple(name for name in loaded.implementations if name in options.only)
        changes["implementations"] = names
    changed = loaded.model_copy(update=changes)
    if not options.full:
        return changed
    if not isinstance(changed, TimedExperiment):
        raise click.UsageError(f"--full: experiments of `kind: {changed.kind}` have no rounds")
    return changed.in_full()


def parse_list(option: str, text: str, known: Sequence[Choice]) -> tuple[Choice, ...]:
    """Split a comma-separated list into its values, each once. Raises `click.BadParameter` for a value that is not
    `known`."""
    choices = {str(choice): choice for choice in known}
    values = tuple(dict.fromkeys(value.strip() for value in text.split(",")))
    unknown = [value for value in values if value not in choices]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(choices)}", param_hint=f"--{option}")
    return tuple(choices[value] for value in values)


def parse_budget(budget: str) -> float:
    """Convert a value of `--budget` to seconds. Raises `click.BadParameter`."""
    from chunkbench.bench.experiment import parse_duration

    try:
        return parse_duration(budget)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--budget") from None


def axes_of(sets: Sequence[str], option: str) -> Mapping[str, str]:
    """Split texts like `n_p=1024,2048` into axis -> text of its values. `option` is named in errors. Raises
    `click.BadParameter`."""
    axes = {}
    for text in sets:
        axis, equals, values = text.partition("=")
        if not equals or not values:
            raise click.BadParameter(f"{text!r}: write AXIS=VALUE or AXIS=V1,V2, e.g. n_p=1024,2048", param_hint=option)
        if axis.strip() in axes:
            raise click.BadParameter(f"{axis.strip()} is given twice: write {axis.strip()}=V1,V2", param_hint=option)
        axes[axis.strip()] = values
    return axes
