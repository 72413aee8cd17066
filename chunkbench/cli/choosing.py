"""The experiment that a command line selects: a file, whose values the options replace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, get_args

import click

if TYPE_CHECKING:
    from chunkbench.experiment import Experiment

Choice = TypeVar("Choice")


def choose_experiment(
    experiment: str,
    sets: Sequence[str] = (),
    device: str | None = None,
    dtype: str | None = None,
    budget: str | None = None,
    only: Sequence[str] = (),
    modes: str | None = None,
    caches: str | None = None,
) -> Experiment:
    """Load an experiment and apply the options. Raises `ExperimentError`, and `click.BadParameter` for an option."""
    from chunkbench.experiment import TimedExperiment, load_experiment
    from chunkbench.experiment.errors import did_you_mean
    from chunkbench.experiment.terms import Cache, Mode

    loaded = load_experiment(experiment, _axes(sets), "--set")
    changes: dict[str, object] = {}
    if device is not None:
        changes["device"] = device
    if dtype is not None:
        changes["dtype"] = dtype
    if budget is not None:
        changes["budget_s"] = parse_budget(budget)
    for key, text, choices in (("modes", modes, get_args(Mode)), ("caches", caches, get_args(Cache))):
        if text is None:
            continue
        if not isinstance(loaded, TimedExperiment):
            raise click.BadParameter("this experiment times nothing", param_hint=f"--{key}")
        changes[key] = parse_list(key, text, choices)
    if only:
        missing = [name for name in only if name not in loaded.implementations]
        if missing:
            hint = did_you_mean(missing[0], loaded.implementations)
            raise click.BadParameter(f"{missing[0]} is not in this experiment{hint}", param_hint="--only")
        names = tuple(name for name in loaded.implementations if name in only)
        changes["implementations"] = names
    return loaded.model_copy(update=changes)


def parse_list(option: str, text: str, known: Sequence[Choice]) -> tuple[Choice, ...]:
    """The values of an option that takes a comma-separated list, each once. Raises `click.BadParameter`."""
    choices = {str(choice): choice for choice in known}
    values = tuple(dict.fromkeys(value.strip() for value in text.split(",")))
    unknown = [value for value in values if value not in choices]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(choices)}", param_hint=f"--{option}")
    return tuple(choices[value] for value in values)


def parse_budget(budget: str) -> float:
    """The seconds that `--budget` gives. Raises `click.BadParameter`."""
    from chunkbench.experiment import parse_duration

    try:
        return parse_duration(budget)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--budget") from None


def _axes(sets: Sequence[str]) -> Mapping[str, str]:
    axes = {}
    for text in sets:
        axis, equals, values = text.partition("=")
        if not equals or not values:
            raise click.BadParameter(
                f"{text!r}: write AXIS=VALUE or AXIS=V1,V2, e.g. n_p=1024,2048", param_hint="--set"
            )
        axes[axis.strip()] = values
    return axes
