import pytest
import torch

from chunkbench.kernels.products import HalfProducts, Products, Scratch, has_native_products, products_for

CPU = torch.device("cpu")


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("half", [False, True])
def test_both_kinds_of_products_agree_with_float64(half, dtype, add):
    torch.manual_seed(0)
    scratch = Scratch(CPU)
    products = HalfProducts(0.25, scratch, dtype) if half else Products(0.25, scratch, loads=True)
    q, k, v = torch.randn(3, 2, 16).to(dtype), torch.randn(3, 5, 16).to(dtype), torch.randn(3, 5, 16).to(dtype)
    scores = torch.full((3, 2, 5), torch.nan)
    products.scores(scores, q.to(products.dtype), products.load(k))
    tolerance = {"rtol": 1e-2, "atol": 2e-2} if half else {"rtol": 1e-5, "atol": 1e-5}
    expected = 0.25 * q.double() @ k.double().transpose(1, 2)
    torch.testing.assert_close(scores.double(), expected, **tolerance)
    out = torch.ones(3, 2, 16) if add else torch.full((3, 2, 16), torch.nan)
    products.outputs(out, scores, products.load(v), add=add)
    expected = expected @ v.double() + (1 if add else 0)
    torch.testing.assert_close(out.double(), expected, **tolerance)


def test_float16_scores_overflow_only_if_the_scaled_score_does():
    products = HalfProducts(1 / 16, Scratch(CPU), torch.float16)
    q, k = torch.full((1, 1, 256), 30.0).half(), torch.full((1, 1, 256), 30.0).half()
    scores = torch.empty(1, 1, 1)
    products.scores(scores, q, k)  # 230400 before scaling, beyond 65504
    assert scores.item() == pytest.approx(14400, rel=1e-3)


def test_a_processor_without_matrix_instructions_converts_to_float32(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
    products = products_for(torch.bfloat16, CPU, 1.0, Scratch(CPU))
    assert products.dtype == torch.float32
    assert products.loads
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    assert products_for(torch.bfloat16, CPU, 1.0, Scratch(CPU)).dtype == torch.bfloat16


def test_float32_is_never_converted():
    products = products_for(torch.float32, CPU, 1.0, Scratch(CPU))
    source = torch.zeros(2, 3, 16)
    assert products.load(source) is source
    assert has_native_products(torch.float32, CPU)


def test_scratch_reuses_its_largest_buffer():
    scratch = Scratch(CPU)
    large = scratch.take("x", (4, 8))
    assert scratch.take("x", (2, 2)).data_ptr() == large.data_ptr()
    assert scratch.take("y", (2, 2)).data_ptr() != large.data_ptr()
