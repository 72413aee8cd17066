"""Examples, exact answers and refusals; `test_tree_properties` compares random operations with a model."""

import numpy as np
import pytest

from chunkbench.attention import retention
from chunkbench.attention.pool import ChunkPool
from chunkbench.attention.tree import PrefixTree
from chunkbench.kernels.changes import Copy


def test_the_last_chunk_of_a_cut_sequence_makes_room_for_the_copy():
    tree = PrefixTree(4, ChunkPool(3))
    a, b = tree.join(range(12)).sequence, tree.join(range(8)).sequence
    assert tree.truncate(a, 6) == Copy(source=1, target=2, tokens=2, held=4)
    assert (tree.tokens(a).tolist(), tree.tokens(b).tolist()) == ([*range(6)], [*range(8)])


def test_what_is_behind_a_truncate_stays_where_chunks_are_retained():
    tree = PrefixTree(4, ChunkPool(5), retain=True)
    a = tree.join(range(14)).sequence
    assert tree.truncate(a, 6) == Copy(source=1, target=4, tokens=2, held=4)
    assert (tree.live_chunks, tree.match(range(14)), tree.path(a)) == (2, 12, [0, 4])
    tree.append([20, 21, 22], [a], [3])  # takes the chunk of the last two tokens, which was not full
    tree.append([23, 24, 25, 26], [a], [4])  # evicts what stayed
    assert (tree.live_chunks, tree.match(range(14))) == (4, 4)
    b = tree.join(range(4)).sequence
    assert tree.truncate(b, 3) == Copy(source=0, target=2, tokens=3, held=4)
    for sequence in (a, b):
        tree.leave(sequence)
    assert tree.match([0, 1, 2, 3, 4, 5, 20, 21, 22, 23, 24, 25]) == 12


@pytest.mark.parametrize("steps", [([9], [9]), ([9, 9, 8],)])
def test_a_sequence_that_ends_where_chunks_are_retained_goes_on_beside_them(steps):
    tree = PrefixTree(2, retain=True)
    tree.leave(tree.join([1, 1, 2, 2]).sequence)
    a = tree.join([1, 1]).sequence
    for tokens in steps:
        tree.append(tokens, [a], [len(tokens)])
    assert [tree.match([1, 1, *own]) for own in ([2, 2], [9, 9], [9, 9, 2, 2])] == [4, 4, 4]
    tree.leave(a)
    assert [tree.match([1, 1, *own]) for own in ([2, 2], [9, 9], [9, 9, 2, 2])] == [4, 4, 4]


def test_what_is_known_of_retained_chunks_does_not_grow_with_their_uses(monkeypatch):
    monkeypatch.setattr(retention, "_MOST_OUTDATED", 0)
    tree = PrefixTree(2, ChunkPool(8), retain=True)
    for _ in range(100):
        tree.leave(tree.join([1, 2, 3, 4]).sequence)
    tree.leave(tree.join([5, 6]).sequence)
    assert len(tree.evictable._leaves) <= 6
    tree.join(range(10, 22))
    assert (tree.match([1, 2, 3, 4]), tree.match([5, 6])) == (0, 2)


def test_a_chunk_above_retained_ones_is_not_cut_even_if_it_has_to_be_written_again():
    tree = PrefixTree(2, retain=True, deferred=True)
    a = tree.join([1, 1, 2, 2]).sequence
    tree.mark_written(np.array(tree.path(a)))
    tree.leave(a)
    b = tree.join([1, 1]).sequence
    tree.mark_written(np.array(tree.path(b)), written=False)
    assert tree.truncate(b, 1) == Copy(source=0, target=2, tokens=1, held=2)
    assert tree.match([1, 1, 2, 2]) == 4


def test_appends_inside_a_chunk_keep_the_plan_and_its_lengths_stay_current():
    tree = PrefixTree(4)
    tree.join([1])
    tree.join([2, 2])
    plan = tree.plan()
    tree.append([5, 5])
    assert tree.plan() is plan
    assert plan.tokens.tolist() == [2, 3]
    assert plan.last_tokens.tolist() == [2, 3]
    assert tree.plan_rebuilds == 1
    tree.append([5, 5])  # row 1's chunk is now full, but nobody needs a new chunk yet
    assert tree.plan() is plan
    tree.append([5, 5])
    assert tree.plan() is not plan
    assert tree.plan().tokens.tolist() == [4, 5]
    assert tree.plan_rebuilds == 2


def test_token_ids_may_be_lists_ranges_or_arrays_of_any_integer_type():
    tree = PrefixTree(2)
    tree.join(np.array([1, 2, 3], np.int32))
    for same in ((1, 2), range(1, 3), np.array([1, 9, 2, 9], np.uint16)[::2]):
        assert tree.match(same) == 2


def test_growth_since_a_plan_says_which_rows_began_chunks() -> None:
    rng = np.random.default_rng(1)
    tree = PrefixTree(4)
    for row in range(6):
        tree.join([*range(9), *range(100 * row, 100 * row + row + 1)])
    grown_plans = 0
    for step in range(60):
        before, paths = tree.plan(), [tree.path(sequence) for sequence in tree.sequences]
        tree.append([step] * len(tree))
        if step % 17 == 5:
            tree.fork(int(rng.choice(tree.sequences)))
        if step % 13 == 7:
            tree.leave(int(rng.choice(tree.sequences)))
        if step % 11 == 3:
            tree.truncate(tree.sequences[0], int(tree.lengths[0]) - 1)
        if step % 5 == 0:
            tree.append([step] * len(tree))  # two steps without a plan between them
        growth = tree.plan().growth_since(before)
        if growth is None:
            continue
        for row, chunk in zip(*growth, strict=True):
            paths[row].append(chunk)
        assert paths == [tree.path(sequence) for sequence in tree.sequences]
        grown_plans += tree.plan() is not before
    assert grown_plans > 10
