"""A training step on scenes never waits for the device: it reads no tensor values.

On a GPU such a read costs more than the work of a small step. Checked on the CPU, with
`values_are_free` patched as on a GPU.
"""

import sys
from typing import Any

import pytest
import torch
from patch_cases import DEFAULTS, assert_close_gradients, batch, gradients, tiny
from torch.utils._python_dispatch import TorchDispatchMode

from eligo.config import load_config
from eligo.patches import alignment_loss
from eligo.patches.config import PatchesTrainConfig
from eligo.patches.training.task import PatchesTask
from eligo.train import Progress

WAITS = (
    "_local_scalar_dense", "item", "nonzero", "masked_select", "equal", "is_nonzero",
    "_unique2", "unique_dim", "unique_consecutive", "bincount", "repeat_interleave",
)  # fmt: skip


class WaitRecorder(TorchDispatchMode):
    """Records the operators that wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        by_mask = any(part is not None and part.dtype == torch.bool for part in indices)
        if name in WAITS or by_mask:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def task(name: str, **changes: Any) -> PatchesTask:
    config = load_config(PatchesTrainConfig, f"patches/scenes_{name}", {"see_steps": 0}).smoke()
    return PatchesTask(config.replace(changes))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    def wait(*_):
        raise AssertionError("tolist() waits for the device")

    def apply(*, lists: bool = False):
        for name, module in list(sys.modules.items()):
            if name.startswith("eligo.") and hasattr(module, "values_are_free"):
                monkeypatch.setattr(module, "values_are_free", lambda *_: False)
        if not lists:
            monkeypatch.setattr(torch.Tensor, "tolist", wait)

    return apply


def run(learner: PatchesTask, as_on_a_gpu) -> list[str]:
    stream = learner.batches(0, 0, 1, torch.device("cpu"))
    next(stream)  # renders scenes and creates constants
    as_on_a_gpu()
    progress = Progress(1, 4)
    with WaitRecorder() as recorder:
        output = learner.step(next(stream), progress)
        torch.stack(list(output.losses.values())).sum().backward()
    return recorder.found


@pytest.mark.parametrize("name", ["global", "filip", "open", "open_dense", "paper"])
def test_step_reads_no_value(name, as_on_a_gpu):
    learner = task(name, hardest_after=1.0)
    assert run(learner, as_on_a_gpu) == []


def test_patch_classification_reads_no_value(as_on_a_gpu, monkeypatch):
    # On a GPU `one_hot` reads no values.
    one_hot = lambda index, count: (index[..., None] == torch.arange(count)).long()  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "one_hot", one_hot)
    learner = task("global", see_steps=4)
    assert run(learner, as_on_a_gpu) == []


@pytest.mark.parametrize("name", ["open", "paper"])
def test_hardest_negatives_read_one_value(name, as_on_a_gpu):
    """The number of pairs with a gradient is known only after scoring."""
    learner = task(name, hardest_after=0.0)
    assert run(learner, as_on_a_gpu) == ["nonzero"]


def test_losses_are_the_same_without_reading_values(as_on_a_gpu):
    """Value and gradient are the same with and without reading values."""
    scores = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    positive = torch.rand(5, 8, generator=torch.Generator().manual_seed(1)) < 0.3
    looked = alignment_loss(scores, None, positive, hardest=False)
    (expected,) = torch.autograd.grad(looked, scores)
    as_on_a_gpu()
    blind = alignment_loss(scores, None, positive, hardest=False)
    torch.testing.assert_close(blind, looked)
    torch.testing.assert_close(torch.autograd.grad(blind, scores)[0], expected)


@pytest.mark.parametrize("name", ["open_dense", "paper_dense", "masked"])
def test_scores_are_the_same_without_reading_values(name, as_on_a_gpu):
    """Unsorted text blocks and the underflow-safe softmax give the same values."""
    settings, shape = DEFAULTS[name]
    inputs = batch(**shape, seed=5).to(torch.float64)
    probe = torch.randn(len(inputs.images), len(inputs.words))
    net = tiny(**settings, kernel="torch").double()
    expected = inputs.scores(net).detach(), gradients(net, inputs, probe)
    as_on_a_gpu(lists=True)  # `tolist` stays allowed: inputs of the caller are checked
    assert torch.allclose(inputs.scores(net), expected[0], atol=1e-12)
    assert_close_gradients(gradients(net, inputs, probe), expected[1], 1e-9)
