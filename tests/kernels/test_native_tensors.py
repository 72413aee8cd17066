"""Tensors that the native module looks at by itself: `dense_address` and `DecodePlan.decode_dense`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from chunkbench.attention import ChunkAttention
from chunkbench.attention.tensors import WrongTensor
from chunkbench.kernels.cpu import native
from chunkbench.kernels.cpu.tensors import dense_address, reads_tensors

pytestmark = pytest.mark.skipif(native() is None, reason="needs the native module")


def needs_table() -> Any:
    if not reads_tensors():
        pytest.skip("this PyTorch has no C table of DLPack")
    address = dense_address()
    assert address is not None
    return address


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_address_of_a_contiguous_tensor(dtype: torch.dtype) -> None:
    address = needs_table()
    name = str(dtype).removeprefix("torch.")
    tensor = torch.zeros(5, 3, 16, dtype=dtype)
    assert address(tensor, (5, 3, 16), name) == tensor.data_ptr()
    assert address(tensor[2:], (3, 3, 16), name) == tensor[2:].data_ptr() == tensor.data_ptr() + 2 * tensor[0].nbytes
    assert address(torch.nn.Parameter(tensor), (5, 3, 16), name) == tensor.data_ptr()
    one_row = torch.zeros(4, 3, 16, dtype=dtype)[::4]  # its first stride has no meaning
    assert address(one_row, (1, 3, 16), name) == one_row.data_ptr()


ONES = torch.ones(2, 3, 16)


@pytest.mark.parametrize(
    "other",
    [
        ONES[:, :2],
        ONES.unsqueeze(0),
        ONES.transpose(0, 1).contiguous(),
        ONES.transpose(0, 2).contiguous().transpose(0, 2),
        ONES[:1].expand(2, 3, 16),
        ONES.double(),
        ONES.half(),
        ONES.bfloat16(),
        ONES.int(),
        ONES.to(torch.complex64),
        ONES.to("meta"),
        ONES.to_sparse(),
        torch.zeros(0, 3, 16),
        ONES.numpy(),
        ONES.tolist(),
        None,
        torch.Tensor,
    ],
    ids=lambda other: type(other).__name__,
)
def test_everything_else_has_no_address(other: Any) -> None:
    assert needs_table()(other, (2, 3, 16), "float32") == 0


def test_wrong_arguments_are_refused() -> None:
    address = needs_table()
    with pytest.raises(ValueError, match="float64"):
        address(ONES, (2, 3, 16), "float64")
    with pytest.raises(ValueError, match="four dimensions"):
        address(ONES, (1, 1, 2, 3, 16), "float32")


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


@pytest.mark.parametrize("name", ["q", "out"])
@pytest.mark.parametrize(
    "wrong", [torch.zeros(3, 3, 16), torch.zeros(2, 3, 32), torch.zeros(2, 3, 16).double()], ids=["rows", "d", "dtype"]
)
def test_a_planned_step_refuses_a_wrong_tensor(name: str, wrong: torch.Tensor) -> None:
    attention, q, out = planned()
    with pytest.raises(WrongTensor, match=name):
        attention.decode(**{"q": q, "out": out, name: wrong})
    assert not out.any()


def test_a_planned_step_refuses_out_with_gradients() -> None:
    attention, q, out = planned()
    with pytest.raises(WrongTensor, match="gradients"):
        attention.decode(q, out.requires_grad_())


@pytest.mark.parametrize("layer", [-1, 1])
def test_a_planned_step_refuses_a_layer_that_is_not_there(layer: int) -> None:
    attention, q, out = planned()
    with pytest.raises(WrongTensor, match="no layer"):
        attention.attend(layer, q, out)


def test_after_a_change_the_rows_are_counted_again() -> None:
    attention, q, out = planned()
    attention.decode(q, out)
    attention.remove_sequence(attention.sequences[0])
    with pytest.raises(WrongTensor, match="shape"):
        attention.decode(q, out)
