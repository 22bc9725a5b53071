"""The forward pass traces whole, never waits for the device, and attends through SDPA."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pixel_cases import pictures, some_text, tiny_model
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from limits import PROCESS_SECONDS

COMPILED = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from pixel_cases import pictures, some_text, tiny_model

torch.set_num_threads(1)
changes = {
    "encoder.depths": (1, 1, 1, 1),
    "encoder.depth_stem": True,
    "sam.encoder.stages": (3,),
    "sam.decoder.stages": (1,),
}
model = tiny_model(**changes)
compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
inputs = (*pictures(), torch.rand(2, 1, 64, 96) < 0.7, some_text(3, 0))
with torch.no_grad():
    found = [run(*inputs) for run in (model, compiled)]
found = [(out.logits, out.tag_maps, out.selection.scores, out.entropy) for out in found]
torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-3)
"""


def test_compiled_whole():
    """In a process of its own: the checks of annotations cannot be traced."""
    folder = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", COMPILED, folder], check=True, timeout=PROCESS_SECONDS)


class Watch(TorchDispatchMode):
    """Notes every operation; a value or a shape that Python must wait for is a sync."""

    SYNCS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "bincount")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in self.SYNCS, f"{name} waits for the device"
        self.seen.append(name)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks of values are made on the CPU only; leave them out as a GPU would."""
    for name, module in list(sys.modules.items()):
        if name.startswith("eligo.") and hasattr(module, "values_are_free"):
            monkeypatch.setattr(module, "values_are_free", lambda *_: False)


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize("form", ["gated", "legacy"])
@pytest.mark.parametrize("training", [False, True])
def test_no_host_sync(form: str, training: bool):
    model = tiny_model(**{"sam.form": form, "encoder.depth_stem": True, "sam.decoder.top_m": 2})
    model.train(training)
    inputs = (*pictures(), torch.rand(2, 1, 64, 96) < 0.7, some_text(3, 0))
    with Watch() as watch:
        output = model(*inputs)
    assert output.selection is not None
    assert len(watch.seen) > 500


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_no_shape_depends_on_a_value():
    """Fake tensors have no values: whatever needs one raises."""
    model = tiny_model()
    with FakeTensorMode(allow_non_fake_inputs=True):  # the weights
        output = model(*pictures(), None, some_text(3, 0))
        assert output.logits.shape == (2, 5, 64, 96)
        assert output.tag_maps.shape == (2, 5, 8, 12)
        with pytest.raises(DataDependentOutputException):
            output.logits.sum().item()


def test_the_watch_sees_syncs():
    with pytest.raises(AssertionError, match="waits for the device"), Watch():
        torch.ones(1).item()


def test_attention_is_fused_and_the_prior_shared():
    model = tiny_model()
    with Watch() as watch, torch.no_grad():
        model.encoder(*pictures())
    directions = 2 * (1 + 2 + 3) + 2  # rows and columns of three stages, all tokens of the last
    fused = [name for name in watch.seen if name.startswith("_scaled_dot_product")]
    assert len(fused) == directions
    assert "_softmax" not in watch.seen
    assert watch.seen.count("addcmul") == directions  # all that a block does for its prior
    assert sum("upsample" in name for name in watch.seen) == 4  # the depth, once per stage


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["gated", "legacy"])
def test_on_a_gpu(form: str):
    """The same answer as on the CPU, without a single sync."""
    model = tiny_model(**{"sam.form": form, "encoder.depth_stem": True})
    inputs = (*pictures(), torch.rand(2, 1, 64, 96) < 0.7, some_text(3, 0))
    with torch.no_grad():
        expected = model(*inputs).logits
    model.to("cuda")
    there = [part.to("cuda") for part in inputs]
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.backends.cudnn.flags(allow_tf32=False):  # the CPU has no such thing
            logits = model(*there).logits
            logits.square().mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(logits.detach().cpu(), expected, atol=1e-3, rtol=1e-3)
