"""How fast DFormerv2 runs, against its definition written down plainly.

    python -m benchmarks.pixels.speed                                   S at 480x640, CPU, one thread
    python -m benchmarks.pixels.speed --device cuda --batch 8           one GPU
    python -m benchmarks.pixels.speed --device cuda --batch 8 --compile

The baseline follows the equations one by one, as the released code does: every block resizes the
depth and builds its own prior, for all heads; q, k and v are separate, attention is an explicit
softmax. It shares no code with eligo but the weights (and, in `model`, the head). Both sides are
measured in turn, so that a busy machine slows both; a ratio is of medians. On a CPU it is of
processor time (one thread), which other programs disturb less; wall time stands beside it. Memory
is the peak of one forward pass (and of one with backward) in a process of its own: on a CPU the
growth of the resident set over what stood before, on a GPU what torch allocated.

Writes one entry per device, dtype, batch, size and mode to benchmarks/pixels/results/speed.json; the
others stay.
"""

import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from eligo.io.files import write_text
from eligo.pixels import SIZES, Encoder, PixelsConfig, PixelsModel, to_official
from eligo.report.provenance import provenance

RESULTS = Path(__file__).parent / "results" / "speed.json"


@dataclass(frozen=True)
class Case:
    """What is run."""

    size: Literal["S", "B", "L", "small"] = "S"
    batch: int = 1
    height: int = 480
    width: int = 640
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    compile: bool = False

    def build(self) -> tuple[PixelsModel, Tensor, Tensor]:
        """The model and its inputs, the same in every process."""
        torch.manual_seed(0)
        config = PixelsConfig().replace({**SIZES[self.size], "sam.encoder.stages": ()})
        config = config.replace({"sam.decoder.stages": ()})
        model = PixelsModel(config).eval().to(self.device)
        rgb = torch.randn(self.batch, 3, self.height, self.width)
        depth = torch.randn(self.batch, 1, self.height, self.width)
        return model, rgb.to(self.device), depth.to(self.device)

    def precision(self) -> AbstractContextManager:
        """Autocast, unless in float32."""
        if self.dtype == "float32":
            return nullcontext()
        return torch.autocast(torch.device(self.device).type, getattr(torch, self.dtype))


