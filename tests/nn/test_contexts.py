"""Context managers restore what was set before, also after an error."""

import pytest
import torch
from torch import nn

from eligo.nn import allow_tf32_for, record_outputs

MATMUL = torch.backends.cuda.matmul


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_allows_tf32(dtype: torch.dtype):
    before = MATMUL.fp32_precision
    with allow_tf32_for(dtype):
        assert MATMUL.fp32_precision == "tf32"
    assert MATMUL.fp32_precision == before


def test_float32_changes_nothing_and_errors_restore_the_setting():
    before = MATMUL.fp32_precision
    with allow_tf32_for(torch.float32):
        assert MATMUL.fp32_precision == before
    with pytest.raises(ZeroDivisionError), allow_tf32_for(torch.float16):
        _ = 1 / 0
    assert MATMUL.fp32_precision == before


class Pair(nn.Module):
    def forward(self, x):
        return x + 1, "more"


def test_outputs_in_the_order_of_calls():
    layers = nn.ModuleList([Pair(), nn.Identity()])
    x = torch.arange(24.0).view(2, 4, 3)
    with record_outputs(layers) as found:
        layers[1](x)
        layers[0](x)
    assert [torch.equal(a, b) for a, b in zip(found, (x, x + 1), strict=True)] == [True, True]
    with record_outputs(layers, 2) as found:
        layers[0](x)
    assert torch.equal(found[0], x[:, -2:] + 1)


def test_no_hook_stays_after_an_error():
    layer = nn.Identity()
    with pytest.raises(ValueError, match="no"), record_outputs([layer]):
        raise ValueError("no")
    assert not layer._forward_hooks
