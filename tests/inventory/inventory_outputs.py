"""What the commands print: a table of command lines, and how their JSON is taken.

All run in one process and in a temporary folder, with paths relative to it, one after another:
later ones read what earlier ones wrote.
"""

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from shlex import split
from typing import Any

import torch
from safetensors.torch import load_file

from eligo.cli import run_script

EXAMPLES = "shots"
"""The family that chooses examples, as it is called on the command line."""
MAIN = "eligo.cli:main"
PIXELS_CONFIG = "pixels/scenes"
MOST_NUMBERS = 128
"""Longer lists of what was chosen are kept as one number."""

_EXPORT = "--train 12 --validation 2 --test 3"
_IMAGE = "scenes_jsonl/images/test_000000.png"
_ASK = f'--image {_IMAGE} --question "what shape is the purple checkered thing?"'
_METHODS = {
    "random": "--budget 64",
    "uniform": "--budget 64",
    "pool": "--budget 64",
    "tome": "--budget 64",
    "fastv": "--budget 64 --layer 2",
    "pyramiddrop": "--budget 128 64 --layer 2 6",
    "visionzip": "--budget 64",
    "divprune": "--budget 64",
    "cdpruner": "--budget 64",
    "sparsevlm": "--budget 64 --layer 2",
}

RUNS: dict[str, str] = {
    # Data for the others; PNG, as it is the same everywhere.
    "scenes export vqa": f"scenes export vqa --out scenes_vqa {_EXPORT}",
    "scenes export captions": f"scenes export captions --out scenes_captions --image png {_EXPORT}",
    "scenes export nyu": f"scenes export nyu --out scenes_nyu --image png {_EXPORT}",
    "scenes export sun": f"scenes export sun --out scenes_sun --image png {_EXPORT}",
    "scenes export jsonl": f"scenes export jsonl --out scenes_jsonl --image png {_EXPORT}",
    "scenes evaluate-vlm": (
        "python -m benchmarks.scenes.evaluate_vlm --questions 6 --blind_scenes 20"
    ),
    f"{EXAMPLES} embed": f"{EXAMPLES} embed --data train.jsonl --queries test.jsonl --out vectors",
    f"{EXAMPLES} teach": (
        f"{EXAMPLES} teach --data vectors --out taught --shots 2 --beam 2 "
        "--sampler.num_candidates 8"
    ),
    f"{EXAMPLES} train": f"{EXAMPLES} train v1 --data.path taught --train.name selector --smoke",
    f"{EXAMPLES} predict": (
        f'{EXAMPLES} predict --selector runs/selector_smoke --question "is there any blue moon?" '
        "--shots 3"
    ),
    f"{EXAMPLES} evaluate": (
        f"{EXAMPLES} evaluate --selector runs/selector_smoke --data vectors --taught taught "
        "--shots 2 --num_queries 8"
    ),
    "patches predict": (
        f'patches predict --image {_IMAGE} --text "there is a small orange moon." --out patches'
    ),
    "patches evaluate": "patches evaluate --scenes 8",
    "patches evaluate, files": (
        "patches evaluate --captions scenes_captions/dataset_scenes.json "
        "--images scenes_captions/images"
    ),
    "patches index": "patches index scenes_captions/images --out index",
    "patches search": 'patches search index "a small orange moon" --k 3',
    "patches search, exhaustive": 'patches search index "a small orange moon" --k 3 --exhaustive',
    "patches index, texts": "patches index --texts texts.txt --out texts",
    "patches search, image": f"patches search texts --image {_IMAGE} --k 2",
    "tokens plan": "tokens plan --target 0.5",
    "tokens plan, given": "tokens plan --merge 288 --cuts 2 16 --budgets 200 100",
    "tokens predict": f"tokens predict {_ASK} --out tokens --plan tokens_11",
    "tokens predict, default plan": f"tokens predict {_ASK} --out default --plan tokens_default",
    **{
        f"tokens predict, {name}": f"tokens predict {_ASK} --out {name} --method {name} {flags}"
        for name, flags in _METHODS.items()
    },
    "tokens evaluate": "tokens evaluate tokens_11 --questions 6",
    "pixels predict": (
        "pixels predict --image scenes_nyu/RGB/test_000000.png "
        "--depth scenes_nyu/Depth/test_000000.png --tags wall,floor,moon --size 96 128 --out pixels"
    ),
    "pixels predict, colours alone": (
        "pixels predict --image scenes_nyu/RGB/test_000000.png --size 96 128 --out pixels_plain"
    ),
    "pixels evaluate": "pixels evaluate --data rooms.yaml --classes",
    "pixels evaluate, nyu": "pixels evaluate --data nyu.yaml",
    "pixels evaluate, sun": "pixels evaluate --data sun.yaml",
    "pixels evaluate, flip": "pixels evaluate --data rooms.yaml --flip",
}
"""What is run, in this order; each gets `--json`."""

