"""The device and the dtype that an experiment uses on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from chunkbench.bench.environment import Environment, machine_id, read_environment, why_no_gpu
from chunkbench.bench.experiment import Experiment
from chunkbench.bench.experiment.terms import Device, Dtype
from chunkbench.run_error import RunError

NO_CUDA = "device: cuda cannot be used: "
_NATIVE_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""CPU flags of instructions that multiply bfloat16."""


@dataclass(frozen=True)
class Target:
    """This machine, and the device and dtype after `auto` is resolved."""

    device: Device
    dtype: Dtype
    environment: Environment
    machine: str
    """Id of the machine."""
    machine_kind: str = ""
    """The kind of machine, where several machines measure a run; empty on this machine alone."""


def resolve_target(experiment: Experiment, describing: bool = False) -> Target:
    """Resolve `device: auto` and `dtype: auto` on this machine.

    Raises `RunError` if the device is absent, unless the run is only described (`describing`).
    """
    environment = read_environment()
    target = resolve_on(experiment, environment, machine_id(environment.model_dump(mode="json")).id)
    if target.device == "cuda" and not describing and (reason := why_no_gpu()):
        raise RunError(NO_CUDA + reason)
    return target


def resolve_on(experiment: Experiment, environment: Environment, machine: str, machine_kind: str = "") -> Target:
    """Resolve `device: auto` and `dtype: auto` on a machine, which may lack the device that is named.

    auto is float16 on CUDA; on a CPU bfloat16 if it has bfloat16 instructions, else float32.
    """
    detected: Device = "cuda" if environment.gpus else "cpu"
    device = detected if experiment.device == "auto" else experiment.device
    native: Dtype = "bfloat16" if {*environment.cpu.isa} & _NATIVE_BFLOAT16 else "float32"
    suited: Dtype = "float16" if device == "cuda" else native
    dtype = suited if experiment.dtype == "auto" else experiment.dtype
    return Target(device, dtype, environment, machine, machine_kind)
