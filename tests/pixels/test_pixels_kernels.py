"""The encoder's GPU kernels: their answers, and that they stay away where they do not belong."""

import importlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from pixel_cases import pictures, some_text, tiny_model
from torch.utils.flop_counter import FlopCounterMode

from eligo.pixels.model import layers
from eligo.pixels.model.layers import use_kernels
from limits import PROCESS_SECONDS

HERE = Path(__file__).parent


def test_interpreted():
    """Runs `pixel_triton.py`, where the kernels are interpreted on the CPU."""
    pytest.importorskip("triton")
    # A process of its own: Triton reads the variable when it is first imported.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "pixel_triton.py"]
    settings = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(
        command, cwd=HERE, env=settings, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-3000:]


@pytest.mark.parametrize(
    ("device", "grad"),
    [("cpu", False), ("cpu", True), pytest.param("cuda", True, marks=pytest.mark.gpu)],
)
def test_torch_stays_in_use(device: str, grad: bool, monkeypatch: pytest.MonkeyPatch):
    """On a CPU, and where something learns."""

    def fail(*_: object) -> bool:
        raise AssertionError("asked for Triton")

    monkeypatch.setattr(layers, "_triton_works", fail)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with torch.set_grad_enabled(grad):
        inputs = [part.to(device) for part in (*pictures(), some_text(3, 0))]
        tiny_model().to(device)(*inputs[:2], None, inputs[2])


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch.func.jvp's own
def test_nobody_who_looks_into_operations_meets_a_kernel(monkeypatch: pytest.MonkeyPatch):
    """Gradients and counts would lack what it does; a trial there would fail, and be remembered."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    asked = []
    monkeypatch.setattr(layers, "_triton_works", lambda *_: not asked.append(0))
    x, seen = torch.randn(3), []

    def look(value: torch.Tensor) -> torch.Tensor:
        seen.append(use_kernels(x))  # what is not wrapped itself
        seen.append(use_kernels(value))
        return (value * value).sum()

    torch.func.grad(look)(x)
    torch.func.jvp(look, (x,), (x,))
    torch.func.vmap(look)(x[None])
    with torch.autograd.forward_ad.dual_level():
        look(torch.autograd.forward_ad.make_dual(x, x))
    with FlopCounterMode(display=False):
        look(x)
    assert seen == [False] * 10
    assert not asked
    assert use_kernels(x)


def test_the_choice(monkeypatch: pytest.MonkeyPatch):
    """Where a kernel could run, it does, unless something learns, traces or is not to be read."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # a CPU will do
    monkeypatch.setattr(layers, "_triton_works", lambda *_: True)
    x, learns = torch.randn(2), torch.randn(2, requires_grad=True)
    assert use_kernels(x, x)
    for off in ("torch", "0"):
        with monkeypatch.context() as patch:
            patch.setenv("ELIGO_PIXELS_KERNELS", off)
            assert not use_kernels(x, x)
    assert not use_kernels(learns)
    assert not use_kernels(x, x, learns)
    with torch.no_grad():
        assert use_kernels(learns, learns)
    with torch.inference_mode():
        assert use_kernels(learns)
    assert use_kernels(x.half())
    assert not use_kernels(x.double())
    assert not use_kernels(x.to("meta"))
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert not use_kernels(x)
    monkeypatch.setattr(layers, "_triton_works", lambda *_: False)
    assert not use_kernels(x)
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(layers, "_triton_works", lambda *_: True)
    assert not use_kernels(x)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("_depthwise", {"K": 3, "HAS_ONTO": True, "COLUMNS": 16, "CHANNELS": 32}),
        ("_turned", {"D": 16, "TOKENS": 32, "CHANNELS": 64}),
        ("_biases", {"TILE": 32}),
        ("_norm", {"TOKENS": 8, "CHANNELS": 256}),
    ],
)
def test_compiles_for_an_h200(name: str, constants: dict[str, int], half: bool):
    """The interpreter knows fewer rules than the compiler, which needs no GPU."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget

    kernel = getattr(importlib.import_module("eligo.pixels.model.kernels"), name)
    numbers = ("height", "width", "num_channels", "num_tokens", "num_heads", "per_image", "step")
    numbers += ("head_step",)
    kinds = dict.fromkeys(kernel.arg_names, "*bf16" if half else "*fp32")
    kinds |= {key: "i32" for key in numbers if key in kinds} | dict.fromkeys(constants, "constexpr")
    kinds |= {"eps": "fp32"} if name == "_norm" else {}
    values = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
    source = triton.compiler.ASTSource(fn=kernel, signature=kinds, constexprs=values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]


TRACED = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from pixel_cases import pictures, tiny_model

torch.set_num_threads(1)
encoder = tiny_model(**{"encoder.depths": (1, 1, 1, 1)}).encoder
inputs = pictures()
with torch.no_grad():
    torch.compile(encoder, fullgraph=True, backend="aot_eager")(*inputs)
    torch.jit.trace(encoder, inputs, check_trace=False)
    assert "eligo.pixels.model.kernels" not in sys.modules
    encoder(*inputs)
assert "eligo.pixels.model.kernels" in sys.modules  # as soon as nobody looks
"""


def test_tracing_takes_torch():
    """In a process of its own, where the kernels could run: a trace would not see them."""
    settings = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", "-c", TRACED, str(HERE)]
    subprocess.run(command, check=True, timeout=PROCESS_SECONDS, env=settings)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(96, 128), (75, 109)])
@torch.no_grad()
def test_on_a_gpu(size: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    """The encoder with kernels and without."""
    pytest.importorskip("triton")
    encoder = tiny_model().encoder.cuda()
    rgb, depth = (part.cuda() for part in pictures(2, *size))
    mask = torch.rand(depth.shape, device="cuda") < 0.7
    found = []
    for there in (True, False):
        monkeypatch.setattr(layers, "_triton_works", lambda *_, there=there: there)
        half = dtype != torch.float32
        with (
            torch.autocast("cuda", dtype, enabled=half),
            torch.backends.cudnn.flags(allow_tf32=False),
        ):
            found.append(encoder(rgb, depth, mask))
    for ours, expected in zip(*found, strict=True):
        assert ours.dtype == expected.dtype
        assert not torch.equal(ours, expected)  # two ways
        gap = (ours - expected).float().abs().max() / expected.float().std()
        assert gap < {torch.float32: 1e-4, torch.float16: 0.03, torch.bfloat16: 0.2}[dtype]
