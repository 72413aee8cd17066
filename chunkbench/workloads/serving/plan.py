"""Plans a serving run: the setting of the servers, the requests of each point, and a text that describes the run."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from chunkbench.bench.environment import available_memory
from chunkbench.bench.experiment.values import spell_value
from chunkbench.bench.measure.peaks import cpu_peaks
from chunkbench.bench.runner.dry_run import words_of
from chunkbench.bench.runner.memory_guard import usable
from chunkbench.bench.runner.target import Target
from chunkbench.run_error import RunError
from chunkbench.server.smollm2 import checkpoint_of
from chunkbench.traffic import TextIds, read_texts, text_ids
from chunkbench.workloads.serving.budget import (
    FEWEST_REQUESTS,
    FEWEST_SEEDS,
    Costs,
    Cut,
    Part,
    assumed_request_s,
    fit,
    took_s,
)
from chunkbench.workloads.serving.memory import MemoryPlan, plan_memory
from chunkbench.workloads.serving.methods import SYSTEMS
from chunkbench.workloads.serving.result import ServingPoint, ServingResult
from chunkbench.workloads.serving.servers.system import Setting, System
from chunkbench.workloads.serving.spec import ServingExperiment
from chunkbench.workloads.serving.tasks import TaskRequests

if TYPE_CHECKING:
    from chunkbench.workloads.serving.answers import QuestionSet

WARM_UP = 4
"""Number of requests that a server answers before its first measurement. Their prompts are not used again."""
REFUSED = "this server follows no constraints"
_FLOAT32, _REFERENCE = 2.0, 2.0
"""Assumed factors by which a request takes longer: in float32 instead of bfloat16, and with transformers instead of a
server.
"""
_GPU_RATES = 1e14, 1e12
"""Assumed rates of a GPU: FLOPs per second and bytes per second."""


class Unit(NamedTuple):
    """A point, and the systems that take turns there."""

    point: ServingPoint
    names: tuple[str, ...]


def describe(experiment: ServingExperiment, target: Target) -> str:
    """Describe the plan of a run."""
    points = experiment.points(target.device, target.dtype)
    asked = sorted({asked_requests(experiment.requests, point) for point in points})
    requests = str(asked[0]) if len(asked) == 1 else f"{asked[0]} to {asked[-1]}"
    lines = [
        f"{experiment.name}: {experiment.title}",
        f"{len(points)} points, {experiment.arrival_seeds} arrival seeds of {requests} requests"
        f" for each system, on {target.device} in {target.dtype}",
        "",
    ]
    available: dict[str, System] = {}
    for name in experiment.implementations:
        label, answer = SYSTEMS.availability(name, target.device)
        told = "will be measured" if answer.ok else f"unavailable: {answer.reason}"
        if answer.ok:
            available[name] = SYSTEMS.load(name)
            if experiment.constrained and available[name].constraint == "refused":
                told = f"unsupported: {REFUSED}"
                del available[name]
        lines.append(f"  {name:<24} {label:<24} {told}")
    lines += ["", *(f"  {point.brief}" for point in points)]
    setting = setting_of(experiment, target, points)
    texts_of(experiment, setting)
    task_of(experiment, setting, points)
    questions = questions_of(experiment, setting, points)
    memory = memory_of(experiment, setting, available)
    lines += [
        "",
        f"K/V memory of every system: {memory.kv_bytes / 2**30:.2f} GiB",
        *([memory.difference] * bool(memory.difference)),
    ]
    if available:
        costs = assumed_costs(setting, available)
        units = [Unit(point, names) for point in points for names in memory.groups]
        before_s = answers_s(questions, costs, points, tuple(available))
        lines += outlook(experiment, units, parts_of(experiment, costs, units), experiment.budget_s, before_s)
    return "\n".join(lines)


def memory_of(experiment: ServingExperiment, setting: Setting, systems: Mapping[str, System]) -> MemoryPlan:
    """Plan how the servers of these systems fit into the available memory. The memory of a GPU is not checked."""
    besides = {name: system.besides(setting) for name, system in systems.items()}
    if setting.device != "cpu":
        return MemoryPlan(setting.kv_bytes, (tuple(systems),) if systems else (), {}, "")
    reference = next((name for name in (experiment.reference, *systems) if name in systems), "")
    needed, room = kv_needed(setting), usable(available_memory())
    return plan_memory(besides, setting.kv_bytes, needed, experiment.baseline, reference, room)


def assumed_costs(setting: Setting, systems: Mapping[str, System]) -> Costs:
    """Estimate the times of a run before anything is measured. Probes the CPU for a fraction of a second."""
    flops_per_s, bytes_per_s = _GPU_RATES
    if setting.device == "cpu":
        peaks = cpu_peaks(setting.dtype)
        flops_per_s, bytes_per_s = peaks.matrix_flops_per_s, peaks.read_bytes_per_s

    def assumed(point: ServingPoint) -> float:
        if setting.constrained:  # answers may end before n_c tokens
            point = point.model_copy(update={"n_c": max(1, point.n_c // 2)})
        return assumed_request_s(point, setting.weights, setting.token_bytes, flops_per_s, bytes_per_s)

    unshared = {name for name, system in systems.items() if system.sharing == "none"}
    return Costs({name: system.start_s for name, system in systems.items()}, assumed, unshared)


def parts_of(
    experiment: ServingExperiment,
    costs: Costs,
    units: Sequence[Unit],
    running: Collection[str] = (),
    done: int = 0,
) -> list[Part]:
    """The parts of a run that are still to be measured, in order.

    `running`: systems whose servers run already. `done`: number of arrival seeds that the first unit has already
    measured.
    """
    parts, counted = [], set[str]()
    for point, names in units:
        requests, seeds = requests_id(point), experiment.arrival_seeds
        once_s = sum(costs.starts[name] for name in names if name not in running)
        running = {*names}
        if point.load is not None and not costs.knows(requests) and requests not in counted:
            once_s += capacity_requests(point) * costs.one_s(requests, point)
            counted.add(requests)
        turns = [costs.turn(name, requests, point) for name in names]
        asked = asked_requests(experiment.requests, point)
        fewest = max(FEWEST_REQUESTS, point.clients) if point.clients else asked_requests(FEWEST_REQUESTS, point)
        parts.append(
            Part(
                requests=asked,
                fewest_requests=min(asked, fewest),
                seeds=max(0, seeds - done),
                fewest_seeds=max(0, min(seeds, FEWEST_SEEDS) - done),
                once_s=once_s,
                seed_s=sum(fixed_s for fixed_s, _ in turns),
                request_s=sum(each_s for _, each_s in turns),
            )
        )
        done = 0
    return parts


def answers_s(asked: QuestionSet | None, costs: Costs, points: Sequence[ServingPoint], names: Sequence[str]) -> float:
    """Approximate seconds that the check `equal_answers` takes for these systems."""
    if asked is None or not names:
        return 0.0
    n_p = math.ceil(fmean(map(len, asked.last_messages)))
    alike = points[0].model_copy(update={"n_p": n_p, "n_s": 0, "n_c": asked.n_c, "clients": None})
    slower = 1.0 if points[0].dtype == "float32" else _FLOAT32
    each_s = slower * len(asked.last_messages) * costs.one_s("", alike)
    return _REFERENCE * each_s + sum(costs.starts[name] + each_s for name in names)


def outlook(
    experiment: ServingExperiment, units: Sequence[Unit], parts: Sequence[Part], budget_s: float, before_s: float = 0.0
) -> list[str]:
    """Lines that say what fits into the budget. `before_s`: seconds that the check `equal_answers` takes before
    measuring."""
    uncut = [Cut(part.requests, part.seeds) for part in parts]
    cuts = fit(parts, budget_s - before_s)
    if parts and not cuts[0].seeds:  # the first unit is measured in any case
        cuts[0] = parts[0].cut(0, parts[0].seeds)
    lines = [
        f"time: about {words_of(took_s(parts, cuts) + before_s)} of a budget of {words_of(budget_s)}; estimated from"
        " the machine's rates, and planned again with measured times as the run goes"
    ]
    if before_s:
        lines.append(f"about {words_of(before_s)} of this time for equal answers in float32, before the clock starts")
    if took_s(parts, cuts) > budget_s - before_s:
        lines.append(
            "the first point alone takes longer, even with the fewest requests and arrival seeds that a comparison "
            "needs"
        )
    if cuts == uncut:
        return lines
    lines.append(f"everything would take about {words_of(took_s(parts, uncut))}; this estimate cuts:")
    kept = [(part, cut) for part, cut in zip(parts, cuts, strict=True) if cut.seeds]
    fewer = sorted({(part.requests, cut.requests) for part, cut in kept if cut.requests < part.requests})
    if fewer:
        lines.append(
            f"  requests of an arrival seed: {', '.join(f'{now} in place of {asked}' for asked, now in fewer)}"
        )
    if (seeds := min(cut.seeds for _, cut in kept)) < experiment.arrival_seeds:
        lines.append(f"  arrival seeds: {seeds} in place of {experiment.arrival_seeds}")
    for unit, cut in zip(units, cuts, strict=True):
        if not cut.seeds:
            lines.append(f"  left out: {unit.point.brief}: {', '.join(unit.names)}")
    return lines


def asked_requests(requests: int, point: ServingPoint) -> int:
    """Number of requests of an arrival seed at this point.

    With `clients`, there are at most two requests per client, or four in all if that is more. A load above 100% gets
    more requests, so that arrivals last as long as at 100%. In a shorter burst, the server would seem to sustain a rate
    that it cannot sustain.
    """
    if point.clients:
        return min(requests, max(4, 2 * point.clients))
    return math.ceil(requests * max(100, point.load or 0) / 100)


def setting_of(experiment: ServingExperiment, target: Target, points: Sequence[ServingPoint]) -> Setting:
    """The setting that all servers of a run get.

    Raises `RunError` if the points need different servers, and `ModelMissing` if the model is not there.
    """
    models = {(str(point.model), point.batch_size, point.dtype, point.kv_dtype, point.threads) for point in points}
    if len(models) > 1:
        same = "model, batch_size, dtype, kv_dtype and threads"
        raise RunError(f"the points of a serving run must have one {same}; split the file")
    import torch

    point = points[0]
    longest = max(point.n_p + point.n_c for point in points)
    checkpoint = checkpoint_of(point.model)
    if checkpoint is not None and experiment.layers:
        raise RunError(f"layers: {point.model} has its own; leave it out")
    setting = Setting(
        shape=point.model,
        checkpoint=checkpoint,
        layers=experiment.layers or point.model.num_hidden_layers,
        vocabulary=experiment.vocabulary
        if checkpoint is None
        else json.loads((checkpoint / "config.json").read_text())["vocab_size"],
        max_length=longest,
        dtype=point.dtype,
        device=target.device,
        kv_dtype=point.kv_dtype,
        max_batch=point.batch_size,
        kv_bytes=int(experiment.kv_memory or 0),
        threads=point.threads or torch.get_num_threads(),
        seed=experiment.seed,
        endpoint=experiment.endpoint,
        constrained=bool(experiment.constrained),
        beams=any(point.beams for point in points),
    )
    return setting if setting.kv_bytes else replace(setting, kv_bytes=kv_needed(setting))


def texts_of(experiment: ServingExperiment, setting: Setting) -> TextIds | None:
    """The texts of the prompts as token ids. None if prompts are random ids. Raises `RunError` if the model has no
    tokenizer."""
    if not experiment.texts:
        return None
    return text_ids(read_texts(experiment.texts), _tokenizer(setting, "texts", experiment.texts))


def task_of(experiment: ServingExperiment, setting: Setting, points: Sequence[ServingPoint]) -> TaskRequests | None:
    """The requests of a constrained experiment. None if the experiment is not constrained. Raises `RunError` if the
    model has no tokenizer.
    """
    task = experiment.constrained
    return TaskRequests(task, _tokenizer(setting, "constrained", task), points) if task else None


def _tokenizer(setting: Setting, key: str, value: str) -> Path:
    """The model's tokenizer.json; the value of this key needs it. Raises `RunError` if the model has none."""
    tokenizer = setting.checkpoint and setting.checkpoint / "tokenizer.json"
    if tokenizer is None or not tokenizer.is_file():
        told = "give a checkpoint's folder with a tokenizer.json, or model: smollm2-135m"
        raise RunError(f"{key}: {setting.shape} has no tokenizer for {value}; {told}")
    return tokenizer


