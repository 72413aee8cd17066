"""A run of `kind: answers` with the small trained model, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkbench.bench.experiment import ExperimentError, load_experiment
from chunkbench.bench.store import open_run
from chunkbench.cli.main import cli
from chunkbench.report import build
from chunkbench.workloads.answers.metrics import METRICS, by_depth
from tests.workloads.answers.test_claims import answers

EXPERIMENT = """
kind: answers
budget: 60s
contexts: 1
held: 32
tested: 60
implementations: [all_heads, retrieval_heads, no_heads]
sweep:
  - {n_p: [600, 1200], window: 64}
  - {n_p: 8190, window: 64}
"""


def run(folder: Path, text: str) -> tuple[int, str]:
    (folder / "experiment.yaml").write_text(text)
    words = ["run", str(folder / "experiment.yaml"), "--out", str(folder / "run")]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    return done.exit_code, done.output


@pytest.mark.slow
def test_retrieval_heads_find_what_windows_lost(tmp_path: Path) -> None:
    code, output = run(tmp_path, EXPERIMENT)
    assert code == 0, output
    assert (tmp_path / "run" / "figure.png").is_file()
    report = build(open_run(tmp_path / "run"))
    found = {
        (row.facts.implementation, row.facts.axis("n_p")): {
            name: metric.value(row.facts) or 0 for name, metric in METRICS.items()
        }
        for row in report.rows
    }
    for n_p in (600, 1200):
        everything, retrieval, none = (found[f"{name}_heads", n_p] for name in ("all", "retrieval", "no"))
        assert everything["found"] == everything["findable"] >= 8
        assert retrieval["found"] > none["found"]
        assert everything["kv_share"] == 1 > retrieval["kv_share"] > none["kv_share"]
        assert retrieval["deviation"] < none["deviation"]
    long = [row.facts for row in report.rows if row.facts.axis("n_p") == 8190]
    assert {(facts.status, "n_p is at most 8153" in facts.reason) for facts in long} == {("unsupported", True)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("window: 64}", "window: 64, model: llama2-7b}"), "has random weights, which answer nothing"),
        (("tested: 60", "heads: nowhere.json"), "there is no file 'nowhere.json' here"),
        (("n_p: 8190", "n_p: {low: 5, high: 9}"), "contexts of one length"),
        (("window: 64}", "window: 64, batch_size: 4}"), "is 10: a question for each needle"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT.replace(*change))
    with pytest.raises(ExperimentError, match=message):
        load_experiment(str(tmp_path / "experiment.yaml"))


def test_only_needles_that_the_model_finds_count() -> None:
    facts = answers("retrieval_heads", 6, findable=8)
    found = [METRICS[name].value(facts) for name in ("found", "findable", "needles", "found_share")]
    assert found == [6, 8, 10, 0.75]
    assert by_depth(facts) == [*(1.0,) * 6, *(0.0,) * 2, None, None]
