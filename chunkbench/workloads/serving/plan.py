"""What a serving run will do: the setting that all systems get, the requests of a point, and the plan as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from chunkbench.experiment.points import ServingPoint
from chunkbench.experiment.values import show_value
from chunkbench.runner.target import Target
from chunkbench.serving.servers.registry import SYSTEMS
from chunkbench.serving.servers.system import Setting
from chunkbench.serving.smollm2 import checkpoint_of
from chunkbench.store import RunError
from chunkbench.store.serving_result import ServingResult
from chunkbench.workloads.serving.spec import ServingExperiment


def describe(experiment: ServingExperiment, target: Target) -> str:
    """The plan of a run, as text."""
    points = experiment.points(target.device, target.dtype)
    most = max(asked_requests(experiment.requests, point.load) for point in points)
    requests = str(most) if most == experiment.requests else f"{experiment.requests} to {most}"
    lines = [
        f"{experiment.name}: {experiment.title}",
        f"{len(points)} points, {experiment.arrival_seeds} arrival seeds of {requests} requests"
        f" for each system, on {target.device} in {target.dtype}",
        "",
    ]
    for name in experiment.implementations:
        label, answer = SYSTEMS.availability(name, target.device)
        lines.append(f"  {name:<24} {label:<24} {'will be measured' if answer.ok else f'unavailable: {answer.reason}'}")
    lines += ["", *(f"  {point.brief}" for point in points)]
    setting = setting_of(experiment, target, points)
    return "\n".join([*lines, "", f"K/V memory of every system: {setting.kv_bytes / 2**30:.2f} GiB"])


def asked_requests(requests: int, load: int | None) -> int:
    """Requests of an arrival seed at a load in percent.

    Above the capacity of the reference they grow with the load, so that they arrive for as long as at 100%. As many
    requests as at 100% would be a short burst, which tells nothing about the rate that a system sustains.
    """
    return math.ceil(requests * max(100, load or 0) / 100)


def setting_of(experiment: ServingExperiment, target: Target, points: Sequence[ServingPoint]) -> Setting:
    """What all systems of a run get.

    Raises `RunError` if its points need different servers, `ModelMissing` if its model is not there.
    """
    models = {(str(point.model), point.batch_size, point.dtype, point.threads) for point in points}
    if len(models) > 1:
        raise RunError("the points of a serving run must have one model, batch_size, dtype and threads; split the file")
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
        vocabulary=experiment.vocabulary,
        max_length=longest,
        dtype=point.dtype,
        device=target.device,
        max_batch=point.batch_size,
        kv_bytes=int(experiment.kv_memory or 0),
        threads=point.threads or torch.get_num_threads(),
        seed=experiment.seed,
        endpoint=experiment.endpoint,
    )
    if setting.kv_bytes:
        return setting
    # Blocks and chunks have at most 64 tokens; each request may leave one of them nearly empty.
    tokens = point.batch_size * (math.ceil(longest / 64) + 1) * 64
    return replace(setting, kv_bytes=tokens * setting.token_bytes)


def requests_id(point: ServingPoint | ServingResult) -> str:
    """What the capacity of a system depends on: everything but the rate. An axis that changes requests belongs here."""
    names = ("model", "n_p", "n_s", "n_c", "batch_size", "prompts", "tree")
    return " ".join(f"{name}={show_value(getattr(point, name))}" for name in names)


def draw_id(point: ServingPoint) -> str:
    """What prompts and the order of turns are drawn from. Other text would draw other requests in a resumed run."""
    rate = f"load={point.load}%" if point.load is not None else f"rate={point.rate}/min"
    return f"{requests_id(point)} {rate}"
