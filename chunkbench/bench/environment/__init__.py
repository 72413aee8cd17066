"""The environment of a run (hardware, software, free memory, noise, git revision) and the checks of `chunkbench
doctor`."""

from chunkbench.bench.environment.cgroups import usable_threads
from chunkbench.bench.environment.cpu import bind_no_threads, respect_quota
from chunkbench.bench.environment.doctor import Diagnosis, diagnose
from chunkbench.bench.environment.fingerprint import Environment, fingerprint, read_environment, scrub
from chunkbench.bench.environment.machine import hardware_id, machine_id
from chunkbench.bench.environment.memory import available_memory, gpu_memory
from chunkbench.bench.environment.noise import NoiseMeter, heavy_processes
from chunkbench.bench.environment.revision import GitState, git_state
from chunkbench.bench.environment.software import why_no_gpu

__all__ = [
    "Diagnosis",
    "Environment",
    "GitState",
    "NoiseMeter",
    "available_memory",
    "bind_no_threads",
    "diagnose",
    "fingerprint",
    "git_state",
    "gpu_memory",
    "hardware_id",
    "heavy_processes",
    "machine_id",
    "read_environment",
    "respect_quota",
    "scrub",
    "usable_threads",
    "why_no_gpu",
]
