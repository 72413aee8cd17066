"""Workers use huge pages for everything that implementations hold, or small ones if the experiment asks for these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chunkbench.baselines.registry import REGISTRY
from chunkbench.bench.environment.cpu import asks_for_huge_pages, huge_pages
from chunkbench.bench.experiment.terms import Pages
from chunkbench.bench.runner.client import WorkerProcess
from chunkbench.bench.workers.pages import environment, huge_share

# 64 MB of K and V: much more than what is lost at the ends of the heap's huge pages.
POINT = {
    "n_p": 1024, "n_s": 0, "n_c": 1, "batch_size": 8, "heads": 16, "kv_heads": 16, "head_dim": 64, "chunk_size": 64,
    "block_size": 32, "dtype": "float32", "device": "cpu", "threads": 1,
}  # fmt: skip
SMAPS = """\
55d000000000-55d000400000 rw-p 00000000 00:00 0                          [heap]
Size:               4096 kB
Rss:                4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac hg
7f0000000000-7f0000200000 rw-p 00000000 00:00 0
Rss:                2048 kB
AnonHugePages:      2048 kB
7f0000200000-7f0000300000 r--p 00000000 08:01 1234                       /usr/lib/libc.so.6
Rss:                1024 kB
AnonHugePages:         0 kB
"""


def test_the_share_is_that_of_the_mappings_that_hold_the_blocks(tmp_path: Path) -> None:
    smaps = tmp_path / "smaps"
    smaps.write_text(SMAPS)
    assert huge_share([(0x55D000100000, 4096)], smaps) == 0.5
    assert huge_share([(0x55D000100000, 4096), (0x7F0000000000, 1)], smaps) == pytest.approx(4 / 6)
    assert huge_share([(0x7F0000200000, 8)], smaps) == 0
    assert huge_share([(0x1000, 8)], smaps) is None
    assert huge_share([(0x7F0000000000, 0)], smaps) is None
    assert huge_share([(0x7F0000000000, 1)], tmp_path / "missing") is None


def test_the_users_own_tunables_of_glibc_are_kept() -> None:
    given = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2:glibc.malloc.arena_max=1"}
    assert environment("huge", given)["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"
    assert environment("small", {})["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=0"


GRANTED = huge_pages() == "always" or (huge_pages() == "madvise" and asks_for_huge_pages())


@pytest.mark.skipif(not GRANTED, reason="no program gets huge pages here")
@pytest.mark.parametrize("pages", ["huge", "small"])
def test_every_implementation_gets_the_same_pages(pages: Pages, start_worker: Callable[..., WorkerProcess]) -> None:
    """PyTorch's buffers, vLLM's and our own: smaps says what the system granted."""
    few = ["naive", "chunk_attn", "paged_attn"]
    names = few if pages == "small" else [name for name in REGISTRY.names() if REGISTRY.availability(name, "cpu")[1].ok]
    worker = start_worker(pages=pages)
    worker.ask("open", 60, point=POINT, seed=0, probe_bytes=0)
    shares = {}
    for name in names:
        if worker.ask("supports", 60, implementation=name)["ok"]:
            worker.ask("prepare", 60, implementation=name, needs=1 << 26)
            shares[name] = worker.ask("check", 60, implementation=name, steps=1, nonce=1)["huge_share"]
    visible = {name: share for name, share in shares.items() if share is not None}
    assert {*few} <= set(visible)
    if pages == "small":
        assert set(visible.values()) == {0.0}
    else:
        assert min(visible.values()) > 0.85, visible