def questions_of(experiment: ServingExperiment, setting: Setting, points: Sequence[ServingPoint]) -> QuestionSet | None:
    """The questions for the check `equal_answers`. None if the experiment does not ask for it. Raises `RunError`."""
    if (
        not experiment.equal_answers or setting.checkpoint is None
    ):  # without a checkpoint, `texts_of` has raised an error
        return None
    from chunkbench.workloads.serving.answers import QuestionSet  # importing transformers takes seconds

    n_c = min(point.n_c for point in points)
    longest = setting.max_length - n_c
    return QuestionSet(read_texts(experiment.texts), setting.checkpoint, experiment.equal_answers, longest, n_c)


def kv_needed(setting: Setting) -> int:
    """Bytes of K/V that a full batch of the longest requests needs.

    Assumes that each request leaves nearly one block or chunk of 64 tokens empty.
    """
    return setting.max_batch * (math.ceil(setting.max_length / 64) + 1) * 64 * setting.token_bytes


def capacity_requests(point: ServingPoint) -> int:
    """Number of requests to measure a capacity: two for each closed-loop client."""
    return 2 * capacity_clients(point)


def capacity_clients(point: ServingPoint) -> int:
    """Number of closed-loop clients that fill a batch with the answers to their requests."""
    return max(1, point.batch_size // point.answers)


def weight(point: ServingPoint) -> int:
    """Relative cost of a point: tokens of one request, including shared tokens."""
    return point.n_p + point.n_c


def requests_id(point: ServingPoint | ServingResult) -> str:
    """A text that contains all axes on which the capacity of a system depends. Points that differ only in their rate
    have the same text."""
    names: tuple[str, ...] = ("model", "n_p", "n_s", "n_c", "batch_size", "prompts", "tree")
    names += tuple(axis for axis in ("forced", "samples", "beams") if getattr(point, axis) is not None)
    return " ".join(f"{name}={spell_value(getattr(point, name))}" for name in names)


def draw_id(point: ServingPoint) -> str:
    """A text that seeds the prompts and the order of the systems. It must not change, or a resumed run would draw other
    requests."""
    rate = f"load={point.load}%" if point.load is not None else f"rate={point.rate}/min"
    rate = f"clients={point.clients}" if point.clients else rate
    return f"{requests_id(point)} {rate}"
