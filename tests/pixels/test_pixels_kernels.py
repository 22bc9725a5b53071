"""The Triton kernels of the encoder: their results, and when torch is used instead."""

import importlib
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from pixel_cases import pictures, some_text, tiny_model
from torch.utils.flop_counter import FlopCounterMode

from eligo.pixels.model import layers
from eligo.pixels.model.layers import use_kernels

HERE = Path(__file__).parent
ATTEND = {
    "HAS_DEPTH": True, "HAS_MASK": True, "PRECISION": "tf32x3", "QUERIES": 32, "KEYS": 32,
    "SCALE": 0.36,
}  # fmt: skip
LINEAR = {"HAS_BIAS": True, "PRECISION": "tf32x3"}


def test_interpreted_kernels():
    """Run `pixel_triton.py`, where the kernels are interpreted on the CPU."""
    pytest.importorskip("triton")
    # In a new process: Triton reads the variable on import.
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
def test_torch_is_used_on_a_cpu_and_with_gradients(
    device: str, grad: bool, monkeypatch: pytest.MonkeyPatch
):
    """On a CPU, and if gradients are needed."""

    def fail(*_: object) -> bool:
        raise AssertionError("Triton was tried")

    monkeypatch.setattr(layers, "_triton_works", fail)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with torch.set_grad_enabled(grad):
        inputs = [part.to(device) for part in (*pictures(), some_text(3, 0))]
        tiny_model().to(device)(*inputs[:2], None, inputs[2])


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch.func.jvp's own
def test_no_kernels_under_function_transforms_and_counters(monkeypatch: pytest.MonkeyPatch):
    """Transforms and counters do not see kernels; a failed trial would be cached."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    tried = []
    monkeypatch.setattr(layers, "_triton_works", lambda *_: not tried.append(0))
    x, used = torch.randn(3), []

    def look(value: torch.Tensor) -> torch.Tensor:
        used.append(use_kernels(x))  # a tensor that is not wrapped
        used.append(use_kernels(value))
        return (value * value).sum()

    torch.func.grad(look)(x)
    torch.func.jvp(look, (x,), (x,))
    torch.func.vmap(look)(x[None])
    with torch.autograd.forward_ad.dual_level():
        look(torch.autograd.forward_ad.make_dual(x, x))
    with FlopCounterMode(display=False):
        look(x)
    assert used == [False] * 10
    assert not tried
    assert use_kernels(x)


def test_conditions_for_kernels(monkeypatch: pytest.MonkeyPatch):
    """Kernels run unless gradients, tracing or the data type forbid it."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # works on a CPU
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
        assert use_kernels(x)
        patch.setattr(torch.compiler, "is_exporting", lambda: True)
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
        ("_linear", LINEAR | {"ROWS": 64, "COLUMNS": 64, "STEPS": 64}),
        ("_linear", LINEAR | {"ROWS": 32, "COLUMNS": 32, "STEPS": 32}),
        ("_depthwise", {"K": 3, "HAS_ONTO": True, "COLUMNS": 16, "CHANNELS": 32}),
        ("_rotated", {"D": 16, "TOKENS": 32, "CHANNELS": 64}),
        ("_attend", ATTEND | {"D": 16, "CHANNELS": 16, "FULL": False}),
        ("_attend", ATTEND | {"D": 24, "CHANNELS": 32, "FULL": True}),
        ("_norm", {"TOKENS": 8, "CHANNELS": 256}),
    ],
)
def test_kernels_compile_for_an_h200(name: str, constants: dict[str, Any], half: bool):
    """The compiler is stricter than the interpreter and needs no GPU."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget

    kernel = getattr(importlib.import_module("eligo.pixels.model.kernels"), name)
    numbers = ("height", "width", "num_channels", "num_tokens", "num_heads", "per_image", "step")
    numbers += ("num_lines", "line_step", "token_step", "in_dim", "out_dim")
    kinds = dict.fromkeys(kernel.arg_names, "*bf16" if half else "*fp32")
    kinds |= {key: "i32" for key in numbers if key in kinds} | dict.fromkeys(constants, "constexpr")
    floats = {"eps": "fp32", "z": "*fp32", "decay": "*fp32", "valid": "*i1"}
    kinds |= {key: kind for key, kind in floats.items() if key in kinds}
    values = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
    source = triton.compiler.ASTSource(fn=kernel, signature=kinds, constexprs=values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(96, 128), (75, 109)])
@torch.no_grad()
def test_kernels_match_torch_on_a_gpu(
    size: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
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
        assert not torch.equal(ours, expected)  # two implementations
        gap = (ours - expected).float().abs().max() / expected.float().std()
        assert gap < {torch.float32: 1e-4, torch.float16: 0.03, torch.bfloat16: 0.2}[dtype]
