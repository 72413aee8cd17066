"""What must be unchanged so that a run can be resumed: experiment, revision of this package, machine, PyTorch."""

from __future__ import annotations

import hashlib
import json

from chunkbench.environment.revision import package_files
from chunkbench.experiment import Experiment
from chunkbench.runner.target import Target

_EXPLANATIONS = {
    "experiment": "the experiment, or an option that overrides part of it, has changed since the run was started",
    "revision": "chunkbench itself has changed since the run was started",
    "machine": "the run was started on another machine",
    "torch": "the run was started with another PyTorch",
}


def identity(experiment: Experiment, target: Target) -> dict[str, str]:
    """Digests and ids of experiment, revision and machine. The budget does not count: a run may get more time."""
    resolved = experiment.model_dump(mode="json", exclude={"source", "path", "budget_s"})
    text = json.dumps([resolved, target.device, target.dtype], sort_keys=True)
    torch = target.environment.torch
    return {
        "experiment": hashlib.sha256(text.encode()).hexdigest(),
        "revision": _source_digest(),
        "machine": target.machine,
        "torch": f"{torch.version}, CUDA {torch.cuda}",
    }


def differences(recorded: dict[str, str], current: dict[str, str]) -> list[str]:
    """The reasons why a run cannot be resumed; empty if it can be."""
    return [text for part, text in _EXPLANATIONS.items() if recorded.get(part) != current[part]]


def _source_digest() -> str:
    """Digest of the package's own code: a commit id would miss uncommitted changes."""
    digest = hashlib.sha256()
    for path, _ in package_files():
        if path.suffix in (".py", ".so"):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
