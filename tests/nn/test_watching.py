"""What modules put out is collected while one watches, and only then."""

import pytest
import torch
from torch import nn

from eligo.nn import watching


class Pair(nn.Module):
    def forward(self, x):
        return x + 1, "more"


def test_outputs_in_the_order_of_calls():
    layers = nn.ModuleList([Pair(), nn.Identity()])
    x = torch.arange(24.0).view(2, 4, 3)
    with watching(layers) as found:
        layers[1](x)
        layers[0](x)
    assert [torch.equal(a, b) for a, b in zip(found, (x, x + 1), strict=True)] == [True, True]
    with watching(layers, 2) as found:
        layers[0](x)
    assert torch.equal(found[0], x[:, -2:] + 1)


def test_nobody_watches_afterwards_even_if_it_failed():
    layer = nn.Identity()
    with pytest.raises(ValueError, match="no"), watching([layer]):
        raise ValueError("no")
    assert not layer._forward_hooks
