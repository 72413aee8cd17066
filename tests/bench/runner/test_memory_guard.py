from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chunkbench.bench.runner.memory_guard import group

NEEDS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 100), min_size=1)


@given(NEEDS, st.integers(1, 250))
def test_every_implementation_is_in_a_group_that_fits_or_is_refused_with_figures(
    needs: dict[str, int], room: int
) -> None:
    grouping = group(needs, list(needs), "a", room)
    placed = [name for members in grouping.groups for name in members]
    for name, need in needs.items():
        assert (name in grouping.too_large) == (need > room)
        assert (placed.count(name) >= 1) == (need <= room)
        if name != "a":
            assert placed.count(name) <= 1
    for members in grouping.groups:
        assert sum(needs[name] for name in members) <= room
        assert len(set(members)) == len(members)


@given(NEEDS, st.integers(1, 250))
def test_the_baseline_is_in_every_group_where_it_fits(needs: dict[str, int], room: int) -> None:
    for members in group(needs, list(needs), "a", room).groups:
        others = [name for name in members if name != "a"]
        if "a" in needs and others and needs["a"] + needs[others[0]] <= room:
            assert members[0] == "a"


def test_the_reason_names_needed_and_available_bytes() -> None:
    grouping = group({"a": 30_000_000_000, "b": 10}, ["a", "b"], "b", 20_000_000_000)
    assert grouping.groups == (("b",),)
    assert "30.0 GB" in grouping.too_large["a"]
    assert "20.0 GB" in grouping.too_large["a"]


def test_what_reads_the_memory_of_the_baseline_goes_with_it() -> None:
    sizes = {"chunk_attn": 50, "plan_pack": 0, "naive": 60}
    assert group(sizes, list(sizes), "chunk_attn", 100).groups == (("chunk_attn", "plan_pack"), ("naive",))
    refused = group(sizes, list(sizes), "chunk_attn", 40)
    assert refused.groups == ()
    assert refused.too_large["plan_pack"].startswith("it reads the K and V of chunk_attn: ")
    # A baseline that needs no memory of its own is still in every group.
    assert group({"plan_flat": 0, "plan_pack": 0}, ["plan_flat", "plan_pack"], "plan_flat", 9).groups == (
        ("plan_flat", "plan_pack"),
    )
