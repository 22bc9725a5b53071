"""Speed of DFormerv2 on a GPU in eager mode, from CUDA graphs and compiled, against plain code.

    python -m benchmarks.pixels.speed_gpu                 S at 480x640, batch 1 and 8
    python -m benchmarks.pixels.speed_gpu --tiles         the tile sizes of the attention kernel

Both sides (`plain.py` and eligo, each with eligo's head in `model`) run in three ways: `eager`,
`captured` (a CUDA graph, `eligo.nn.cuda_graphs`) and `compiled` (torch.compile), and both of the
latter together. eligo's captured model is the frozen copy that `Segmenter` uses; `frame` is all
that its `segment` does on the GPU, from uint8 colours and metres to labels and confidence.
Precisions: `float32` (no TF32), `float32 tf32_conv` (torch's default: TF32 in convolutions only),
`bfloat16` (autocast; plain code casts its weights in every pass, as autocast does).
Ways of a case take turns; times are wall-clock medians of a call until the GPU is done.
Compiling takes a minute or more each; what does not start within `--seconds` is left out.

Every way is checked against eager mode in the same run. Results are written after each way, to
benchmarks/pixels/results/speed_gpu.json; a way that fails is recorded with its error.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.pixels.plain import Plain
from benchmarks.pixels.speed import Case
from benchmarks.timing import timed_in_turns, write_results
from eligo.cli import run_script
from eligo.cli.flags import Count
from eligo.nn.cuda_graphs import GraphedFunction
from eligo.pixels import InputsConfig, PixelsModel
from eligo.pixels.inference.frames import FrameRunner
from eligo.pixels.model.frozen import frozen

RESULTS = Path(__file__).parent / "results" / "speed_gpu.json"
PRECISIONS = ("float32", "float32 tf32_conv", "bfloat16")
TILES = ((16, 32, 1), (32, 32, 1), (32, 32, 2), (32, 64, 2), (64, 32, 4), (64, 64, 4))
Forward = Callable[..., tuple[Tensor, ...]]


class Bench:
    """One size of images, one batch size, one precision."""

    def __init__(self, case: Case, precision: str) -> None:
        self.case, self.precision = case, precision
        self.model, self.rgb, self.depth = case.build()
        self.half = precision == "bfloat16"
        self.fast = frozen(self.model, torch.bfloat16 if self.half else torch.float32)
        self.graphs: dict[str, GraphedFunction | FrameRunner] = {}
        self.row: dict[str, Any] = {}

    def forward(self, side: str, what: str, model: PixelsModel) -> Forward:
        """Return a function of rgb and depth."""
        encoder = Plain(self.model) if side == "plain" else model.encoder

        def run(rgb: Tensor, depth: Tensor) -> tuple[Tensor, ...]:
            # A new autocast context per pass, because one caches the weights it has cast.
            with torch.autocast(rgb.device.type, torch.bfloat16, enabled=self.half):
                features = encoder(rgb, depth)
                return features if what == "encoder" else (model.head(features)[0],)

        return run

    def captured(self, name: str, function: Forward) -> Callable[[], Any]:
        """Return a call of the function from a CUDA graph, recorded already."""
        self.graphs[name] = graph = GraphedFunction(function)
        for _ in range(2):
            graph(self.rgb, self.depth)
        if self.rgb.is_cuda and graph.memory()["graphs"] != 1:
            raise RuntimeError("the graph was not recorded")
        return lambda: graph(self.rgb, self.depth)

    def measure(self, ways: dict[str, Callable[[], Any]], rounds: int, reference: str) -> None:
        """Time all ways in turns, and compare their outputs with those of `reference`."""
        runs, outputs = {}, {}
        for name, call in ways.items():
            try:
                for _ in range(2):
                    outputs[name] = call()
                self.row[name] = {"peak_mib": self.peak(call)}
                runs[name] = call
            except Exception as error:
                self.row[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
        times = timed_in_turns(runs, rounds, self.case.device)
        expected = outputs.get(reference)
        for name, seconds in times.items():
            self.row[name] |= {
                "ms": 1000 * median(seconds),
                "ms_lowest": 1000 * min(seconds),
                "ms_highest": 1000 * max(seconds),
            }
            if name in self.graphs:
                held = self.graphs[name].memory()["bytes"]
                self.row[name]["graph_mib"] = held / 2**20
            if expected is not None:
                self.row[name]["difference"] = _difference(outputs[name], expected)

    def peak(self, call: Callable[[], Any]) -> float:
        """Return the peak of allocated memory in a call, above what was allocated before it."""
        if self.case.device != "cuda":
            return 0.0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def ratios(self) -> dict[str, float]:
        """Return how many times as fast ways of eligo are as ways of the plain code."""
        found = {}
        for what in ("encoder", "model"):
            for ours in ("eager", "captured", "compiled", "compiled captured"):
                for theirs in ("eager", "captured", "compiled", "compiled captured"):
                    pair = (self.row.get(f"{what} {side}") for side in
                            (f"plain {theirs}", f"eligo {ours}"))  # fmt: skip
                    plain, fast = ((row or {}).get("ms") for row in pair)
                    if plain and fast:
                        found[f"{what}: eligo {ours} / plain {theirs}"] = plain / fast
        return found


def run(
    size: Literal["S", "B", "L", "small"] = "S",
    height: Count = 480,
    width: Count = 640,
    batches: tuple[int, ...] = (1, 8),
    rounds: Count = 20,
    seconds: float = 240.0,
    compile: bool = True,
    tiles: bool = False,
    device: Literal["cpu", "cuda"] = "cuda",
) -> None:
    """Measure all ways and write the results.

    Args:
        size: Size of the network.
        height: Height of the images.
        width: Width of the images.
        batches: Images at a time.
        rounds: Measurements of each way, in turn.
        seconds: No way is compiled after so many seconds.
        compile: Also measure compiled models.
        tiles: Only measure tile sizes of the attention kernel.
        device: cuda, or cpu for a test.
    """
    start = time.perf_counter()
    benches: dict[str, Bench] = {}

    def write(name: str) -> None:
        bench = benches[name]
        times = {way: row.get("ms", row.get("error")) for way, row in bench.row.items()}
        print(f"{time.perf_counter() - start:.0f} s  {name}  {json.dumps(times)}", flush=True)
        result = {"ways": bench.row, "ratios": bench.ratios()}
        write_results(RESULTS, result, device, key=name)

    if tiles:
        time_tiles(Case(size, 1, height, width, device=device), rounds)
        return
    for batch, precision in product(batches, PRECISIONS):
        name = f"{precision} {size} {height}x{width} batch {batch}"
        with _convolutions_in_tf32(precision != "float32"):
            bench = benches[name] = Bench(
                Case(size, batch, height, width, device=device), precision
            )
            for what in ("encoder", "model"):
                bench.measure(_uncompiled(bench, what), rounds, f"{what} eligo eager")
            bench.measure(_frames(bench), rounds, "frame eligo eager")
        write(name)
    if not compile:
        return
    for side in ("eligo", "plain"):
        for name, bench in benches.items():
            if bench.precision == "float32":
                continue
            if time.perf_counter() - start > seconds:
                bench.row[f"model {side} compiled"] = {"error": f"left out after {seconds:.0f} s"}
            else:
                with _convolutions_in_tf32(True):
                    torch._dynamo.reset()
                    bench.measure(_compiled(bench, side), rounds, f"model {side} eager")
            write(name)


def _uncompiled(bench: Bench, what: str) -> dict[str, Callable[[], Any]]:
    ways: dict[str, Callable[[], Any]] = {}
    for side in ("plain", "eligo"):
        eager = bench.forward(side, what, bench.model)
        copy = eager if side == "plain" else bench.forward(side, what, bench.fast)
        ways[f"{what} {side} eager"] = _without_gradients(eager, bench)
        ways[f"{what} {side} captured"] = _once(
            lambda copy=copy, name=f"{what} {side} captured": bench.captured(name, copy)
        )
    return ways


def _frames(bench: Bench) -> dict[str, Callable[[], Any]]:
    """`Segmenter.segment` without and with CUDA graphs; confidence is what is compared."""
    pixels = (bench.rgb * 60 + 128).clamp(0, 255).to(torch.uint8)
    metres, inputs = bench.depth.abs() + 0.5, InputsConfig(depth_scale=1)
    ways: dict[str, Callable[[], Any]] = {}
    for way, graphs in (("eager", False), ("captured", True)):
        dtype = torch.bfloat16 if bench.half else torch.float32
        runner = FrameRunner(bench.model, dtype, graphs=graphs)
        ways[f"frame eligo {way}"] = lambda runner=runner: (
            runner(pixels, metres, None, None, inputs=inputs).confidence,
        )
        if graphs:
            bench.graphs[f"frame eligo {way}"] = runner
    return ways


def _compiled(bench: Bench, side: str) -> dict[str, Callable[[], Any]]:
    """A compiled model, the same from a CUDA graph, and eager mode beside it."""
    eager = bench.forward(side, "model", bench.model)
    fast = torch.compile(eager, fullgraph=True)
    name = f"model {side} compiled captured"
    return {
        f"model {side} eager": _without_gradients(eager, bench),
        f"model {side} compiled": _without_gradients(fast, bench),
        name: _once(lambda: bench.captured(name, fast)),
    }


def _without_gradients(function: Forward, bench: Bench) -> Callable[[], Any]:
    def call() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return function(bench.rgb, bench.depth)

    return call


def _once(build: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
    """A call that is built when it is used first, so that an error counts as one of its way."""
    built: list[Callable[[], Any]] = []

    def call() -> Any:
        if not built:
            built.append(build())
        return built[0]()

    return call


def _difference(outputs: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """The largest difference, in standard deviations of its output."""
    pairs = zip(outputs, expected, strict=True)
    return max(float((a.float() - b.float()).abs().max() / b.float().std()) for a, b in pairs)


@contextmanager
def _convolutions_in_tf32(allowed: bool) -> Iterator[None]:
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=False, allow_tf32=allowed
    ):
        yield


def time_tiles(case: Case, rounds: int) -> list[dict[str, Any]]:
    """Return microseconds of the attention kernel in every stage, for each tile."""
    rows = []
    config = case.build()[0].config.encoder
    for batch, dtype in product((1, 8), (torch.float32, torch.bfloat16)):
        for index, (dim, heads) in enumerate(zip(config.dims, config.heads, strict=True)):
            grid = (case.height // (4 << index), case.width // (4 << index))
            shape = (3, batch, *grid, heads, dim // heads)
            q, k, v = torch.randn(shape, device=case.device).to(dtype)
            z = torch.randn(batch, 1, *grid, device=case.device)
            decay, prior = -torch.rand(heads, device=case.device), torch.ones(2, device=case.device)
            for line in ("all",) if index == 3 else ("rows", "columns"):
                times = _tile_times((q, k, v, line, decay, prior, z, z > -1), rounds, case.device)
                where = {"batch": batch, "dtype": str(dtype)[6:], "stage": index, "line": line}
                rows.append(where | times)
                print(json.dumps(rows[-1]), flush=True)
    return rows


def _tile_times(arguments: tuple[Any, ...], rounds: int, device: str) -> dict[str, Any]:
    """Microseconds for each tile: queries x keys x warps."""
    from eligo.pixels.model import kernels

    times: dict[str, Any] = {}
    before = kernels._ATTENTION_TILE
    for tile in TILES:
        kernels._ATTENTION_TILE = tile
        try:
            seconds = _kernel_times(lambda: kernels.attend(*arguments), rounds, device)
            times["x".join(map(str, tile))] = round(1e6 * median(seconds), 1)
        except Exception as error:
            times["x".join(map(str, tile))] = f"{type(error).__name__}: {error}"[:80]
    kernels._ATTENTION_TILE = before
    return times


def _kernel_times(work: Callable[[], Any], rounds: int, device: str) -> list[float]:
    """Seconds of a call on the GPU, of ten in a CUDA graph."""
    if device != "cuda":
        work()
        return [0.0]
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            work()
    times = timed_in_turns({"": graph.replay}, rounds, device)[""]
    return [seconds / 10 for seconds in times]


if __name__ == "__main__":
    raise SystemExit(run_script(run))
