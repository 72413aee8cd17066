"""What must be unchanged so that a run can be resumed: experiment, revision of this package, machine, PyTorch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from chunkbench.bench.environment.revision import code_digest
from chunkbench.bench.experiment import Experiment
from chunkbench.bench.runner.target import Target

_BETWEEN = "; "
"""Stands between the kinds of machines that measure a run."""
_EXPLANATIONS = {
    "experiment": "the experiment, or an option that overrides part of it, has changed since the run was started",
    "revision": "chunkbench itself has changed since the run was started",
    "machine": "the run was started on another machine",
    "torch": "the run was started with another PyTorch",
}


def identity(experiment: Experiment, targets: Sequence[Target]) -> dict[str, str]:
    """Digests and ids of experiment, revision and machine, or of the kinds of machines where several measure a run.

    The budget does not count: a run may get more time.
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
    """The machine of a recorded identity, or its kinds of machines."""
    return recorded.get("machine", "").split(_BETWEEN)


def differences(recorded: dict[str, str], current: dict[str, str]) -> list[str]:
    """The reasons why a run cannot be resumed; empty if it can be."""
    return [text for part, text in _EXPLANATIONS.items() if recorded.get(part) != current[part]]
