"""The composite action and the workflow files: complete, consistent, and, in `make nightly`, run for real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.example_project import committed_example
from tests.slowed_example import slower_by

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in ACTION["runs"]["steps"]}
SCRIPTS = [name for name, step in STEPS.items() if "run" in step]


def workflow(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "ci" / name).read_text())
    return loaded


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_step_of_the_action_is_a_script_that_gets_its_values_by_its_environment(name: str) -> None:
    step = STEPS[name]
    subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)
    assert "${{" not in step["run"]  # a pull request's text must not become a part of the script
    used = set(re.findall(r"\$\{?([A-Z_]+)", step["run"]))
    assert used - {"GITHUB_PATH"} <= set(step["env"])


def test_the_action_uses_the_inputs_that_it_declares() -> None:
    used = set(re.findall(r"inputs\.([a-z-]+)", (ROOT / "action.yml").read_text()))
    assert used == set(ACTION["inputs"])
    assert "../action.yml" in (ROOT / "docs" / "regression.md").read_text()
    assert all(one["description"] for one in ACTION["inputs"].values())


def test_the_workflow_passes_inputs_of_the_action() -> None:
    (job,) = workflow("project-github-actions.yml")["jobs"].values()
    checkout, tool, compare = job["steps"]
    assert checkout["with"]["fetch-depth"] == 0
    assert compare["uses"] == f"./{tool['with']['path']}"
    assert set(compare["with"]) <= set(ACTION["inputs"])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("slower", [False, True])
@pytest.mark.parametrize("system", ["github", "gitlab"])
def test_the_comparing_step_on_a_pull_request(tmp_path: Path, slower: bool, system: str) -> None:
    project, out = committed_example(tmp_path), tmp_path / "out"
    base = project.git("rev-parse", "HEAD")
    if slower:
        with project.module.open("a") as file:
            file.write(slower_by(19))
    project.git("commit", "-qam", "head", "--allow-empty")
    values = {"EXPERIMENT": "", "BASE": base, "FAIL_ON": "slower,incorrect,missing", "OUT": str(out)}
    values |= {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"), "CI_MERGE_REQUEST_DIFF_BASE_SHA": base}
    values["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if system == "github":
        script, reports = STEPS["Compare"]["run"], out
    else:
        (script,) = workflow("project-gitlab-ci.yml")["chunkbench"]["script"]
        reports = project.path / "chunkbench-regress"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=project.path, env=project.environment | values, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == int(slower), done.stdout + done.stderr
    assert "my_kernel" in (reports / "comparison.md").read_text()
    if system == "github":
        assert ("::error title=slower%3A my_kernel" in done.stdout) == slower
        assert (tmp_path / "summary.md").read_text()
