"""Links, examples and commands in the documentation exist and work."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from chunkbench.bench.experiment import Experiment, load_experiment
from chunkbench.cli.main import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_have_targets(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_documented_experiment_is_valid(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "experiments.md").read_text()
    example = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert example is not None
    (tmp_path / "documented.yaml").write_text(example.group(1))
    experiment = load_experiment(tmp_path / "documented.yaml")
    assert len(experiment.points("cpu", "float32")) == 9


def test_every_key_of_an_experiment_is_documented() -> None:
    text = (ROOT / "docs" / "experiments.md").read_text()
    names = {field.alias or name for name, field in Experiment.model_fields.items() if not field.exclude}
    for name in sorted(names):
        assert f"`{name}`" in text, name
    assert all(f"`{name}`" in text or f"{name}:" in text for name in ("n_p", "n_s", "tree"))


def test_the_examples_of_the_library_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "library.md").read_text(), re.DOTALL)
    uses = [code for code in blocks if not code.startswith("# my_kernel.py")]  # that one has a test of its own
    assert len(uses) >= 2
    for code in uses:
        names: dict[str, Any] = {}
        exec(code, names)  # their assertions are tests
        assert {"out", "attention"} <= names.keys()


def test_the_schema_for_editors_is_that_of_this_revision() -> None:
    kept = json.loads((ROOT / "experiments" / "schema.json").read_text())
    # In a process of its own: tests of clusters add a kind of work to this one.
    command = [sys.executable, "-m", "chunkbench", "validate", "--schema"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert kept == json.loads(printed), "chunkbench validate --schema > experiments/schema.json"
    for path in (ROOT / "experiments").glob("*.yaml"):
        assert path.read_text().startswith("# yaml-language-server: $schema=./schema.json\n"), path


def test_the_readme_fits_one_reading() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    first_screen = "\n".join(text.splitlines()[:32])
    for needed in ("![", "arxiv.org", "Kernel authors", "make reproduce-table3", "make test"):
        assert needed in first_screen
    for symbol in ("`n_p`", "`n_s`", "`*`", "`~`"):
        assert symbol in text


COMMANDS = sorted(
    {
        (page.name, line)
        for page in [*PAGES, *sorted((ROOT / "docs" / "ci").glob("*.yml"))]
        for line in re.findall(
            r"^\s*(?:- |run: )?(?:\.venv/bin/)?(chunkbench [a-z].*)$", page.read_text(), re.MULTILINE
        )
    }
)


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_every_documented_command_is_valid(page: str, line: str) -> None:
    """Checks the names of commands and options, and their values as far as possible without running the command."""
    words = shlex.split(line.partition("  #")[0].replace("$BASE", "main"))[1:]
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None, f"{page}: {line}"
    command.make_context(words[0], words[1:])


def test_workflow_files_are_yaml() -> None:
    for path in (ROOT / "docs" / "ci").glob("*.yml"):
        assert yaml.safe_load(path.read_text()), path
