"""The lines of `chunkbench quick`."""

from __future__ import annotations

from pathlib import Path

from chunkbench.llama import shape_of
from chunkbench.report.build import build
from chunkbench.workloads.decode.headline import gains
from tests.invented_runs import case, run_in


def lines_of(folder: Path, *names: str) -> str:
    return "\n".join(gains(build(run_in(folder, map(case, names), name="quick")), shape_of("llama2-7b")))


def test_every_line_has_a_subject_also_without_native_kernels(tmp_path: Path) -> None:
    """`paged_attn` of invented runs lacks the native kernels; what it then says has neither memory nor a first line."""
    text = lines_of(tmp_path, "chunk_attn", "paged_attn", "naive")
    assert "not compared with caches that share nothing: PagedAttn was not measured (needs the native kernels" in text
    assert "time    decode attention of ChunkAttn is" in text
    assert "  it is" not in text
