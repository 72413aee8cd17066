"""Chooses the size of memory pages for all workers of a run: huge pages if the system allows them.

On a virtual machine with pages of 4 KB, walks through page tables take up to a third of the time. Huge pages (2 MB on
x86) save this time. glibc asks for huge pages for the whole heap (`MADV_HUGEPAGE`). The heap holds all data of a
worker: the tensors of PyTorch and of other libraries, and the memory of the native kernels.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from chunkbench.bench.experiment.terms import Pages

_SMALL = "CHUNKBENCH_SMALL_PAGES"
_TUNABLES, _HUGETLB = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
_PR_SET_THP_DISABLE = 41
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ")


def environment(pages: Pages, given: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of a worker that has to use `pages`. `given` are the variables of the parent."""
    others = [text for text in given.get(_TUNABLES, "").split(":") if text and not text.startswith(f"{_HUGETLB}=")]
    tunables = ":".join([*others, f"{_HUGETLB}={1 if pages == 'huge' else 0}"])
    return {_TUNABLES: tunables, _SMALL: "1" if pages == "small" else ""}


def keep_small(variables: Mapping[str, str]) -> None:
    """Forbid huge pages in a worker that has to use small pages. A system may grant huge pages without a request."""
    if variables.get(_SMALL) and Path("/proc/self").exists():
        ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


def huge_share(blocks: Iterable[tuple[int, int]], smaps: Path = Path("/proc/self/smaps")) -> float | None:
    """Share of huge pages, 0 to 1, in the memory mappings in which these blocks (address, bytes) lie. None if the
    system does not report the share, or if there are no blocks."""
    ranges = [(address, address + size) for address, size in blocks if size]
    try:
        lines = smaps.read_text().splitlines() if ranges else []
    except OSError:
        return None
    resident = huge = 0
    holds = False
    for line in lines:
        if mapping := _MAPPING.match(line):
            start, end = (int(text, 16) for text in mapping.groups())
            holds = any(first < end and start < last for first, last in ranges)
        elif holds and line.startswith("Rss:"):
            resident += int(line.split()[1])
        elif holds and line.startswith("AnonHugePages:"):
            huge += int(line.split()[1])
    return huge / resident if resident else None
