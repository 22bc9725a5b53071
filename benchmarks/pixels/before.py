"""Speed of the model on a CPU, compared with another version of eligo.

    git archive COMMIT src | tar -x -C runs/before
    python -m benchmarks.pixels.before --source runs/before/src    S at 480x640, two threads

Every measurement is a process of its own; the two versions take turns. A ratio above 1 means that
this version is faster. Writes an entry to benchmarks/pixels/results/speed.json.
"""

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import eligo
from benchmarks.pixels.speed import RESULTS
from benchmarks.timing import write_results
from eligo.cli import run_script
from eligo.cli.console import print_result
from eligo.cli.flags import Count

_PASSES = """
import sys, time, torch
from eligo.pixels import SIZES, PixelsConfig, PixelsModel
size, height, width, batch, passes, threads = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(threads)
torch.manual_seed(0)
no_words = {"sam.encoder.stages": (), "sam.decoder.stages": ()}
model = PixelsModel(PixelsConfig().replace(SIZES[size] | no_words)).eval()
inputs = torch.randn(batch, 3, height, width), torch.randn(batch, 1, height, width)
with torch.no_grad():
    model(*inputs)
    for _ in range(passes):
        start = time.process_time()
        logits = model(*inputs).logits
        print(time.process_time() - start, float(logits.double().abs().sum()))
"""


def run(
    source: Path,
    size: str = "S",
    height: Count = 480,
    width: Count = 640,
    batch: Count = 1,
    rounds: Count = 5,
    passes: Count = 3,
    threads: Count = 2,
) -> None:
    """Measure both versions and write the ratio.

    Args:
        source: The folder `src` of the other version.
        size: Size of the network.
        height: Height of the images.
        width: Width of the images.
        batch: Images at a time.
        rounds: Processes of each version.
        passes: Measured passes of a process.
        threads: Threads of torch.
    """
    sources = {"before": source.resolve(), "now": Path(eligo.__file__).parents[1]}
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    sums: dict[str, float] = {}
    shape = [size, str(height), str(width), str(batch), str(passes), str(threads)]
    for _ in range(rounds):
        for name, folder in sources.items():
            command = [sys.executable, "-c", _PASSES, *shape]
            settings = {**os.environ, "PYTHONPATH": str(folder)}
            done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
            rows = [line.split() for line in done.stdout.splitlines()]
            seconds[name] += [float(row[0]) for row in rows]
            sums[name] = float(rows[-1][1])
    middle = {name: median(found) for name, found in seconds.items()}
    results = {
        "before_seconds": middle["before"],
        "now_seconds": middle["now"],
        "speedup": middle["before"] / middle["now"],
        "relative_difference": abs(sums["now"] - sums["before"]) / sums["before"],
    }
    print_result(results, json=False)
    key = f"cpu float32 {size} {height}x{width} batch {batch}, {threads} threads, versions"
    write_results(RESULTS, results, key=key)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
