from __future__ import annotations

from chunkbench.server.constrained.recent import Recent


def kept(entries: Recent[str, int]) -> str:
    return "".join(key for key in "abcde" if entries.get(key) is not None)


def test_what_was_used_longest_ago_goes_first() -> None:
    entries: Recent[str, int] = Recent(2)
    for key in "ab":
        entries.keep(key, 1)
    entries.get("a")
    entries.keep("c", 1)
    assert kept(entries) == "ac"


def test_entries_weigh_no_more_than_the_limit_together() -> None:
    entries: Recent[str, int] = Recent(9, 10)
    for key in "abc":
        entries.keep(key, 1, 4)
    assert kept(entries) == "bc"
    entries.keep("b", 1, 2)
    entries.keep("d", 1, 4)
    assert kept(entries) == "bcd"


def test_an_entry_that_is_too_heavy_alone_costs_the_others_nothing() -> None:
    entries: Recent[str, int] = Recent(9, 10)
    for key in "abc":
        entries.keep(key, 1, 2)
    entries.keep("d", 1, 11)
    entries.keep("a", 1, 11)
    assert kept(entries) == "bc"
    entries.keep("e", 1, 6)
    assert kept(entries) == "bce"
