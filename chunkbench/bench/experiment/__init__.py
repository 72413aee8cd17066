"""Experiments: YAML files that list the points to measure, the implementations, and how to measure them."""

from chunkbench.bench.experiment.axes import AXES, Axis
from chunkbench.bench.experiment.findings import ExperimentError, Problem
from chunkbench.bench.experiment.load import bundled_experiments, load_experiment, reading_order
from chunkbench.bench.experiment.point import AttentionPoint, Case, Point
from chunkbench.bench.experiment.schema import json_schema
from chunkbench.bench.experiment.sessions import Expectation, SessionExperiment, TimedExperiment
from chunkbench.bench.experiment.spec import Experiment
from chunkbench.bench.experiment.values import parse_duration

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