class Plain:
    """The encoder by its equations, from official weights."""

    def __init__(self, model: PixelsModel) -> None:
        state = to_official(model.encoder)
        device = next(model.parameters()).device
        self.weights = {key: value.to(device) for key, value in state.items()}
        self.config = model.config.encoder

    def trainable(self) -> list[Tensor]:
        """Its weights as leaves, for the backward pass."""
        fixed = ("running_mean", "running_var", "angle", "decay", "num_batches_tracked")
        leaves = [value for key, value in self.weights.items() if not key.endswith(fixed)]
        return [leaf.requires_grad_() for leaf in leaves]

    def __call__(self, rgb: Tensor, depth: Tensor) -> tuple[Tensor, ...]:
        x = rgb
        for layer, stride in enumerate((2, 1, 2, 1)):
            x = self.conv(x, f"patch_embed.proj.{3 * layer}", stride=stride, padding=1)
            x = self.batch_norm(x, f"patch_embed.proj.{3 * layer + 1}")
            x = F.gelu(x) if layer < 3 else x
        x = x.permute(0, 2, 3, 1)
        features = []
        for stage in range(4):
            for number in range(self.config.depths[stage]):
                x = self.block(x, depth, f"layers.{stage}.blocks.{number}", stage)
            exported = x
            if stage > 0:
                exported = self.layer_norm(x, f"extra_norms.{stage - 1}", 1e-5)
            features.append(exported.permute(0, 3, 1, 2).contiguous())
            if stage < 3:
                x = x.permute(0, 3, 1, 2)
                x = self.conv(x, f"layers.{stage}.downsample.reduction", stride=2, padding=1)
                x = self.batch_norm(x, f"layers.{stage}.downsample.norm").permute(0, 2, 3, 1)
        return tuple(features)

    def block(self, x: Tensor, depth: Tensor, name: str, stage: int) -> Tensor:
        x = x + self.depthwise(x, f"{name}.cnn_pos_encode.dwconv")
        branch = self.attention(self.layer_norm(x, f"{name}.layer_norm1", 1e-6), depth, name, stage)
        x = x + branch * self.weights.get(f"{name}.gamma_1", 1.0)
        hidden = F.gelu(
            self.linear(self.layer_norm(x, f"{name}.layer_norm2", 1e-6), f"{name}.ffn.fc1")
        )
        hidden = hidden + self.depthwise(hidden, f"{name}.ffn.dwconv.dwconv")
        return x + self.linear(hidden, f"{name}.ffn.fc2") * self.weights.get(f"{name}.gamma_2", 1.0)

    def attention(self, x: Tensor, depth: Tensor, name: str, stage: int) -> Tensor:
        batch, height, width, dim = x.shape
        heads = self.config.heads[stage]
        q, k, v = (self.linear(x, f"{name}.Attention.{part}_proj") for part in "qkv")
        local = self.depthwise(v, f"{name}.Attention.lepe.dwconv")
        k = k * (dim // heads) ** -0.5
        q, k, v = (part.view(batch, height, width, heads, -1) for part in (q, k, v))
        sin, cos = self.rotary(height, width, name)
        q, k = (self.turn(part, sin, cos) for part in (q, k))
        if stage == 3:
            bias = self.full_prior(depth, height, width, name)
            q, k, v = (part.flatten(1, 2).transpose(1, 2) for part in (q, k, v))
            mixed = torch.softmax(q @ k.transpose(-1, -2) + bias, -1).to(v.dtype) @ v
            mixed = mixed.transpose(1, 2).reshape(batch, height, width, dim)
        else:
            rows, columns = self.split_prior(depth, height, width, name)
            q_row, k_row, v_row = (part.permute(0, 3, 1, 2, 4) for part in (q, k, v))
            weights = torch.softmax(q_row @ k_row.transpose(-1, -2) + rows, -1)
            v = (weights.to(v.dtype) @ v_row).permute(0, 2, 3, 1, 4)
            q_col, k_col, v_col = (part.permute(0, 3, 2, 1, 4) for part in (q, k, v))
            weights = torch.softmax(q_col @ k_col.transpose(-1, -2) + columns, -1)
            mixed = (weights.to(v.dtype) @ v_col).permute(0, 3, 2, 1, 4).flatten(-2)
        return self.linear(mixed + local, f"{name}.Attention.out_proj")

    def split_prior(
        self, depth: Tensor, height: int, width: int, name: str
    ) -> tuple[Tensor, Tensor]:
        """(batch, heads, height, width, width) and (batch, heads, width, height, height)."""
        z = F.interpolate(depth, (height, width), mode="bilinear", align_corners=False)[:, 0]
        w0, w1 = self.weights[f"{name}.Geo.weight"].flatten()
        decay = self.weights[f"{name}.Geo.decay"][None, :, None, None, None]
        biases = []
        for lines in (z, z.transpose(1, 2)):
            index = torch.arange(lines.shape[2], device=z.device, dtype=torch.float32)
            grid = (index[:, None] - index[None]).abs()[None, None, None] * decay
            gaps = (lines[..., :, None] - lines[..., None, :]).abs()[:, None] * decay
            biases.append(w0 * grid + w1 * gaps)
        return biases[0], biases[1]

    def full_prior(self, depth: Tensor, height: int, width: int, name: str) -> Tensor:
        """(batch, heads, tokens, tokens)."""
        z = F.interpolate(depth, (height, width), mode="bilinear", align_corners=False).flatten(2)
        w0, w1 = self.weights[f"{name}.Geo.weight"].flatten()
        decay = self.weights[f"{name}.Geo.decay"][None, :, None, None]
        rows = torch.arange(height, device=z.device).repeat_interleave(width).float()
        columns = torch.arange(width, device=z.device).repeat(height).float()
        grid = (rows[:, None] - rows).abs() + (columns[:, None] - columns).abs()
        gaps = (z[..., :, None] - z[..., None, :]).abs()
        return w0 * (grid[None, None] * decay) + w1 * (gaps * decay)

    def rotary(self, height: int, width: int, name: str) -> tuple[Tensor, Tensor]:
        angle = self.weights[f"{name}.Geo.angle"]
        index = torch.arange(height * width, device=angle.device)
        angles = (index[:, None] * angle).view(height, width, 1, -1)
        return torch.sin(angles), torch.cos(angles)

    @staticmethod
    def turn(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        return (x * cos + turned * sin).to(x.dtype)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def conv(self, x: Tensor, name: str, **options) -> Tensor:
        return F.conv2d(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], **options)

    def depthwise(self, x: Tensor, name: str) -> Tensor:
        groups, _, kernel, _ = self.weights[f"{name}.weight"].shape
        x = self.conv(x.permute(0, 3, 1, 2), name, padding=kernel // 2, groups=groups)
        return x.permute(0, 2, 3, 1)

    def layer_norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def batch_norm(self, x: Tensor, name: str) -> Tensor:
        parts = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(x, *(self.weights[f"{name}.{part}"] for part in parts), eps=1e-5)


Run = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


def sides(model: PixelsModel, what: str, compile: bool) -> dict[str, Run]:
    """Both ways to run the encoder, or the encoder and the head (at stride 8)."""
    plain, encoder = Plain(model), model.encoder

    def whole(features: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (model.head(features)[0],) if what == "model" else features

    def eligo_run(rgb: Tensor, depth: Tensor) -> tuple[Tensor, ...]:
        return whole(encoder(rgb, depth))

    return {
        "plain": lambda rgb, depth: whole(plain(rgb, depth)),
        "eligo": torch.compile(eligo_run, fullgraph=True) if compile else eligo_run,
    }


def main(
    device: Annotated[Literal["cpu", "cuda"], tyro.conf.arg(help="What to measure on.")] = "cpu",
    batch: int = 1,
    size: Literal["S", "B", "L", "small"] = "S",
    height: int = 480,
    width: int = 640,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], tyro.conf.arg(help="Autocast type.")
    ] = "float32",
    compile: Annotated[
        bool, tyro.conf.arg(help="Compile eligo's side; the baseline stays.")
    ] = False,
    rounds: Annotated[int, tyro.conf.arg(help="Interleaved measurements of each side.")] = 5,
    memory: Annotated[bool, tyro.conf.arg(help="Also measure peak memory.")] = True,
) -> None:
    """Measure and record."""
    torch.set_num_threads(1)
    case = Case(size, batch, height, width, dtype, device, compile)
    results: dict[str, Any] = {"case": asdict(case), "encoder_giga_macs": giga_macs(case)}
    if memory:  # first: the high-water mark of a process starts at that of its parent
        results["memory"] = _memory(case)
    for what in ("encoder", "model"):
        results[what] = _speed(case, what, rounds)
    print(json.dumps(results, indent=2))
    for what in ("encoder", "model"):
        print(f"{what}: {_line(results[what])}")
    everything = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    mode = " compiled" if compile else ""
    key = f"{device} {dtype} {size} {height}x{width} batch {batch}{mode}"
    everything[key] = {
        **provenance("python -m benchmarks.pixels.speed", device),
        "results": results,
    }
    write_text(RESULTS, json.dumps(everything, indent=2) + "\n")


def _line(found: dict[str, float]) -> str:
    spread = f"{found['lowest_speedup']:.2f}-{found['highest_speedup']:.2f}"
    times = f"plain {found['plain_seconds']:.4g} s, eligo {found['eligo_seconds']:.4g} s"
    return f"{found['speedup']:.2f} x ({spread}); {times}"


def giga_macs(case: Case) -> float:
    """Multiply-adds of the encoder for one image; counted without values, by plain attention."""
    with torch.device("meta"):
        encoder = Encoder(PixelsConfig().replace(SIZES[case.size]).encoder).eval()
        rgb, depth = (torch.empty(1, channels, case.height, case.width) for channels in (3, 1))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        encoder(rgb, depth)
    return counter.get_total_flops() / 2e9


def _speed(case: Case, what: str, rounds: int) -> dict[str, float]:
    model, rgb, depth = case.build()
    runs = {
        name: _within(case.precision, run) for name, run in sides(model, what, case.compile).items()
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    with torch.inference_mode():
        outputs = {name: run(rgb, depth) for name, run in runs.items()}  # warm
        if case.device == "cuda":
            for run in runs.values():
                run(rgb, depth)
        for _ in range(rounds):
            for name, run in runs.items():
                seconds[name].append(_timed(case.device, run, rgb, depth))
    which = 1 if case.device == "cpu" else 0  # processor time, or wall time
    wall = {name: statistics.median(pair[0] for pair in pairs) for name, pairs in seconds.items()}
    median = {
        name: statistics.median(pair[which] for pair in pairs) for name, pairs in seconds.items()
    }
    pairs = zip(seconds["plain"], seconds["eligo"], strict=True)
    ratios = [plain[which] / fast[which] for plain, fast in pairs]
    gaps = [
        float((a.float() - b.float()).abs().max())
        for a, b in zip(outputs["plain"], outputs["eligo"], strict=True)
    ]
    return {
        "plain_seconds": median["plain"],
        "eligo_seconds": median["eligo"],
        "speedup": median["plain"] / median["eligo"],
        "lowest_speedup": min(ratios),
        "highest_speedup": max(ratios),
        "wall_speedup": wall["plain"] / wall["eligo"],
        "largest_output": max(float(out.abs().max()) for out in outputs["plain"]),
        "largest_difference": max(gaps),
    }


def _within(precision: Callable[[], AbstractContextManager], run: Run) -> Run:
    """Each call under an autocast of its own, which would keep the weights it has cast."""

    def call(rgb: Tensor, depth: Tensor) -> tuple[Tensor, ...]:
        with precision():
            return run(rgb, depth)

    return call


def _timed(device: str, run: Run, *inputs: Tensor) -> tuple[float, float]:
    if device == "cuda":
        torch.cuda.synchronize()
    start, busy = time.perf_counter(), time.process_time()
    run(*inputs)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, time.process_time() - busy


def _memory(case: Case) -> dict[str, float]:
    """Peaks of the encoder alone, each side in a fresh process."""
    context = multiprocessing.get_context("spawn")
    found: dict[str, float] = {}
    for backward in (False, True):
        kind = "training" if backward else "forward"
        peaks = {}
        for name in ("plain", "eligo"):
            with context.Pool(1) as pool:
                peaks[name] = pool.apply(_peak, (case, name, backward)) / 2**20
            found[f"{kind}_{name}_peak_mib"] = peaks[name]
        found[f"{kind}_share"] = peaks["eligo"] / peaks["plain"]
    return found


def _peak(case: Case, name: str, backward: bool) -> float:
    """Peak bytes above the weights and inputs."""
    torch.set_num_threads(1)
    model, rgb, depth = case.build()
    plain = Plain(model)
    if backward:
        plain.trainable()
    run = plain if name == "plain" else sides(model, "encoder", case.compile)["eligo"]
    before = _used(case.device)
    with torch.set_grad_enabled(backward), case.precision():
        outputs = run(rgb, depth)
    if backward:
        torch.stack([out.float().mean() for out in outputs]).sum().backward()
    if case.device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    return _used(case.device) - before


def _used(device: str) -> float:
    if device == "cuda":
        return torch.cuda.memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    tyro.cli(main)
