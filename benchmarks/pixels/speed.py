"""Speed and memory of DFormerv2, compared with a plain implementation of its equations.

    python -m benchmarks.pixels.speed                             S at 480x640, CPU, one thread
    python -m benchmarks.pixels.speed --device cuda --batch 8     one GPU, eager mode
    python -m benchmarks.pixels.speed --inputs                    cost of depth and words

The plain encoder (`plain.py`) shares nothing with eligo but the weights (and, in `model`, the
head). Both sides are measured in turn, so that a busy machine slows both; a ratio is of medians. On
a CPU it is of processor time (one thread), which other programs disturb less, with wall time beside
it. Memory is the peak of one forward pass (and of one with backward) in a process of its own: on a
CPU the growth of the resident set, on a GPU what torch allocated. `speed_gpu.py` measures CUDA
graphs and compiled models too.

Writes an entry for the case to benchmarks/pixels/results/speed.json; other entries stay.
"""

import json
import multiprocessing
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.pixels.plain import Plain
from benchmarks.timing import used_bytes
from eligo.cli import run_script
from eligo.cli.flags import Count
from eligo.io.files import write_text
from eligo.pixels import SIZES, Encoder, PixelsConfig, PixelsModel, TextBatch
from eligo.report.provenance import provenance

RESULTS = Path(__file__).parent / "results" / "speed.json"


@dataclass(frozen=True)
class Case:
    """What is measured."""

    size: Literal["S", "B", "L", "small"] = "S"
    """Size of the network."""
    batch: int = 1
    """Images at a time."""
    height: int = 480
    """Height of the images."""
    width: int = 640
    """Width of the images."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Autocast type."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to run."""

    def build(self) -> tuple[PixelsModel, Tensor, Tensor]:
        """Return the model and its inputs, the same in every process."""
        torch.manual_seed(0)
        no_words = {"sam.encoder.stages": (), "sam.decoder.stages": ()}
        config = PixelsConfig().replace(SIZES[self.size] | no_words)
        model = PixelsModel(config).eval().to(self.device)
        rgb = torch.randn(self.batch, 3, self.height, self.width)
        depth = torch.randn(self.batch, 1, self.height, self.width)
        return model, rgb.to(self.device), depth.to(self.device)

    def precision(self) -> AbstractContextManager:
        """Return autocast, unless in float32."""
        if self.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device, getattr(torch, self.dtype))


Forward = Callable[[], tuple[Tensor, ...]]
Seconds = dict[str, list[tuple[float, float]]]
"""Wall time and processor time of every round."""


