"""Wrong calls of the native module raise an exception with a clear message; tensors that it looks at by itself."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chunkbench import ChunkAttention
from chunkbench.attention.tensors import WrongTensor
from chunkbench.kernels import cpu
from chunkbench.kernels.cpu.decode import chosen_isa
from chunkbench.kernels.cpu.planner import COLUMNS
from chunkbench.kernels.cpu.tensors import dense_address, reads_tensors
from chunkbench.kernels.reference import attention
from tests.kernels.pieces import instruction_set

if cpu.native() is None:
    pytest.skip(cpu.why_missing(), allow_module_level=True)

native = cpu.required()
HEADS, DIM, CHUNK = 2, 16, 16
CHUNKS = torch.stack([torch.zeros(3, HEADS, CHUNK, DIM), torch.ones(3, HEADS, CHUNK, DIM)], 2)  # K, V of each head
QUERY, ONES = torch.zeros(2, HEADS, DIM), torch.ones(2, HEADS, DIM)


def ints(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


def addresses(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.int64]]:
    return ints(*(part.data_ptr() for part in tensor))


def arguments() -> dict[str, Any]:
    """A valid plan of two rows: both share chunk 0 and fold its results in; row 0 also reads chunk 1, row 1 chunk 2."""
    return {
        "dtype": "float32",
        "heads": HEADS,
        "kv_heads": HEADS,
        "head_dim": DIM,
        "chunk_size": CHUNK,
        "kv_dtype": "same",
        "columns": COLUMNS,
        "items": np.array(
            [[0, 1, 0, 2, -1, 0, 0, 0, 0, 1], [1, 1, 2, 1, 0, 1, -1, 0, 1, 2], [2, 1, 3, 1, 1, 1, -1, 1, 1, 2]],
            np.int64,
        ),
        "chunks": addresses(CHUNKS),
        "rows": ints(0, 1, 0, 1),
        "folds": ints(0, 1),
        "partial_items": 1,
        "batch": 2,
        "partials": 2,
        "threads": 2,
        "fetch_early": True,
        "side_by_side": True,
        "isa": "portable",
    }


def outputs(plan: Any, threads: int = 1) -> torch.Tensor:
    """What a plan computes for queries of zeros."""
    out = torch.zeros(2, HEADS, DIM)
    plan.decode(QUERY.data_ptr(), out.data_ptr(), 0.25, threads)
    return out


def with_item(index: int, column: str, value: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    items = arguments()["items"].copy()
    items[index, COLUMNS.index(column)] = value
    return items


@pytest.mark.parametrize("threads", [2, 2**31 - 1])
def test_the_unchanged_arguments_are_a_valid_plan(threads: int) -> None:
    plan = native.DecodePlan(**arguments())
    plan.set_last_tokens(ints(16, 3))
    torch.testing.assert_close(outputs(plan, threads), ONES)


HUGE = 2**62
WRONG_ITEMS = {
    (0, "first_chunk"): (-1, 3, HUGE),
    (0, "chunk_count"): (-1, HUGE),
    (2, "chunk_count"): (2,),
    (1, "tail_row"): (2, -2),
    (0, "first_row"): (-1, 3, HUGE),
    (0, "row_count"): (0, 5, HUGE),
    (1, "before"): (-1, HUGE),
    (0, "first_partial"): (-2, 1, HUGE),
    (1, "first_partial"): (0,),
    (1, "first_fold"): (-1, 2),
    (0, "folds"): (1,),
    (1, "folds"): (3, HUGE),
    (1, "heads"): (0, HEADS + 1),
    (0, "heads"): (HUGE,),
}
"""Item and column -> numbers that are refused."""
WRONG: list[tuple[str, Any, str]] = [
    ("dtype", "float64", "float64"),
    ("isa", "sse2", "sse2"),
    *(("heads", heads, "heads") for heads in (0, 3, 2**17)),
    *(("kv_heads", heads, "heads") for heads in (0, -2)),
    *(("head_dim", d, "head_dim") for d in (0, 24, 1040)),
    *(("chunk_size", size, "chunk_size") for size in (0, 24, -16, 2**30)),
    ("items", np.zeros((1, 9), np.int64), "ten columns"),
    *(("columns", columns, "ten columns") for columns in (COLUMNS[:9], COLUMNS[::-1])),
    *(("items", with_item(*place, value), "item") for place, values in WRONG_ITEMS.items() for value in values),
    ("chunks", ints(0), "item's chunks"),
    ("threads", 0, "threads"),
    *(("rows", rows, "row") for rows in (ints(0, 1, 0, 2), ints(0, 1, 0, -1), ints(0, 1, 0))),
    *(("folds", folds, "fold") for folds in (ints(0, 2), ints(0, -1), ints(0))),
    *(("partial_items", items, "partial_items") for items in (-1, 4)),
    ("batch", -1, "batch"),
    ("batch", 1, "row"),
    ("batch", 2**40, "batch must be at most"),
    # Times two heads and sixteen numbers, 2**62 overflows to zero in 64 bits.
    *(("partials", partials, "partial") for partials in (-1, 1, HUGE)),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG, ids=lambda value: str(value).replace("\n", ""))
def test_a_wrong_plan_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native.DecodePlan(**{**arguments(), name: value})


@pytest.mark.parametrize("name", ["items", "chunks", "rows", "folds"])
def test_an_array_of_a_wrong_kind_is_refused(name: str) -> None:
    array = arguments()[name]
    for wrong in (array[None], array.tolist(), None):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            native.DecodePlan(**{**arguments(), name: wrong})


@pytest.mark.parametrize("name", ["items", "rows", "folds"])
def test_other_numbers_and_strides_are_converted(name: str) -> None:
    """The plan holds a copy. (Addresses of chunks need all 64 bits.)"""
    array = arguments()[name]
    for same in (array.astype(np.int32), array.astype(np.float64), np.repeat(array, 2, 0)[::2]):
        plan = native.DecodePlan(**{**arguments(), name: same})
        torch.testing.assert_close(outputs(plan), ONES)


@pytest.mark.parametrize(
    "tokens", [ints(), ints(1), ints(1, 2, 3), ints(0, 1), ints(1, 17), ints(-1, 1), ints(1, HUGE)]
)
def test_wrong_last_tokens_are_refused_and_change_nothing(tokens: Any) -> None:
    plan = native.DecodePlan(**arguments())
    with pytest.raises(ValueError, match="last_tokens"):
        plan.set_last_tokens(tokens)
    torch.testing.assert_close(outputs(plan), ONES)


@pytest.mark.parametrize(
    ("sight", "message"),
    [
        ((-1, 1, 0), "before the last"),
        ((HUGE, 1, 0), "before the last"),
        ((0, 0, 0), "window"),
        ((0, HUGE, 0), "window"),
        ((0, 1, -1), "256"),
        ((0, 1, 257), "256"),
    ],
)
def test_wrong_sights_are_refused_and_change_nothing(sight: tuple[int, ...], message: str) -> None:
    plan = native.DecodePlan(**arguments())
    with pytest.raises(ValueError, match=message):
        plan.set_sights(np.array([[0, 1, 0, 0, 0, 0, 0], [*sight, 0, 0, 0, 0]], np.int64))
    with pytest.raises(ValueError, match="one for each row"):
        plan.set_sights(np.zeros((1, 7), np.int64))
    with pytest.raises(ValueError, match="seven columns"):
        plan.set_sights(np.zeros((2, 6), np.int64))
    with pytest.raises(ValueError, match="cap"):
        plan.decode(0, 0, 0.25, 1, cap=-1.0)
    torch.testing.assert_close(outputs(plan), ONES)


@pytest.mark.parametrize("threads", [0, -1, -(2**31)])
def test_decode_needs_at_least_one_thread(threads: int) -> None:
    plan = native.DecodePlan(**arguments())
    with pytest.raises(ValueError, match="threads must be at least 1"):
        plan.decode(0, 0, 0.25, threads)


@pytest.mark.parametrize(
    ("count", "stride"), [(1, 2**62), (2**62, HEADS * DIM * 2), (2**63 - 1, 2**63 - 1), (-1, 64), (2, -64), (2, 63)]
)
def test_sums_of_compensation_tokens_are_inside_the_memory(count: int, stride: int) -> None:
    plan = native.DecodePlan(**arguments())
    ones = np.ones(2, np.float32)
    with pytest.raises(ValueError, match="numbers apart"):
        plan.set_compensation(ints(-1, -1), ones, ones, count, stride)


@pytest.mark.parametrize(
    ("inputs", "blocks", "finish", "message"),
    [
        (24, 1, "store", "in is 16, 32"),
        (2**62, 1, "store", "in is 16, 32"),
        (16, 0, "store", "blocks is 1"),
        (16, 2**62, "store", "blocks is 1"),
        (16, 3, "gate", "alternate"),
        (16, 1, "nonsense", "not nonsense"),
    ],
)
def test_a_wrong_linear_layer_is_refused(inputs: int, blocks: int, finish: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native.make_linear("float32", inputs, blocks, 0, 0, finish)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "d", "message"),
    [
        (2, 1, 0, "multiple of 32"),
        (2, 1, -32, "multiple of 32"),
        (2, -1, 32, "kv_heads are"),
        (3, 1, 32, "fit together"),
    ],
)
def test_linear_layers_that_do_not_fit_are_no_decoder_layer(heads: int, kv_heads: int, d: int, message: str) -> None:
    assert native.make_layer(*linears(), 0, 0, 1e-5, 2, 1, 32) is not None
    with pytest.raises(ValueError, match=message):
        native.make_layer(*linears(), 0, 0, 1e-5, heads, kv_heads, d)


def linears() -> list[Any]:
    """Those of a decoder layer whose queries have two heads, K and V one: 128 outputs."""
    sizes = (64, 128, "store"), (64, 64, "add32"), (64, 64, "gate"), (32, 64, "add32")
    return [native.make_linear("float32", inputs, outputs // 16, 0, 0, finish) for inputs, outputs, finish in sizes]


@pytest.mark.parametrize("threads", [0, -1])
def test_layers_and_norms_need_at_least_one_thread(threads: int) -> None:
    layer = native.make_layer(*linears(), 0, 0, 1e-5, 2, 1, 32)
    step = native.make_buffers(0, *[0] * 10)
    for half in (layer.before_attention, layer.after_attention):
        half(step, 1)  # of no rows
        with pytest.raises(ValueError, match="threads is at least 1"):
            half(step, threads)
    with pytest.raises(ValueError, match="threads is at least 1"):
        native.rms_norm("float32", 0, 0, 64, 0, 1e-5, 0, threads)


@pytest.mark.parametrize("threads", [0, 2**31 - 1])
def test_a_probe_has_at_least_one_thread_and_at_most_4096(threads: int) -> None:
    with pytest.raises(ValueError, match="at least 1 and at most 4096"):
        native.read_pass(torch.zeros(64), threads)
    with pytest.raises(ValueError, match="at least 1 and at most 4096"):
        native.matrix_flops_per_s("float32", threads, 1.0)


ASKED = """
import ctypes, importlib.util, sys
from array import array

