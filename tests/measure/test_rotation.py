from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chunkbench.measure.rotation import L2_FACTOR, MOST_COPIES, calls_of, rotation, runs_of

MB = 1 << 20


@given(
    touched=st.integers(1, 1 << 32),
    l2=st.integers(1, 1 << 27),
    spare=st.integers(0, 1 << 30),
    room=st.integers(0, 1 << 36),
)
def test_copies_exceed_the_cache_and_fit_or_a_sweep_takes_their_place(
    touched: int, l2: int, spare: int, room: int
) -> None:
    need = touched + spare
    copies, sweep = rotation(touched, l2, need, room)
    if sweep:
        assert copies == 1
        assert touched <= L2_FACTOR * l2
        few = MOST_COPIES * touched <= L2_FACTOR * l2
        assert few or (L2_FACTOR * l2 // touched + 1) * need > room
    else:
        assert copies * touched > L2_FACTOR * l2
        assert (copies - 1) * touched <= L2_FACTOR * l2, "no copy more than it takes"
        assert copies == 1 or copies * need <= room
        assert copies <= MOST_COPIES


def test_the_figures_of_table_3() -> None:
    """An A100's 40 MB: 1024 shared tokens of 16 KiB take 12 to 13 copies, 32 private contexts one."""
    shared, private = (1024 + 32) * 16384, 32 * 1025 * 16384
    assert rotation(shared, 40 * MB, shared * 4, 70 << 30) == (13, False)
    assert rotation(private, 40 * MB, private, 70 << 30) == (1, False)
    assert rotation(shared, 40 * MB, shared * 4, 1 << 29) == (1, True), "13 copies do not fit into half a gigabyte"


@given(st.integers(1, MOST_COPIES))
def test_a_sample_calls_every_copy_as_often_as_every_other(copies: int) -> None:
    assert calls_of("eager", copies) == 1
    for mode in ("events", "graph"):
        calls = calls_of(mode, copies)
        assert calls % copies == 0
        assert calls >= 8
        assert calls - copies < 8
        assert runs_of(mode, copies) > calls