def sides(model: PixelsModel, what: str, rgb: Tensor, depth: Tensor) -> dict[str, Forward]:
    """Return both ways to run the encoder, or the encoder and the head (at stride 8)."""
    plain, encoder = Plain(model), model.encoder

    def whole(features: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (model.head(features)[0],) if what == "model" else features

    return {
        "plain": lambda: whole(plain(rgb, depth)),
        "eligo": lambda: whole(encoder(rgb, depth)),
    }


def run(
    case: Annotated[Case, tyro.conf.arg(name="")] = Case(),
    *,
    rounds: Count = 5,
    memory: bool = True,
    inputs: bool = False,
) -> None:
    """Measure one case, print it and write it to the results.

    Args:
        case: What is measured.
        rounds: Measurements of each side, in turn.
        memory: Also measure peak memory.
        inputs: Only print the cost of a whole model with and without depth and words.
    """
    torch.set_num_threads(1)
    if inputs:
        print(json.dumps(time_inputs(case, rounds), indent=2))
        return
    results: dict[str, Any] = {"case": asdict(case), "encoder_giga_macs": giga_macs(case)}
    if memory:  # first: the peak of a process starts at that of its parent
        results["memory"] = _memory(case)
    for what in ("encoder", "model"):
        results[what] = _speed(case, what, rounds)
    print(json.dumps(results, indent=2))
    for what in ("encoder", "model"):
        row = results[what]
        spread = f"{row['lowest_speedup']:.2f}-{row['highest_speedup']:.2f}"
        times = f"plain {row['plain_seconds']:.4g} s, eligo {row['eligo_seconds']:.4g} s"
        print(f"{what}: {row['speedup']:.2f} x ({spread}); {times}")
    entries = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    size = f"{case.size} {case.height}x{case.width} batch {case.batch}"
    key = f"{case.device} {case.dtype} {size}"
    entries[key] = provenance(case.device)
    entries[key]["results"] = results
    write_text(RESULTS, json.dumps(entries, indent=2) + "\n")


def giga_macs(case: Case) -> float:
    """Return the multiply-adds of the encoder for one image, counted without values."""
    with torch.device("meta"):
        encoder = Encoder(PixelsConfig().replace(SIZES[case.size]).encoder).eval()
        rgb, depth = (torch.empty(1, channels, case.height, case.width) for channels in (3, 1))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        encoder(rgb, depth)
    return counter.get_total_flops() / 2e9


def time_inputs(case: Case, rounds: int, words: int = 6) -> list[dict[str, Any]]:
    """Return milliseconds per image with RGB alone, with depth, with words, and with both."""
    model = PixelsModel(PixelsConfig().replace(SIZES[case.size])).to(case.device).eval()
    _, rgb, depth = case.build()
    vectors = torch.randn(case.batch, words, model.config.text_dim, device=case.device)
    text = TextBatch(vectors, torch.ones_like(vectors[..., 0], dtype=torch.bool))
    runs: dict[str, Forward] = {
        "rgb": lambda: (model(rgb, maps=False).logits,),
        "rgb, depth": lambda: (model(rgb, depth, maps=False).logits,),
        "rgb, words": lambda: (model(rgb, text=text, maps=False).logits,),
        "rgb, depth, words": lambda: (model(rgb, depth, text=text, maps=False).logits,),
    }
    seconds, _ = _take_turns(case, runs, rounds)
    wall = {name: median(pair[0] for pair in pairs) for name, pairs in seconds.items()}
    return [
        {"inputs": name, "ms_per_image": 1000 * s / case.batch, "over_rgb": s / wall["rgb"]}
        for name, s in wall.items()
    ]


def _take_turns(
    case: Case, runs: dict[str, Forward], rounds: int
) -> tuple[Seconds, dict[str, tuple[Tensor, ...]]]:
    """Times and outputs of all runs; they take turns, after two rounds to warm up."""
    seconds: Seconds = {name: [] for name in runs}
    outputs: dict[str, tuple[Tensor, ...]] = {}
    for number in range(-2, rounds):
        for name, forward in runs.items():
            _wait(case.device)
            start, busy = time.perf_counter(), time.process_time()
            # A new autocast context per pass, because one caches the weights it has cast.
            with torch.inference_mode(), case.precision():
                outputs[name] = forward()
            _wait(case.device)
            if number >= 0:
                taken = (time.perf_counter() - start, time.process_time() - busy)
                seconds[name].append(taken)
    return seconds, outputs


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _speed(case: Case, what: str, rounds: int) -> dict[str, float]:
    model, rgb, depth = case.build()
    runs = sides(model, what, rgb, depth)
    seconds, outputs = _take_turns(case, runs, rounds)
    which = 1 if case.device == "cpu" else 0  # processor time, or wall time
    wall = {name: median(pair[0] for pair in pairs) for name, pairs in seconds.items()}
    middle = {name: median(pair[which] for pair in pairs) for name, pairs in seconds.items()}
    pairs = zip(seconds["plain"], seconds["eligo"], strict=True)
    ratios = [plain[which] / fast[which] for plain, fast in pairs]
    both = zip(outputs["plain"], outputs["eligo"], strict=True)
    return {
        "plain_seconds": middle["plain"],
        "eligo_seconds": middle["eligo"],
        "speedup": middle["plain"] / middle["eligo"],
        "lowest_speedup": min(ratios),
        "highest_speedup": max(ratios),
        "wall_speedup": wall["plain"] / wall["eligo"],
        "largest_output": max(float(out.abs().max()) for out in outputs["plain"]),
        "largest_difference": max(float((a.float() - b.float()).abs().max()) for a, b in both),
    }


def _memory(case: Case) -> dict[str, float]:
    """Peaks of the encoder alone in MiB, each side in a fresh process."""
    context = multiprocessing.get_context("spawn")
    peaks: dict[str, float] = {}
    for kind in ("forward", "training"):
        for name in ("plain", "eligo"):
            with context.Pool(1) as pool:
                peak = pool.apply(_peak, (case, name, kind == "training"))
            peaks[f"{kind}_{name}_peak_mib"] = peak / 2**20
        peaks[f"{kind}_share"] = peaks[f"{kind}_eligo_peak_mib"] / peaks[f"{kind}_plain_peak_mib"]
    return peaks


def _peak(case: Case, name: str, backward: bool) -> float:
    """Peak bytes above the weights and inputs."""
    torch.set_num_threads(1)
    model, rgb, depth = case.build()
    plain = Plain(model)
    if backward:
        plain.require_grad()
    fast = sides(model, "encoder", rgb, depth)["eligo"]
    before = used_bytes(case.device)
    with torch.set_grad_enabled(backward), case.precision():
        outputs = plain(rgb, depth) if name == "plain" else fast()
    if backward:
        torch.stack([out.float().mean() for out in outputs]).sum().backward()
    if case.device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    return used_bytes(case.device) - before


if __name__ == "__main__":
    raise SystemExit(run_script(run))
