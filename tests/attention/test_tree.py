"""Examples, exact answers and refusals; `test_tree_properties` compares random operations with a model."""

import numpy as np
import pytest

from chunkbench.attention import retention
from chunkbench.attention.errors import EmptySequence, PoolExhausted, UnknownSequence, WrongTokens
from chunkbench.attention.pool import ChunkPool
from chunkbench.attention.tree import PrefixTree
from chunkbench.kernels.changes import Copy


def segments(tree):
    return [(s.chunks.tolist(), s.begin, s.end) for s in tree.plan().segments]


def test_a_prompt_takes_consecutive_chunks_and_the_last_may_be_partial():
    tree = PrefixTree(4)
    joined = tree.join(range(10))
    assert joined.cached == 0
    assert joined.chunks.tolist() == [0, 1, 2]
    assert tree.lengths.tolist() == [10]
    assert tree.waste == 2
    assert tree.path(joined.sequence) == [0, 1, 2]


def test_only_full_chunks_are_shared():
    # With chunks of 64, the authors' code shares 64 tokens of a common prefix of 100 tokens. So does this tree.
    tree = PrefixTree(64)
    common = list(range(100))
    tree.join([*common, 1000, 1001])
    assert tree.match([*common, 2000]) == 64
    joined = tree.join([*common, 2000])
    assert joined.cached == 64
    assert len(joined.chunks) == 1
    assert tree.pool.in_use == 3


def test_interleaved_prefixes_are_grouped_in_depth_first_order():
    # Added as A B A B. In depth-first order both As come first, and `order` maps positions to rows.
    tree = PrefixTree(2)
    for prefix, own in [(1, 11), (2, 12), (1, 13), (2, 14)]:
        tree.join([prefix, prefix, own])
    assert segments(tree) == [([0], 0, 2), ([1], 0, 1), ([4], 1, 2), ([2], 2, 4), ([3], 2, 3), ([5], 3, 4)]
    assert tree.plan().order.tolist() == [0, 2, 1, 3]


def test_append_fills_the_last_chunk_and_then_takes_a_new_one():
    tree = PrefixTree(2)
    tree.join([1, 2])
    tree.join([3])
    first = tree.append([10, 20])
    assert (first.chunks.tolist(), first.slots.tolist(), first.new.tolist()) == ([2, 1], [0, 1], [2])
    second = tree.append([11, 21])
    assert (second.chunks.tolist(), second.slots.tolist(), second.new.tolist()) == ([2, 3], [1, 0], [3])
    assert tree.tokens(0).tolist() == [1, 2, 10, 11]
    assert tree.tokens(1).tolist() == [3, 20, 21]


def test_live_sequences_with_equal_tokens_do_not_merge_but_both_can_be_matched():
    tree = PrefixTree(2)
    a = tree.join([1]).sequence
    b = tree.join([1]).sequence
    tree.append([2, 2])
    tree.append([7, 8])
    tree.append([7, 8])
    assert tree.pool.in_use == 4
    # The match follows the twin with the longer common prefix.
    assert tree.match([1, 2, 7, 7]) == 4
    assert tree.match([1, 2, 8, 8]) == 4
    tree.leave(a)
    assert tree.match([1, 2, 7, 7]) == 2
    assert tree.match([1, 2, 8, 8]) == 4
    tree.leave(b)
    assert tree.match([1, 2]) == 0


def test_ten_sequences_leave_in_any_order():
    # The authors' code crashes when four sequences are removed.
    tree = PrefixTree(2)
    ids = [tree.join([1, 2, k, k, k]).sequence for k in range(10)]
    for sequence in [ids[k] for k in (3, 0, 9, 5, 1, 8, 2, 7, 4, 6)]:
        tree.leave(sequence)
        assert sequence not in tree.sequences
    assert tree.pool.in_use == 0
    assert tree.plan().segments == ()


