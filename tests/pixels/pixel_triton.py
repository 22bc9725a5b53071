"""The Triton kernels, interpreted on the CPU: `TRITON_INTERPRET=1 pytest pixel_triton.py`.

Not collected by itself; `test_pixels_kernels.py` runs it in a process of its own.
"""

import os

import pytest
import torch
from pixel_cases import pictures, some_text, tiny_model
from torch.nn import functional as F

from eligo.pixels.model import attention, kernels, layers
from eligo.pixels.model.block import Block
from eligo.pixels.model.geometry import (
    Depth,
    column_distances,
    full_distances,
    pair_cos_sin,
    prior_rates,
    rotary_frequencies,
    rotary_tables,
    rotate,
    row_distances,
    stage_geometry,
    stage_tables,
)

assert os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1 before Triton is imported"

CPU = torch.device("cpu")
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Half precision: one rounding at the end, of numbers up to about 8.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare with `expected`, in float32, from the same (rounded) inputs."""
    tolerance = TOLERANCES[found.dtype]
    torch.testing.assert_close(found.float(), expected, atol=tolerance, rtol=tolerance)


def filtered(x, weight, bias, onto):
    padding = weight.shape[-1] // 2
    parts = (part.float() for part in (x.permute(0, 3, 1, 2), weight, bias))
    out = F.conv2d(*parts, padding=padding, groups=len(weight)).permute(0, 2, 3, 1)
    return out if onto is None else out + onto.float()


@pytest.mark.parametrize(
    ("shape", "kernel", "dtype"),
    [
        ((1, 1, 1, 2), 5, F32), ((1, 1, 1, 2), 3, F16), ((2, 3, 5, 8), 3, BF16),
        ((1, 2, 3, 8), 5, F16), ((1, 1, 33, 40), 3, F32), ((1, 1, 33, 40), 3, BF16),
    ],
)  # fmt: skip
def test_depthwise_filter_matches_torch(shape: tuple[int, ...], kernel: int, dtype: torch.dtype):
    """Odd sizes, partly filled tiles, images smaller than the filter."""
    x, onto = torch.randn(2, *shape, dtype=dtype)
    weight, bias = torch.randn(shape[-1], 1, kernel, kernel).div(kernel), torch.randn(shape[-1])
    for base in (onto, x, None):
        found = kernels.depthwise(x, weight, bias, base)
        assert found.dtype == dtype
        assert found.is_contiguous()
        close(found, filtered(x, weight, bias, base))
    half_weights = weight.to(dtype), bias.to(dtype)
    close(kernels.depthwise(x, *half_weights, onto), filtered(x, *half_weights, onto))


def test_filter_accepts_strided_views():
    """Not contiguous: transposed, every second token, some channels; mixed types."""
    wide = torch.randn(2, 3, 4, 24)
    views = (
        wide.transpose(1, 2),
        wide[:, :, ::2],
        wide[..., 8:16],
        wide[..., :6].movedim(-1, 1),
        wide[:1].expand(2, -1, -1, -1),
    )
    for x in views:
        weight, bias = torch.randn(x.shape[-1], 1, 3, 3), torch.randn(x.shape[-1])
        close(kernels.depthwise(x, weight, bias, x), filtered(x, weight, bias, x))
    flipped = torch.randn(24, 1, 3, 3).mT
    close(
        kernels.depthwise(wide, flipped, bias[:1].expand(24)),
        filtered(wide, flipped, bias[:1].expand(24), None),
    )
    mixed = kernels.depthwise(wide.half(), flipped, torch.zeros(24), wide)
    assert mixed.dtype == torch.float32


@pytest.mark.parametrize(
    ("shape", "out_dim", "dtype"),
    [((1, 1), 1, F32), ((2, 3, 5, 8), 3, F32), ((70, 65), 33, F32), ((2, 33, 40), 70, F16)],
)
def test_products_match_torch(shape: tuple[int, ...], out_dim: int, dtype: torch.dtype):
    """Partly filled tiles, with bias and without, strided; every size of tiles."""
    x, weight = torch.randn(shape, dtype=dtype), torch.randn(out_dim, shape[-1], dtype=dtype) / 4
    bias = torch.randn(out_dim, dtype=dtype)
    for least in (1, 10_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "_LINEAR_PROGRAMS", least)
            for given in (x, x.transpose(0, -2)):
                for shift in (bias, None):
                    found = kernels.linear(given, weight, shift)
                    assert found.dtype == dtype
                    exact = None if shift is None else shift.float()
                    close(found, F.linear(given.float(), weight.float(), exact))


@pytest.mark.parametrize(
    ("height", "width", "heads", "head_dim", "dtype"),
    [
        (1, 1, 1, 2, F16), (3, 5, 2, 16, BF16), (5, 7, 3, 6, F32), (4, 9, 5, 16, F16),
        (2, 3, 4, 32, F32), (1, 40, 7, 16, BF16),
    ],
)  # fmt: skip
def test_rotary_embedding_matches_torch(
    height: int, width: int, heads: int, head_dim: int, dtype: torch.dtype
):
    together = torch.randn(2, height, width, 3 * heads * head_dim, dtype=dtype)
    turns = pair_cos_sin(*rotary_tables(height, width, rotary_frequencies(head_dim)))
    for given in (together, together.transpose(0, 1).contiguous().transpose(0, 1)):
        found = kernels.rotated(given, turns)
        expected = given.view(2, height, width, 3, heads, head_dim).unbind(3)
        assert all(part.is_contiguous() for part in found)  # so attention makes no copy
        close(found[0], rotate(expected[0].float(), turns))
        close(found[1], rotate(expected[1].float(), turns))
        assert torch.equal(found[2], expected[2])


@pytest.mark.parametrize(
    ("height", "width", "head_dim", "dtype"),
    [(1, 1, 2, F32), (2, 35, 16, F32), (5, 7, 24, F32), (6, 8, 32, F16), (33, 2, 16, F16)],
)
def test_geometry_attention_matches_torch(
    height: int, width: int, head_dim: int, dtype: torch.dtype
):
    """Rows, columns and all tokens; depth known, partly known and unknown.

    Not bfloat16, whose products the interpreter gets wrong; a test on a GPU covers it.
    """
    decay, prior = -torch.rand(3), torch.tensor([0.7, 1.9])
    shape = (2, height, width, 3, head_dim)
    query, key, value = torch.randn(3, *shape, dtype=dtype)
    z, valid = torch.randn(2, 1, height, width), torch.rand(2, 1, height, width) < 0.6
    for depth in (Depth(z, valid), Depth(z, None), None):
        cases = {
            "rows": (attention._rows, row_distances(width, depth, CPU)),
            "columns": (attention._columns, column_distances(height, depth, CPU)),
            "all": (attention._full, full_distances(height, width, depth, CPU)),
        }
        for line, (attend, distances) in cases.items():
            found = kernels.attend(query, key, value, line, decay, prior, *(depth or ()))
            bias = distances.bias(prior_rates(decay, prior))
            assert found.dtype == dtype
            assert found.is_contiguous()
            close(found, attend(query.float(), key.float(), value.float(), bias))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1, 1, 1, 1), F32), ((2, 3, 5, 16), F16), ((1, 7, 11, 80), BF16), ((1, 2, 3, 600), F32)],
)
def test_norms_match_torch(shape: tuple[int, ...], dtype: torch.dtype):
    x = 3 * torch.randn(shape, dtype=dtype) + 5  # far from 0
    weight, bias = torch.randn(2, shape[-1])
    for given in (x, x.transpose(1, 2)):
        expected = F.layer_norm(given.float(), shape[-1:], weight, bias, 1e-6)
        for out in (dtype, torch.float32):
            found = kernels.norm(given, weight, bias, 1e-6, out)
            assert found.dtype == out
            close(found, expected)


@torch.no_grad()
@pytest.mark.parametrize(("full", "scale"), [(False, None), (True, 0.5)])
def test_block_matches_torch(full: bool, scale: float | None, monkeypatch: pytest.MonkeyPatch):
    block = Block(24, 3, 40, scale)
    for parameter in block.parameters():
        parameter.copy_(torch.randn(parameter.shape) * 0.3)
    depth = Depth(torch.randn(1, 1, 3, 5), torch.rand(1, 1, 3, 5) < 0.7)
    tables = stage_tables((3, 5), num_heads=3, head_dim=8, spread=4.0, device=CPU)
    for known in (depth, None):
        geometry = stage_geometry((3, 5), known, tables, full=full)
        x = torch.randn(1, 3, 5, 24)
        found = block(x, geometry)
        with monkeypatch.context() as patch:
            patch.setattr(layers, "_triton_works", lambda *_: False)
            expected = block(x, geometry)
        assert not torch.equal(found, expected)  # two implementations
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_model_under_autocast_matches_torch(monkeypatch: pytest.MonkeyPatch):
    """With words, depth partly unknown, an odd size, LayerScale; the blocks cover float32.

    Not bfloat16, whose products the interpreter gets wrong.
    """
    model = tiny_model(
        **{"encoder.depths": (1, 1, 1, 1), "encoder.layer_scale": (None, 0.5, 1.0, None)}
    )
    inputs = (*pictures(1, 33, 35), torch.rand(1, 1, 33, 35) < 0.7, some_text(3))
    found = []
    for there in (True, False):
        monkeypatch.setattr(layers, "_triton_works", lambda *_, there=there: there)
        with torch.autocast("cpu", torch.float16):
            found.append(model(*inputs).logits)
    assert not torch.equal(*found)
    assert found[0].dtype == found[1].dtype
    spread = found[1].float().std()
    assert (found[0] - found[1]).float().abs().max() < 0.1 * spread


def test_gradient_passes_a_frozen_filter():
    """`onto` may require a gradient although filter and input do not."""
    filtered = layers.Depthwise(4, 3).requires_grad_(False)
    onto = torch.randn(1, 5, 6, 4, requires_grad=True)
    assert filtered(torch.randn(1, 5, 6, 4), onto).requires_grad
    assert not filtered(torch.randn(1, 5, 6, 4), onto.detach()).requires_grad


@pytest.mark.parametrize("which", ["linear", "norm", "depthwise", "rotated", "attend"])
def test_torch_is_used_if_triton_fails(
    which: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(*_: object) -> None:
        raise RuntimeError("no C compiler")

    x = torch.randn(2, 3)
    assert layers.use_kernels(x)
    layers._triton_works.cache_clear()
    monkeypatch.setattr(kernels, which, fail)
    assert not layers.use_kernels(x)
    assert "no C compiler" in caplog.text
    layers._triton_works.cache_clear()