_MACHINE = re.compile(
    r"(^|[ _])(ms|s|seconds|minutes|time|times|date|hardware|version|device|torch|host_name"
    r"|commit|per_second)$"
)


def collect_outputs() -> dict[str, Any]:
    """What every command of `RUNS` prints, without what depends on the machine."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        return {name: scrubbed(run(name)) for name in _with_files(RUNS)}


def _with_files(names: dict[str, str]) -> Iterator[str]:
    """The names; after the exports, the files that are made from them."""
    ready = False
    for name in names:
        if not ready and not name.startswith("scenes export"):
            _write_files()
            ready = True
        yield name


def _write_files() -> None:
    for split_name in ("train", "test"):
        lines = Path(f"scenes_jsonl/{split_name}_questions.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        texts = [
            {"id": row["id"], "input": row["question"], "output": row["answers"][0]} for row in rows
        ]
        Path(f"{split_name}.jsonl").write_text("".join(json.dumps(t) + "\n" for t in texts))
    Path("texts.txt").write_text(
        "there is a small orange moon.\nthere is a red box.\na large checkered moon.\n"
    )
    Path("rooms.yaml").write_text(
        f"extends: {PIXELS_CONFIG}\ndata: {{validation_images: 4, test_images: 4}}\n"
    )
    for kind in ("nyu", "sun"):
        root = f"scenes_{kind}"
        Path(f"{kind}.yaml").write_text(
            f"extends: {PIXELS_CONFIG}\ndata: {{kind: {kind}, root: {root}, "
            f"words: {root}/tags.jsonl, classes: {root}/classes.txt}}\n"
        )


def run(name: str) -> Any:
    """The JSON that one command prints."""
    torch.manual_seed(0)
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        words = split(RUNS[name])
        if words[:2] == ["python", "-m"]:
            code = run_script(import_module(words[2]).run, [*words[3:], "--json"])
        else:
            code = find(MAIN)([*words, "--json"])
    if code != 0:
        raise RuntimeError(f"{name}: ended with {code}\n{err.getvalue()}")
    found = json.loads(out.getvalue())
    if "predict" in words and "--out" in words:
        found["selections"] = selections(Path(words[words.index("--out") + 1]))
    return found


def selections(folder: Path) -> dict[str, Any]:
    """What a prediction left for the explorer: what was chosen, and how large the scores are."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("stage_*.safetensors")):
        for name, tensor in sorted(load_file(path).items()):
            whole = tensor.detach().double()
            small = not tensor.is_floating_point() and tensor.numel() <= MOST_NUMBERS
            ordered = tensor.sort().values if tensor.ndim == 1 else tensor  # near ties may swap
            told = ordered.flatten().int().tolist() if small else _size(whole)
            found[f"{path.stem} {name}"] = {"shape": list(tensor.shape), "values": told}
    return found


def _size(tensor: torch.Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    return finite.abs().mean().item() if finite.numel() else 0.0


def find(place: str) -> Any:
    """What `module:name` means."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def scrubbed(found: Any) -> Any:
    """Without times, versions, devices and absolute paths."""
    if isinstance(found, dict):
        return {
            key: scrubbed(value)
            for key, value in found.items()
            if not _MACHINE.search(key) and not _is_absolute(value)
        }
    if isinstance(found, list):
        return [scrubbed(value) for value in found if not _is_absolute(value)]
    return found


def _is_absolute(value: Any) -> bool:
    return isinstance(value, str) and Path(value).is_absolute()
