"""Adapters: wrapped layers of the encoder are used, in training and inference."""

import torch
from pixel_cases import pictures, tiny_model
from torch import Tensor, nn


class Adapted(nn.Module):
    """A frozen layer and a trainable correction, as in LoRA."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def test_forward_hooks_on_attention_layers_run():
    """Hooks run and do not change the output."""
    encoder = tiny_model(**{"sam.encoder.stages": ()}).encoder
    inputs = pictures()
    before = encoder(*inputs)
    layers = [module for module in encoder.modules() if isinstance(module, nn.Linear)]
    called = []
    for layer in layers:
        layer.register_forward_hook(lambda layer, *_: called.append(layer))
    after = encoder(*inputs)
    assert set(map(id, called)) == set(map(id, layers))
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one, other)


def test_every_linear_layer_can_be_wrapped():
    encoder = tiny_model(**{"sam.encoder.stages": ()}).encoder.requires_grad_(False)
    inputs = pictures()
    before = encoder(*inputs)
    adapters = []
    for module in list(encoder.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                adapters.append(Adapted(child))
                setattr(module, name, adapters[-1])
    after = encoder(*inputs)
    assert (after[-1] - before[-1]).abs().max() > 1e-3
    sum(part.square().mean() for part in after).backward()
    assert len(adapters) > 10
    for adapter in adapters:
        assert adapter.up.weight.grad is not None
        assert adapter.up.weight.grad.abs().max() > 0
