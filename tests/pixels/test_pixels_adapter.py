"""Adapters: whatever wraps a layer of the encoder takes part, in training and without."""

from pixel_cases import pictures, tiny_model
from torch import Tensor, nn


class Adapted(nn.Module):
    """A frozen layer and a correction that learns, as LoRA has it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def test_every_linear_layer_can_be_wrapped():
    encoder = tiny_model(**{"sam.encoder.stages": ()}).encoder.requires_grad_(False)
    before = encoder(*pictures())
    adapters = []
    for module in list(encoder.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                adapters.append(Adapted(child))
                setattr(module, name, adapters[-1])
    after = encoder(*pictures())
    assert (after[-1] - before[-1]).abs().max() > 1e-3
    sum(part.square().mean() for part in after).backward()
    assert len(adapters) > 10
    for adapter in adapters:
        assert adapter.up.weight.grad is not None
        assert adapter.up.weight.grad.abs().max() > 0
