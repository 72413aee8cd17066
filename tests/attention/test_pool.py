import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.attention.errors import PoolExhausted
from chunkbench.attention.pool import ChunkPool


def test_ids_are_consecutive_and_the_lowest_free_ids_come_first():
    pool = ChunkPool()
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(2) == [3, 4]
    pool.release([4, 1, 2])
    assert pool.allocate(4) == [1, 2, 4, 5]


def test_capacity_never_shrinks():
    pool = ChunkPool()
    ids = pool.allocate(7)
    capacity = pool.capacity
    assert capacity >= 7
    pool.release(ids)
    pool.allocate(2)
    assert (pool.in_use, pool.capacity) == (2, capacity)


def test_reserve_is_exact():
    pool = ChunkPool()
    pool.reserve(100)
    assert pool.capacity == 100
    pool.allocate(100)
    assert pool.capacity == 100
    pool.reserve(50)
    assert pool.capacity == 100


def test_growth_on_demand_needs_few_steps():
    pool = ChunkPool()
    capacities = set()
    for _ in range(1000):
        pool.allocate(1)
        capacities.add(pool.capacity)
    assert len(capacities) < 25
    assert pool.capacity <= 1500


def test_an_exhausted_pool_allocates_nothing():
    pool = ChunkPool(limit=4)
    pool.allocate(3)
    with pytest.raises(PoolExhausted, match="2 more chunks are needed, but 3 of at most 4"):
        pool.allocate(2)
    assert pool.in_use == 3
    assert pool.allocate(1) == [3]


def test_reserve_beyond_the_limit_is_refused():
    pool = ChunkPool(limit=4)
    with pytest.raises(PoolExhausted):
        pool.reserve(5)
    assert pool.capacity == 0


@pytest.mark.parametrize("ids", [[1, 1], [0, 9], [2, 0, 2]])
def test_a_release_with_a_repeated_or_free_id_releases_nothing(ids):
    pool = ChunkPool()
    pool.allocate(3)
    with pytest.raises(ValueError, match="not all in use"):
        pool.release(ids)
    assert pool.in_use == 3


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        ChunkPool(limit=0)


def test_a_failed_growth_allocates_nothing():
    def no_room(capacity):
        raise MemoryError(capacity)

    pool = ChunkPool(make_room=no_room)
    for call in (pool.allocate, pool.reserve):
        with pytest.raises(MemoryError):
            call(3)
    assert (pool.in_use, pool.capacity) == (0, 0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 6), st.sets(st.integers(0, 20))), max_size=20), st.integers(1, 25))
def test_an_id_in_use_is_never_allocated_again(actions, limit):
    capacities = [0]
    pool = ChunkPool(limit, capacities.append)
    used: set[int] = set()
    for action in actions:
        if isinstance(action, int):
            if len(used) + action > limit:
                with pytest.raises(PoolExhausted):
                    pool.allocate(action)
                continue
            ids = pool.allocate(action)
            assert capacities[-1] == pool.capacity
            assert used.isdisjoint(ids)
            assert len(set(ids)) == action
            used.update(ids)
        else:
            pool.release(used & action)
            used -= action
        assert pool.in_use == len(used) <= pool.capacity <= limit
        assert all(0 <= chunk < pool.capacity for chunk in used)