runtime = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
spec = importlib.util.spec_from_file_location("_native", sys.argv[2])
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
tokens, most = 5000, 2**31 - 1
rows, chunk = array("f", bytes(4 * tokens * 16)), array("f", bytes(4 * 2 * 16 * 16))
at = rows.buffer_info()[0]
chunks, numbers = array("q", [chunk.buffer_info()[0]]) * tokens, array("q", range(tokens))
native.pack("float32", 1, 16, 16, "same", at, at, chunks, array("q", [i % 16 for i in numbers]), most)
asked = ctypes.c_uint.in_dll(runtime, "asked")
print(asked.value)
items = memoryview(array("q", [n for i in numbers for n in (i, 1, i, 1, i, 0, -1, 0, 0, 1)])).cast("B")
shape, rest = ("float32", 1, 1, 16, 16, "same", sys.argv[3:]), (array("q"), 0, tokens, 0, most, True, True, "portable")
native.DecodePlan(*shape, items.cast("q", (tokens, 10)), chunks, numbers, *rest).decode(at, at, 0.25, most)
print(asked.value)
"""
"""Prints how many threads the native module asks an OpenMP runtime for."""
RUNTIME = """
unsigned asked;
void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags) { asked = threads; body(data); }
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_work_for_more_threads_than_4096_is_shared_out_to_4096(tmp_path: Path) -> None:
    """In a process without PyTorch, whose OpenMP runtime would start the threads."""
    runtime = tmp_path / "runtime.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", runtime], input=RUNTIME, text=True, check=True)
    command = [sys.executable, "-I", "-S", "-c", ASKED, str(runtime), str(native.__file__), *COLUMNS]
    asked = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert asked.split() == ["4096", "4096"]


