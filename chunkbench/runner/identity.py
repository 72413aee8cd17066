"""What has to be the same for a run to be resumed: experiment, revision of this package, machine."""

from __future__ import annotations

import hashlib
import json

from chunkbench.environment import Environment, machine_id
from chunkbench.environment.revision import package_files
from chunkbench.experiment import Experiment

_EXPLANATIONS = {
    "experiment": "the experiment (or --set, --only, --device, --dtype) is not the one that the run was started with",
    "revision": "chunkbench itself has changed since the run was started",
    "machine": "the run was started on another machine or with another PyTorch",
}


def identity(experiment: Experiment, environment: Environment, device: str, dtype: str) -> dict[str, str]:
    """Digests of experiment, revision and machine. The budget is not part of it: a run may be given more time."""
    resolved = experiment.model_dump(mode="json", exclude={"source", "path", "budget_s"})
    text = json.dumps([resolved, device, dtype], sort_keys=True)
    return {
        "experiment": hashlib.sha256(text.encode()).hexdigest(),
        "revision": _source_digest(),
        "machine": machine_id(environment),
    }


def differences(recorded: dict[str, str], current: dict[str, str]) -> list[str]:
    """Why a run cannot be resumed, in words; empty when it can."""
    return [text for part, text in _EXPLANATIONS.items() if recorded.get(part) != current[part]]


def _source_digest() -> str:
    """Digest of the package's own code: a commit id would not see uncommitted changes."""
    digest = hashlib.sha256()
    for path, _ in package_files():
        if path.suffix in (".py", ".so"):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
