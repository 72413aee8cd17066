import numpy as np
import pytest
import torch

from chunkbench.kernels.changes import Append
from chunkbench.kernels.chunk_store import ChunkStore


def make(*slabs, c=4, h=2, d=16, dtype=torch.float32):
    store = ChunkStore(c, h, d, dtype, "cpu")
    total = 0
    for chunks in slabs:
        total += chunks
        store.grow(total)
    for slab in store.slabs:  # fresh memory may hold anything
        slab.keys.fill_(torch.nan)
        slab.values.fill_(torch.nan)
    return store


def read(store, chunks, tokens):
    """K and V `[n, h, d]` of the first tokens in some chunks, and V of the remaining token slots."""
    slab, place = store.locate(np.array(chunks))
    k = torch.cat([store.slabs[s].keys[0, p].transpose(0, 1) for s, p in zip(slab, place, strict=True)])
    v = torch.cat([store.slabs[s].values[0, p].transpose(0, 1) for s, p in zip(slab, place, strict=True)])
    return k[:tokens], v[:tokens], v[tokens:]


def ids(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("chunks", [(0, 1, 2), (2, 3, 4), (4, 0, 3), (5, 1)])
@pytest.mark.parametrize("short", [0, 1, 3])
def test_fill_writes_tokens_to_their_slots(chunks, short):
    store = make(3, 3)
    n = 4 * len(chunks) - short
    k, v = torch.randn(n, 2, 16), torch.randn(n, 2, 16)
    store.fill(ids(*chunks), k, v)
    got_k, got_v, free = read(store, chunks, n)
    assert torch.equal(got_k, k)
    assert torch.equal(got_v, v)
    assert torch.equal(free, torch.zeros_like(free))


def test_fill_takes_any_strides():
    store = make(2)
    k, v = torch.randn(2, 16, 6).permute(2, 0, 1), torch.randn(1, 2, 16).expand(6, 2, 16)
    store.fill(ids(0, 1), k, v)
    got_k, got_v, _ = read(store, (0, 1), 6)
    assert torch.equal(got_k, k)
    assert torch.equal(got_v, v)


@pytest.mark.parametrize("slots", [(0, 3, 1), (2, 2, 2)])
@pytest.mark.parametrize("chunks", [(0, 1, 2), (4, 1, 3), (2, 3, 4), (4, 3, 2)])
def test_append_writes_one_token_per_row_and_nothing_else(chunks, slots):
    store = make(2, 3)
    for slab in store.slabs:
        slab.keys.zero_()
        slab.values.zero_()
    k, v = torch.randn(3, 2, 16), torch.randn(3, 2, 16)
    store.append(Append(ids(*chunks), ids(*slots), ids(), every_row=True), k, v)
    for row, (chunk, slot) in enumerate(zip(chunks, slots, strict=True)):
        got_k, got_v, _ = read(store, [chunk], 4)
        assert torch.equal(got_k[slot], k[row])
        assert torch.equal(got_v[slot], v[row])
    assert sum(int((slab.keys != 0).sum()) for slab in store.slabs) == k.numel()


def test_append_clears_v_of_a_new_chunk():
    store = make(2, 2)
    appended = Append(ids(1, 3), ids(0, 0), ids(1, 3), every_row=True)
    store.append(appended, torch.ones(2, 2, 16), torch.ones(2, 2, 16))
    for chunk in (1, 3):
        _, v, free = read(store, [chunk], 1)
        assert torch.equal(v, torch.ones(1, 2, 16))
        assert torch.equal(free, torch.zeros(3, 2, 16))


def test_copy_to_a_new_chunk_and_in_place():
    store = make(1, 1)
    k, v = torch.randn(3, 2, 16), torch.randn(3, 2, 16)
    store.fill(ids(0), k, v)
    store.copy(0, 1, 3, held=3)
    store.copy(0, 0, 1, held=3)
    got_k, got_v, free = read(store, [1], 3)
    assert torch.equal(got_k, k)
    assert torch.equal(got_v, v)
    assert torch.equal(free, torch.zeros(1, 2, 16))
    _, got_v, free = read(store, [0], 1)
    assert torch.equal(got_v, v[:1])
    assert torch.equal(free, torch.zeros(3, 2, 16))


def test_grow_adds_one_slab_of_the_missing_chunks_and_moves_nothing():
    store = make(3)
    address = store.slabs[0].keys.data_ptr()
    store.grow(10)
    store.grow(5)
    assert store.capacity == 10
    assert [slab.keys.shape[1] for slab in store.slabs] == [3, 7]
    assert store.slabs[0].keys.data_ptr() == address


def test_runs_end_where_ids_or_slabs_are_not_consecutive():
    store = make(4, 4)
    runs = [(r.slab, r.start, r.chunks, r.begin) for r in store.runs(ids(1, 2, 3, 4, 5, 7, 6, 0))]
    assert runs == [(0, 1, 3, 0), (1, 0, 2, 3), (1, 3, 1, 5), (1, 2, 1, 6), (0, 0, 1, 7)]
    assert list(store.runs(ids())) == []


@pytest.mark.parametrize("chunk", [-1, 4])
def test_ids_beyond_the_capacity_are_refused(chunk):
    with pytest.raises(IndexError, match="chunks 0 to 3"):
        make(4).locate(ids(chunk))


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_bytes_of_a_chunk(dtype, size):
    assert make(1, dtype=dtype).chunk_bytes == 2 * 4 * 2 * 16 * size