def test_an_uninitialized_plan_is_refused() -> None:
    plan = native.DecodePlan.__new__(native.DecodePlan)
    with pytest.warns(RuntimeWarning, match="uninitialized"), pytest.raises(TypeError):
        plan.decode(0, 0, 1.0, 1)


def pack(**changes: Any) -> None:
    rows = torch.zeros(2, HEADS, DIM)
    form = {"dtype": "float32", "kv_dtype": "same"}
    sizes = {**form, "kv_heads": HEADS, "head_dim": DIM, "chunk_size": CHUNK, "threads": 1}
    native.pack(**{**sizes, "k": rows.data_ptr(), "v": rows.data_ptr(), "chunks": ints(), "slots": ints(), **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "int8"},
        {"kv_dtype": "int4"},
        {"head_dim": 24},
        {"chunk_size": 8},
        {"kv_heads": 0},
        {"threads": 0},
        {"threads": -1},
        {"chunks": ints(1)},
        {"slots": ints(0)},
        {"chunks": ints(1), "slots": ints(CHUNK)},
        {"chunks": ints(1), "slots": ints(-1)},
    ],
    ids=str,
)
def test_pack_refuses_wrong_arguments_before_it_writes(changes: dict[str, Any]) -> None:
    pack()  # no tokens are allowed
    with pytest.raises(ValueError, match=r"\w"):
        pack(**changes)


