"""All parts, in the order in which `make torture` does them."""

from __future__ import annotations

from tests.torture import disk, kill, power_cut
from tests.torture.trials import Part

PARTS: tuple[Part, ...] = (
    Part(
        "kill",
        "SIGKILL to the driver, a worker, a server under load, a rank of a ring, at random moments of decode, layer, "
        "serving, replay and ring runs, then `--resume`",
        "every finished point is there once with its samples unchanged, the run ends complete, no orphan process, no "
        "lock, no port is left",
        kill.trials,
    ),
    Part(
        "power cut",
        "the run directory truncated at every byte of its last two records",
        "it loads, says what was dropped, and resumes",
        power_cut.trials,
    ),
    Part(
        "disk",
        "full at random moments (a small tmpfs), read-only, folder removed during the run, an error at close",
        "exit code 2 with the path, or 0; finished points are kept",
        disk.trials,
    ),
)
