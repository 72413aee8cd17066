"""Pages: names, links, examples and figures."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import yaml

import chunkbench
from chunkbench.bench.experiment import load_experiment
from chunkbench.cli.main import cli
from chunkbench.kernels.reference import attention
from examples import two_phase as example
from examples.recompute import figures
from scripts import build_docs
from tests.command import chunkbench as command
from tests.example_project import committed_example, slower_by

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


def test_the_table_of_keys_is_that_of_the_schema(accept: bool) -> None:
    """`--accept` writes the table."""
    page = ROOT / "docs" / "experiments.md"
    written = build_docs.with_keys(page.read_text())
    if accept:
        page.write_text(written)
    assert page.read_text() == written


def test_the_schema_says_what_every_key_and_value_means() -> None:
    schema = json.loads((ROOT / "experiments" / "schema.json").read_text())
    for key, field in schema["properties"].items():
        assert len(field["description"].rpartition("] ")[2]) > 5, key
        for choice in field.get("anyOf", [field]):
            for value in choice.get("enum", []):
                assert value in field["description"], key


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
    assert len(text.splitlines()) <= 130
    first_screen = "\n".join(text.splitlines()[:32])
    for needed in ("![", "arxiv.org", "Kernel authors", "make reproduce-table3", "make test"):
        assert needed in first_screen
    for symbol in ("`n_p`", "`n_s`", "`*`", "`~`"):
        assert symbol in text


COMMAND = re.compile(r"^\s*(?:- |run: )?(?:\.venv/bin/)?(chunkbench [a-z].*)$", re.MULTILINE)
WORKFLOWS = sorted((ROOT / "docs" / "ci").glob("*.yml"))
COMMANDS = sorted({(page.name, line) for page in [*PAGES, *WORKFLOWS] for line in COMMAND.findall(page.read_text())})


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_every_documented_command_is_valid(page: str, line: str) -> None:
    """Checks the names of commands and options, and their values as far as possible without running the command."""
    words = shlex.split(line.partition("  #")[0].replace("$BASE", "main"))[1:]
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None, f"{page}: {line}"
    command.make_context(words[0], words[1:])


EXAMPLE = Path(example.__file__)


@pytest.mark.parametrize("shared", [0, 1, 63, 64, 200])
def test_both_kinds_of_attention_equal_the_reference(shared: int) -> None:
    rng, vocabulary = random.Random(shared), 50
    prefix = rng.choices(range(vocabulary), k=shared)
    prompts = [prefix + rng.choices(range(vocabulary), k=130) for _ in range(4)]
    prompts[3] = prompts[2][:-5] + prompts[3][-5:]  # a second prefix, of two sequences
    k, v = torch.randn(2, 2, vocabulary, 16).double()
    q = torch.randn(2, len(prompts), 16).double()
    chunks = example.prefix_tree(prompts, k, v)
    two_phase = example.two_phase_attention(q, chunks)
    plain = example.plain_attention(q, k[:, prompts], v[:, prompts])
    for sequence, prompt in enumerate(prompts):
        expected = attention(q[:, sequence], k[:, prompt].transpose(0, 1), v[:, prompt].transpose(0, 1))
        torch.testing.assert_close(two_phase[:, sequence], expected)
        torch.testing.assert_close(plain[:, sequence], expected)


def test_a_chunk_is_shared_where_everything_before_its_end_is_equal() -> None:
    prompts = [[1] * 64 + [2] * 64, [1] * 64 + [3] * 64 + [4], [5] * 64 + [2] * 64]
    k, v = torch.randn(2, 1, 6, 4)
    sharers = [chunk.sequences for chunk in example.prefix_tree(prompts, k, v)]
    assert sharers == [[0, 1], [0], [1], [1], [2], [2]]


def test_it_runs_with_torch_alone_and_the_results_agree() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain, two_phase, difference = done.stdout.splitlines()
    assert (plain.split()[0], two_phase.split()[0]) == ("plain:", "two-phase:")
    assert float(difference.split()[-1]) < 1e-5
    imports = [line for line in EXAMPLE.read_text().splitlines() if line.startswith(("import ", "from "))]
    assert "chunkbench" not in " ".join(imports)


EXPERIMENT = """\
name: recompute
title: a run to recompute
dtype: float32
budget: 1s
implementations: [naive, xformers, shared_prefix_matmul, chunk_attn]
defaults: {n_c: 9, batch_size: 2, heads: 2, head_dim: 32, chunk_size: 16}
sweep:
  - {n_p: 40, n_s: [0, 32]}
"""
FIGURES = ("latency_us", "append_us", "plan_us", "step_us", "token_rate", "roofline_fraction", "bandwidth_fraction")


def test_the_example_recomputes_every_figure_of_the_report(tmp_path: Path) -> None:
    spec = tmp_path / "recompute.yaml"
    spec.write_text(EXPERIMENT)
    run = tmp_path / "run"
    assert not command("run", str(spec), "-q", "--out", str(run)).code
    assert "import chunkbench" not in (ROOT / "examples" / "recompute.py").read_text()
    recomputed = figures(run).set_index("key")
    reported = {case["key"]: case for case in json.loads((run / "report.json").read_text())}
    loaded = chunkbench.load(run).set_index("key")
    assert len(recomputed) == 6
    assert len(loaded) == len(reported) == 8
    for key, case in recomputed.iterrows():
        for figure in (*FIGURES, "ratio_to_baseline"):
            assert math.isclose(case[figure], reported[key][figure], rel_tol=1e-9), figure
            assert math.isclose(case[figure], loaded.loc[key, figure], rel_tol=1e-9), figure
    unavailable = [case for case in reported.values() if case["implementation"] == "xformers"]
    assert {case["status"] for case in unavailable} == {"unavailable"}
    assert all(case["latency_us"] is None for case in unavailable)


PAGE = (ROOT / "docs" / "design.md").read_text()
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("contract", [one for one in CONTRACTS if "layers" in one], ids=lambda one: one["name"])
def test_rooms_stand_in_the_order_of_the_linter(contract: dict[str, list[str]]) -> None:
    (package,) = contract["containers"]
    folder = ROOT / package.replace(".", "/")
    layers = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
    place = {name: number for number, names in enumerate(layers) for name in names}
    tables = re.findall(r"(?:^\|.*\n)+", section("Where things are"), flags=re.MULTILINE)
    tabled = [
        re.findall(r"`([a-z_]+)(?:/|\.py)`", row.split("|")[1])
        for row in tables[package == "chunkbench.bench"].splitlines()
    ]
    rooms = [name for names in tabled for name in names]
    assert rooms == sorted(rooms, key=place.__getitem__)
    named = {*rooms, *re.findall(r"`([a-z_]+)\.py`", section("Where things are")), "experiments", "results"}
    assert set(place) <= named
    assert {path.name for path in folder.iterdir() if (path / "__init__.py").exists()} <= set(place)


def test_the_files_of_recipes_exist() -> None:
    pattern = r"`((?:chunkbench|baselines|tests|docs|results)/[a-z0-9_/]+\.(?:py|md|csv)|pyproject\.toml)`"
    for name in re.findall(pattern, section("Recipes")):
        assert (ROOT / name).exists(), name


ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in ACTION["runs"]["steps"]}
SCRIPTS = [name for name, step in STEPS.items() if "run" in step]


CI: dict[str, Any] = {path.name: yaml.safe_load(path.read_text()) for path in WORKFLOWS}


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
    (job,) = CI["project-github-actions.yml"]["jobs"].values()
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
        (script,) = CI["project-gitlab-ci.yml"]["chunkbench"]["script"]
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