@pytest.mark.parametrize(("tokens", "held"), [(-1, 3), (4, 3), (0, 17), (17, 17), (-2, -1)])
def test_cut_refuses_wrong_arguments(tokens: int, held: int) -> None:
    with pytest.raises(ValueError, match="tokens <= held"):
        native.cut("float32", HEADS, DIM, CHUNK, "same", CHUNKS.data_ptr(), tokens, held)
    with pytest.raises(ValueError, match="head_dim"):
        native.cut("float32", HEADS, 8, CHUNK, "same", CHUNKS.data_ptr(), 1, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 1040}, "head dimensions up to 1024"),
        ({"chunk_size": 24}, "multiples of 16"),
        ({"device": "meta"}, "not on meta"),
    ],
)
def test_an_unsupported_shape_is_refused_or_falls_back_to_torch(changes: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {"heads": 2, "head_dim": 16, **changes}
    with pytest.raises(ValueError, match=f"kernel='native'.*{message}"):
        ChunkAttention(**call, kernel="native")
    assert ChunkAttention(**call, kernel="auto").kernel == "torch"
    assert ChunkAttention(2, 16, kernel="auto").kernel == "native"


def test_the_environment_variable_selects_the_instruction_set() -> None:
    with instruction_set(""):
        assert chosen_isa() == native.isas()[-1]
    for isa in native.isas():
        with instruction_set(isa):
            assert chosen_isa() == isa
    with (
        instruction_set("nonsense"),
        pytest.raises(ValueError, match="CHUNKBENCH_ISA=nonsense: this CPU can run portable"),
    ):
        ChunkAttention(1, 16, kernel="native")


def test_k_and_v_need_not_be_contiguous() -> None:
    cache = ChunkAttention(2, 16, 2, 16, kernel="native")
    kv = torch.randn(2, 20, 2, 16, generator=torch.Generator().manual_seed(5))
    wide = torch.full((2, 20, 16, 4), 7.0)
    k, v = wide[..., ::2].transpose(-1, -2).copy_(kv)
    assert not k.is_contiguous()
    cache.add_sequence(list(range(19)), k[:19], v[:19])
    cache.append([19], k[19:], v[19:])
    q = torch.ones(1, 2, 16)
    torch.testing.assert_close(cache.decode(q)[0].double(), attention(q[0], *kv), rtol=1e-5, atol=1e-6)


def test_python_threads_can_share_a_plan() -> None:
    cache = ChunkAttention(4, 16, 2, 16, kernel="native")
    for row in range(8):
        cache.add_sequence(list(range(100 * row, 100 * row + 20)), *torch.randn(2, 20, 2, 16))
    queries = [torch.full((8, 4, 16), float(n)) for n in range(4)]
    expected = [cache.decode(q) for q in queries]

    def right(n: int) -> bool:
        out = torch.empty_like(queries[n])
        return all(torch.equal(cache.decode(queries[n], out.fill_(math.nan)), expected[n]) for _ in range(200))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(right, range(4)))


