"""The machine, device and dtype that an experiment runs with, and the values that identify a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chunkbench.bench.environment import Environment, machine_id, read_environment, why_no_gpu
from chunkbench.bench.environment.revision import code_digest
from chunkbench.bench.experiment import Experiment
from chunkbench.bench.experiment.terms import Device, Dtype
from chunkbench.run_error import RunError

NO_CUDA = "device: cuda cannot be used: "


@dataclass(frozen=True)
class Target:
    """A machine, and the device and dtype after `auto` is resolved."""

    device: Device
    dtype: Dtype
    environment: Environment
    machine: str
    """Id of the machine."""
    machine_kind: str = ""
    """The kind of this machine, if a run uses machines of several kinds; else empty."""


def resolve_target(experiment: Experiment, describing: bool = False) -> Target:
    """Resolve `device: auto` and `dtype: auto` on this machine.

    Raises `RunError` if the device cannot be used. With `describing`, an absent device is no error, because nothing
    will be measured.
    """
    environment = read_environment()
    target = resolve_on(experiment, environment, machine_id(environment.model_dump(mode="json")).id)
    if target.device == "cuda" and not describing and (reason := why_no_gpu()):
        raise RunError(NO_CUDA + reason)
    return target


def resolve_on(experiment: Experiment, environment: Environment, machine: str, machine_kind: str = "") -> Target:
    """Resolve `device: auto` and `dtype: auto` for a machine. The machine may lack the device that the experiment
    names.

    The dtype `auto` is float16 on CUDA, bfloat16 on a CPU with bfloat16 instructions, else float32.
    """
    detected: Device = "cuda" if environment.gpus else "cpu"
    device = detected if experiment.device == "auto" else experiment.device
    native: Dtype = "bfloat16" if environment.cpu.bfloat16_flags else "float32"
    suited: Dtype = "float16" if device == "cuda" else native
    dtype = suited if experiment.dtype == "auto" else experiment.dtype
    return Target(device, dtype, environment, machine, machine_kind)


_BETWEEN = "; "
"""Text between the names of machine kinds in the identity of a run."""
_EXPLANATIONS = {
    "experiment": "the experiment, or an option that overrides part of it, has changed since the run was started",
    "revision": "chunkbench itself has changed since the run was started",
    "machine": "the run was started on another machine",
    "torch": "the run was started with another PyTorch",
}


def identity(experiment: Experiment, targets: Sequence[Target]) -> dict[str, str]:
    """Values that must stay equal until a run is resumed: digests or ids of experiment, revision, machine and PyTorch.

    If machines of several kinds measure the run, the names of the kinds replace the machine's id. The budget is left
    out, because a resumed run may get more time.
    """
    resolved = experiment.model_dump(mode="json", exclude={"source", "path", "budget_s"})
    text = json.dumps([resolved, *([target.device, target.dtype] for target in targets)], sort_keys=True)
    builds = [target.environment.torch for target in targets]
    torch = dict.fromkeys(f"{build.version}, CUDA {build.cuda}" for build in builds)
    return {
        "experiment": hashlib.sha256(text.encode()).hexdigest(),
        "revision": code_digest(".py", ".so"),  # a commit id would miss uncommitted changes
        "machine": _BETWEEN.join(target.machine_kind or target.machine for target in targets),
        "torch": "; ".join(torch),
    }


def machines_of(recorded: Mapping[str, str]) -> list[str]:
    """The machine's id in the result of `identity`, or the names of the kinds of machines."""
    return recorded.get("machine", "").split(_BETWEEN)


def differences(recorded: dict[str, str], current: dict[str, str]) -> list[str]:
    """The reasons why a run cannot be resumed; empty if it can be."""
    return [text for part, text in _EXPLANATIONS.items() if recorded.get(part) != current[part]]
