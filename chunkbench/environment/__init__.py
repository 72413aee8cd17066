"""The environment of a run: a scrubbed fingerprint, free memory, noise, the revision; and the checks of `doctor`."""

from chunkbench.environment.cgroups import usable_threads
from chunkbench.environment.cpu import bind_no_threads, respect_quota
from chunkbench.environment.doctor import Diagnosis, diagnose
from chunkbench.environment.fingerprint import Environment, fingerprint, read_environment, scrub
from chunkbench.environment.machine import hardware_id, machine_id
from chunkbench.environment.memory import available_memory, gpu_memory
from chunkbench.environment.noise import NoiseMeter, heavy_processes
from chunkbench.environment.revision import GitState, git_state
from chunkbench.environment.software import why_no_gpu

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