def test_fork_copies_the_partial_chunk_at_once():
    tree = PrefixTree(4)
    a = tree.join([1, 2, 3, 4, 5, 6]).sequence
    forked = tree.fork(a)
    assert forked.copy == Copy(source=1, target=2, tokens=2, held=2)
    tree.append([7, 8])
    assert tree.tokens(a).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert tree.tokens(forked.sequence).tolist() == [1, 2, 3, 4, 5, 6, 8]


def test_fork_at_a_chunk_boundary_copies_nothing():
    tree = PrefixTree(2)
    a = tree.join([1, 2]).sequence
    forked = tree.fork(a)
    assert forked.copy is None
    assert tree.pool.in_use == 1
    assert segments(tree) == [([0], 0, 2)]


def test_truncate_drops_chunks_and_cuts_the_last():
    tree = PrefixTree(4)
    a = tree.join(range(11)).sequence
    assert tree.truncate(a, 6) == Copy(source=1, target=1, tokens=2, held=4)
    assert tree.pool.in_use == 2
    assert tree.tokens(a).tolist() == [0, 1, 2, 3, 4, 5]
    # The second chunk is no longer full, so it does not match.
    assert tree.match(range(8)) == 4
    tree.append([60])
    tree.append([70])
    assert tree.match([0, 1, 2, 3, 4, 5, 60, 70]) == 8
    assert tree.truncate(a, 4) is None
    assert tree.truncate(a, 4) is None
    assert tree.tokens(a).tolist() == [0, 1, 2, 3]


def test_truncate_inside_a_shared_chunk_copies_it():
    tree = PrefixTree(4)
    a = tree.join([*range(8), 1]).sequence
    b = tree.join([*range(8), 2]).sequence
    assert tree.truncate(a, 6) == Copy(source=1, target=4, tokens=2, held=4)
    assert segments(tree) == [([0], 0, 2), ([1, 3], 0, 1), ([4], 1, 2)]
    assert tree.truncate(a, 2) == Copy(source=0, target=2, tokens=2, held=4)
    assert (tree.tokens(a).tolist(), tree.tokens(b).tolist()) == ([0, 1], [*range(8), 2])
    assert segments(tree) == [([0, 1, 3], 0, 1), ([2], 1, 2)]
    tree.append([9, 9], [a], [2])
    assert tree.match([0, 1, 9, 9]) == 4
    assert tree.truncate(b, 8) is None


def test_a_truncate_for_which_there_is_no_chunk_changes_nothing():
    tree = PrefixTree(4, ChunkPool(2))
    a, b = tree.join(range(8)).sequence, tree.join(range(8)).sequence
    with pytest.raises(PoolExhausted):
        tree.truncate(a, 6)
    assert segments(tree) == [([0, 1], 0, 2)]
    tree.leave(b)
    assert tree.truncate(a, 6) == Copy(source=1, target=1, tokens=2, held=4)
    tree = PrefixTree(4, ChunkPool(3))
    a, b = tree.join(range(12)).sequence, tree.join(range(8)).sequence
    assert tree.truncate(a, 6) == Copy(source=1, target=2, tokens=2, held=4)  # its last chunk makes room
    assert tree.tokens(b).tolist() == [*range(8)]


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


def test_a_sequence_that_ends_where_chunks_are_retained_goes_on_beside_them():
    for count in (2, 3):
        tree = PrefixTree(2, retain=True)
        tree.leave(tree.join([1, 1, 2, 2]).sequence)
        a = tree.join([1, 1]).sequence
        if count == 2:
            tree.append([9])
            tree.append([9])
        else:
            tree.append([9, 9, 8], [a], [3])
        assert [tree.match([1, 1, *own]) for own in ([2, 2], [9, 9], [9, 9, 2, 2])] == [4, 4, 4]
        tree.leave(a)
        assert [tree.match([1, 1, *own]) for own in ([2, 2], [9, 9], [9, 9, 2, 2])] == [4, 4, 4]


