"""Experiments: YAML files that list the points to measure, the implementations, and how to measure them."""

from chunkbench.experiment.axes import AXES, Axis
from chunkbench.experiment.errors import ExperimentError, Problem
from chunkbench.experiment.load import bundled_experiments, load_experiment, reading_order
from chunkbench.experiment.point import AttentionPoint, Case, Point
from chunkbench.experiment.schema import json_schema
from chunkbench.experiment.sessions import Expectation, SessionExperiment, TimedExperiment
from chunkbench.experiment.spec import Experiment
from chunkbench.experiment.units import parse_duration

__all__ = [
    "AXES",
    "AttentionPoint",
    "Axis",
    "Case",
    "Expectation",
    "Experiment",
    "ExperimentError",
    "Point",
    "Problem",
    "SessionExperiment",
    "TimedExperiment",
    "bundled_experiments",
    "json_schema",
    "load_experiment",
    "parse_duration",
    "reading_order",
]
