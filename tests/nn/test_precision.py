"""Halves may be multiplied in TF32; whatever was set before comes back."""

import pytest
import torch

from eligo.nn import as_exact_as

MATMUL = torch.backends.cuda.matmul


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_allow_tf32_inside(dtype: torch.dtype):
    before = MATMUL.fp32_precision
    with as_exact_as(dtype):
        assert MATMUL.fp32_precision == "tf32"
    assert MATMUL.fp32_precision == before


def test_float32_keeps_what_is_set_and_errors_restore_it():
    before = MATMUL.fp32_precision
    with as_exact_as(torch.float32):
        assert MATMUL.fp32_precision == before
    with pytest.raises(ZeroDivisionError), as_exact_as(torch.float16):
        _ = 1 / 0
    assert MATMUL.fp32_precision == before
