"""The Triton kernels compile for an H200 (without a GPU) and fit its registers and memory.

Values that do not fit in registers are spilled to memory, which costs more than the kernel saves.
"""

import re
import subprocess
import warnings

import pytest
import torch
from packaging.version import Version

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from eligo.patches.kernels import triton_kernels  # noqa: E402

SHARED_MEMORY = 227 * 1024  # of a program on Hopper


def compiled(kernel, constants, *, half=(), integers=(), **options):
    names = kernel.arg_names
    kinds = {name: "*fp16" if name in half else "*fp32" for name in names}
    kinds |= dict.fromkeys(integers, "i32") | dict.fromkeys(constants, "constexpr")
    aligned = [name for name in names if kinds[name].startswith("*")]
    source = ASTSource(
        fn=kernel,
        signature=kinds,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def spilled(kernel, folder) -> int:
    """Bytes of spilled registers per thread."""
    path = folder / "kernel.cubin"
    path.write_bytes(kernel.asm["cubin"])
    command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(re.findall(r"STACK:(\d+)", usage.stdout + usage.stderr)[0])


@pytest.mark.parametrize(
    ("dtype", "gram", "nets"),
    [(torch.float16, True, 1), (torch.float16, True, 2), (torch.float16, False, 1),
     (torch.float32, False, 1)],
)  # fmt: skip
def test_matching_kernel_fits(dtype, gram, nets, tmp_path):
    """ViT-224: 196 patches, 39 slots, up to 16 words."""
    tiles = triton_kernels.tiles_of(dtype, gram=gram, nets=nets)
    constants = {
        "NUM_SLOTS": 39, "NUM_PATCHES": 196, "WIDTH": 256 if gram else 512, "GRAM": gram,
        "NETS": nets, "HAS_EXTRA": 1, "EXTRA_MAY_LACK": False, "TEXTS": tiles.texts, "TOKENS": 64,
        "PATCHES": 256, "WORDS": 16, "COLUMNS": tiles.columns,
    }  # fmt: skip
    is_half = dtype == torch.float16
    kernel = compiled(
        triton_kernels._best_cosines, constants, half=("vectors", "words") if is_half else (),
        integers=("num_texts", "num_words"), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    assert kernel.metadata.shared <= SHARED_MEMORY
    assert ("wgmma" in kernel.asm["ptx"]) == is_half  # tensor cores
    if is_half or Version(triton.__version__) >= Version("3.9"):  # older ones spill 32 bytes
        assert spilled(kernel, tmp_path) == 0


def test_top_k_kernel_fits(tmp_path):
    constants = {
        "MASKED": False,
        "LOWEST": -(2**31),
        "ROWS": triton_kernels._KEEP_ROWS,
        "PATCHES": 256,
    }
    sizes = ("num_rows", "num_texts", "num_patches")
    kernel = compiled(triton_kernels._keep_best, constants, integers=sizes, num_warps=4)
    assert spilled(kernel, tmp_path) == 0
