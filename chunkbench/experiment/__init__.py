"""Experiments: YAML files that say which points are measured, with which implementations and how."""

from chunkbench.experiment.axes import AXES, AxisInfo
from chunkbench.experiment.errors import ExperimentError, Problem
from chunkbench.experiment.load import bundled_experiments, load_experiment
from chunkbench.experiment.model import Expectation, Experiment
from chunkbench.experiment.names import known_implementations
from chunkbench.experiment.point import Case, Point
from chunkbench.experiment.schema import json_schema
from chunkbench.experiment.units import parse_duration

__all__ = [
    "AXES",
    "AxisInfo",
    "Case",
    "Expectation",
    "Experiment",
    "ExperimentError",
    "Point",
    "Problem",
    "bundled_experiments",
    "json_schema",
    "known_implementations",
    "load_experiment",
    "parse_duration",
]