def test_with_all_memory_taken_a_truncate_evicts_what_it_would_keep():
    tree = PrefixTree(4, ChunkPool(3), retain=True)
    a = tree.join(range(12)).sequence
    assert tree.truncate(a, 9) == Copy(source=2, target=2, tokens=1, held=4)
    assert (segments(tree), tree.pool.in_use, tree.tokens(a).tolist()) == ([([0, 1, 2], 0, 1)], 3, [*range(9)])


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


def test_without_sharing_every_sequence_is_private():
    tree = PrefixTree(2, share=False)
    tree.join([1, 2, 3, 4])
    assert tree.match([1, 2]) == 0
    assert tree.join([1, 2, 3, 4]).cached == 0
    assert tree.pool.in_use == 4


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


@pytest.mark.parametrize(
    ("tokens", "error"),
    [
        ([], EmptySequence),
        ([[1, 2]], WrongTokens),
        ([1.5], WrongTokens),
        (["a"], WrongTokens),
        ([[1], [1, 2]], WrongTokens),
    ],
)
def test_join_refuses_empty_prompts_and_wrong_tokens(tokens, error):
    tree = PrefixTree(2)
    with pytest.raises(error):
        tree.join(tokens)
    assert tree.sequences == []
    assert tree.pool.in_use == 0


def test_unknown_and_removed_sequences_are_refused():
    tree = PrefixTree(2)
    a = tree.join([1]).sequence
    tree.leave(a)
    for call in (tree.leave, tree.fork, tree.path, tree.tokens, tree.slot, tree.length, lambda s: tree.truncate(s, 1)):
        with pytest.raises(UnknownSequence, match=r"^sequence 0 has left$"):
            call(a)
        with pytest.raises(UnknownSequence, match=r"^there is no sequence 5$"):
            call(5)
    assert tree.join([1]).sequence != a


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]])
def test_append_takes_one_token_for_each_sequence(tokens):
    tree = PrefixTree(1)
    tree.join([1])
    tree.join([2])
    with pytest.raises(WrongTokens, match=f"{len(tokens)} tokens for 2 live sequences"):
        tree.append(tokens)
    assert tree.lengths.tolist() == [1, 1]


def test_truncate_to_nothing_or_beyond_the_end_is_refused():
    tree = PrefixTree(2)
    a = tree.join([1, 2, 3]).sequence
    with pytest.raises(EmptySequence):
        tree.truncate(a, 0)
    with pytest.raises(WrongTokens, match="has 3 tokens, fewer than 4"):
        tree.truncate(a, 4)
    assert tree.tokens(a).tolist() == [1, 2, 3]


def test_an_exhausted_pool_leaves_the_tree_unchanged():
    # In the authors' code a half-inserted sequence remains, and the next call corrupts the heap.
    tree = PrefixTree(2, ChunkPool(limit=4))
    a = tree.join([1, 2, 3]).sequence
    b = tree.join([1, 2, 4, 5]).sequence
    plan = tree.plan()
    with pytest.raises(PoolExhausted):
        tree.join([1, 2, 9, 9, 9])
    tree.append([3, 6])  # takes the last free chunk
    with pytest.raises(PoolExhausted):
        tree.append([7, 7])
    with pytest.raises(PoolExhausted):
        tree.fork(b)
    assert tree.tokens(a).tolist() == [1, 2, 3, 3]
    assert tree.tokens(b).tolist() == [1, 2, 4, 5, 6]
    assert tree.match([1, 2, 9, 9]) == 2
    assert tree.plan() is not plan
    tree.leave(a)
    assert tree.append([8]).slots.tolist() == [1]


def test_token_ids_may_be_lists_ranges_or_arrays_of_any_integer_type():
    tree = PrefixTree(2)
    tree.join(np.array([1, 2, 3], np.int32))
    assert tree.match((1, 2)) == 2
    assert tree.match(range(1, 3)) == 2
    assert tree.match(np.array([1, 9, 2, 9], np.uint16)[::2]) == 2


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