def table() -> Any:
    """What says where a dense tensor is."""
    if not reads_tensors():
        pytest.skip("this PyTorch has no C table of DLPack")
    address = dense_address()
    assert address is not None
    return address


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_address_of_a_contiguous_tensor(dtype: torch.dtype) -> None:
    address = table()
    name = str(dtype).removeprefix("torch.")
    tensor = torch.zeros(5, 3, 16, dtype=dtype)
    assert address(tensor, (5, 3, 16), name) == tensor.data_ptr()
    assert address(tensor[2:], (3, 3, 16), name) == tensor[2:].data_ptr() == tensor.data_ptr() + 2 * tensor[0].nbytes
    assert address(torch.nn.Parameter(tensor), (5, 3, 16), name) == tensor.data_ptr()
    one_row = torch.zeros(4, 3, 16, dtype=dtype)[::4]  # its first stride has no meaning
    assert address(one_row, (1, 3, 16), name) == one_row.data_ptr()


DENSE = torch.ones(2, 3, 16)


@pytest.mark.parametrize(
    "other",
    [
        DENSE[:, :2],
        DENSE.unsqueeze(0),
        DENSE.transpose(0, 1).contiguous(),
        DENSE.transpose(0, 2).contiguous().transpose(0, 2),
        DENSE[:1].expand(2, 3, 16),
        DENSE.double(),
        DENSE.half(),
        DENSE.bfloat16(),
        DENSE.int(),
        DENSE.to(torch.complex64),
        DENSE.to("meta"),
        DENSE.to_sparse(),
        torch.zeros(0, 3, 16),
        DENSE.numpy(),
        DENSE.tolist(),
        None,
        torch.Tensor,
    ],
    ids=lambda other: type(other).__name__,
)
def test_everything_else_has_no_address(other: Any) -> None:
    assert table()(other, (2, 3, 16), "float32") == 0


def test_wrong_arguments_have_no_address() -> None:
    address = table()
    with pytest.raises(ValueError, match="float64"):
        address(DENSE, (2, 3, 16), "float64")
    with pytest.raises(ValueError, match="four dimensions"):
        address(DENSE, (1, 1, 2, 3, 16), "float32")


def test_a_class_without_the_table_is_refused() -> None:
    """In a process of its own: the first class that is accepted stays."""
    program = (
        "import torch; from chunkbench.kernels.cpu import required as r; m = r()\n"
        "t = torch.ones(2)\n"
        "assert not m.use_tensors_of(int) and not m.use_tensors_of(7)\n"
        "class Capsule: __dlpack_c_exchange_api__ = 3\n"
        "assert not m.use_tensors_of(Capsule)\n"
        "assert m.dense_address(t, (2,), 'float32') == 0\n"
        "assert m.use_tensors_of(torch.Tensor) == hasattr(torch.Tensor, '__dlpack_c_exchange_api__')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def planned() -> tuple[ChunkAttention, torch.Tensor, torch.Tensor]:
    attention = ChunkAttention(heads=3, head_dim=16)
    for first in (1, 2):
        attention.add_sequence([first, 5], torch.ones(2, 3, 16), torch.full((2, 3, 16), float(first)))
    attention.plan()
    return attention, torch.ones(2, 3, 16), torch.zeros(2, 3, 16)


def test_a_planned_step_is_one_call_and_equals_the_checked_one() -> None:
    attention, q, out = planned()
    if reads_tensors():
        assert attention._kernel.decode_dense(q, out)  # type: ignore[attr-defined]
        out.zero_()
    attention.decode(q, out)
    assert torch.equal(out, attention.decode(q))
    assert out[:, 0, 0].tolist() == [1.0, 2.0]
    attention.remove_sequence(attention.sequences[0])  # after a change the rows are counted again
    with pytest.raises(WrongTensor, match="shape"):
        attention.decode(q, out)


@pytest.mark.parametrize("name", ["q", "out"])
@pytest.mark.parametrize(
    "wrong", [torch.zeros(3, 3, 16), torch.zeros(2, 3, 32), torch.zeros(2, 3, 16).double()], ids=["rows", "d", "dtype"]
)
def test_a_planned_step_refuses_a_wrong_tensor(name: str, wrong: torch.Tensor) -> None:
    attention, q, out = planned()
    with pytest.raises(WrongTensor, match=name):
        attention.decode(**{"q": q, "out": out, name: wrong})
    with pytest.raises(WrongTensor, match="gradients"):
        attention.decode(q, out.clone().requires_grad_())
    for layer in (-1, 1):
        with pytest.raises(WrongTensor, match="no layer"):
            attention.attend(layer, q, out)
    assert not out.any()
