"""The forward pass compiles as one graph, never waits for the device, and uses SDPA."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pixel_cases import pictures, some_text, tiny_model
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from eligo.pixels.model import attention, encoder, geometry
from limits import PROCESS_SECONDS

COMPILED = """
import sys
sys.path.insert(0, sys.argv[1])
device = sys.argv[2]
import torch
from torch._dynamo import lookup_backend
from pixel_cases import pictures, some_text, tiny_model

torch.set_num_threads(1)
torch.backends.cudnn.allow_tf32 = False
changes = {
    "encoder.depths": (1, 1, 1, 1),
    "encoder.depth_stem": True,
    "sam.encoder.stages": (3,),
    "sam.decoder.stages": (1,),
}
model = tiny_model(**changes).to(device)
kernels = []

def backend(graph, inputs):
    kernels.extend(node for node in graph.graph.nodes if "triton" in str(node.target))
    return lookup_backend("inductor" if device == "cuda" else "aot_eager")(graph, inputs)

compiled = torch.compile(model, fullgraph=True, backend=backend)
inputs = (*pictures(), torch.rand(2, 1, 64, 96) < 0.7, some_text(3, 0))
inputs = [part.to(device) for part in inputs]
with torch.no_grad():
    found = [compiled(*inputs), model(*inputs)]
assert bool(kernels) == (device == "cuda"), kernels
found = [(out.logits, out.tag_maps, out.selection.scores, out.entropy) for out in found]
torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-3)
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_compiled_model_agrees(device: str):
    """A compiled model agrees with eager mode; on a GPU it calls the kernels too.

    In a process of its own: the runtime checks of annotations cannot be traced.
    """
    command = [sys.executable, "-W", "ignore", "-c", COMPILED, str(Path(__file__).parent), device]
    subprocess.run(command, check=True, timeout=PROCESS_SECONDS)


USED = """
import torch
from eligo.pixels.model import layers

layers._triton_works = lambda device, dtype: True

class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1 if layers.use_kernels(x) else x + 2

x = torch.zeros(1)
with torch.no_grad():
    assert torch.compile(Model(), fullgraph=True, backend="eager")(x).item() == 1
    assert torch.export.export(Model(), (x,)).module()(x).item() == 2
    assert torch.export.export(Model(), (x,), strict=True).module()(x).item() == 2
"""


def test_kernels_are_used_in_a_compiled_model_and_not_in_an_exported_one():
    command = [sys.executable, "-W", "ignore", "-c", USED]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}  # as on a GPU
    subprocess.run(command, check=True, timeout=PROCESS_SECONDS, env=environment)


class Watch(TorchDispatchMode):
    """Records operators and raises for one that waits for the device."""

    SYNCS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "bincount")

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in self.SYNCS, f"{name} waits for the device"
        self.operators.append(name)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips checks of values, which run only on the CPU."""
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
    assert watch.operators


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_no_shape_depends_on_a_value():
    """Fake tensors have no values, so reading one raises."""
    model = tiny_model()
    with FakeTensorMode(allow_non_fake_inputs=True):  # the weights
        output = model(*pictures(), None, some_text(3, 0))
        assert output.logits.shape == (2, 5, 64, 96)
        assert output.tag_maps.shape == (2, 5, 8, 12)
        with pytest.raises(DataDependentOutputException):
            output.logits.sum().item()


def test_watch_detects_syncs():
    with pytest.raises(AssertionError, match="waits for the device"), Watch():
        torch.ones(1).item()


def test_attention_is_fused_and_distances_are_shared(monkeypatch: pytest.MonkeyPatch):
    """Each attention is one SDPA call; depth is resized once per stage, not per block."""
    calls: list[str] = []
    for owner, name in (
        (attention.F, "scaled_dot_product_attention"),
        (geometry, "resize_depth"),
        (encoder, "stage_geometry"),
    ):
        real = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *a, real=real, name=name, **k: calls.append(name) or real(*a, **k)
        )
    with torch.no_grad():
        tiny_model().encoder(*pictures())
    directions = 2 * (1 + 2 + 3) + 2  # rows and columns of three stages, all tokens of the last
    assert calls.count("scaled_dot_product_attention") == directions
    assert calls.count("stage_geometry") == calls.count("resize_depth") == 4


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["gated", "legacy"])
def test_gpu_agrees_with_the_cpu_without_sync(form: str):
    """The same result as on the CPU, without a synchronisation."""
    model = tiny_model(**{"sam.form": form, "encoder.depth_stem": True})
    inputs = (*pictures(), torch.rand(2, 1, 64, 96) < 0.7, some_text(3, 0))
    with torch.no_grad():
        expected = model(*inputs).logits
    model.to("cuda")
    there = [part.to("cuda") for part in inputs]
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.backends.cudnn.flags(allow_tf32=False):  # not available on the CPU
            logits = model(*there).logits
            logits.square().mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(logits.detach().cpu(), expected, atol=1e-3, rtol=1e-3)
