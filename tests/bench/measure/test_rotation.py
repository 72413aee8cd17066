from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chunkbench.bench.measure.rotation import L2_FACTOR, MOST_COPIES, calls_of, rotation, runs_of

MB = 1 << 20


@given(
    touched=st.integers(1, 1 << 32),
    l2=st.integers(1, 1 << 27),
    spare=st.integers(0, 1 << 30),
    room=st.integers(0, 1 << 36),
)
def test_copies_exceed_the_cache_and_fit_the_room_or_a_sweep_replaces_them(
    touched: int, l2: int, spare: int, room: int
) -> None:
    need = touched + spare
    copies, sweep = rotation(touched, l2, need, room)
    if sweep:
        assert copies == 1
        assert touched <= L2_FACTOR * l2
        too_many = MOST_COPIES * touched <= L2_FACTOR * l2
        assert too_many or (L2_FACTOR * l2 // touched + 1) * need > room
    else:
        assert copies * touched > L2_FACTOR * l2
        assert (copies - 1) * touched <= L2_FACTOR * l2, "no more copies than needed"
        assert copies == 1 or copies * need <= room
        assert copies <= MOST_COPIES


def test_the_figures_of_table_3() -> None:
    """On an A100 with 40 MB of L2, 1024 shared tokens of 16 KiB need 12 to 13 copies, 32 private contexts one."""
    shared, private = (1024 + 32) * 16384, 32 * 1025 * 16384
    assert rotation(shared, 40 * MB, shared * 4, 70 << 30) == (13, False)
    assert rotation(private, 40 * MB, private, 70 << 30) == (1, False)
    assert rotation(shared, 40 * MB, shared * 4, 1 << 29) == (1, True), "13 copies do not fit into half a gigabyte"


@given(st.integers(1, MOST_COPIES))
def test_a_sample_calls_all_copies_equally_often(copies: int) -> None:
    assert calls_of("eager", copies) == 1
    for mode in ("events", "graph"):
        calls = calls_of(mode, copies)
        assert calls % copies == 0
        assert calls >= 8
        assert calls - copies < 8
        assert runs_of(mode, copies) > calls
