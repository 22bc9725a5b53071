"""Seeded command lines with one or more mistakes, quick to run.

A case starts from a command line that would work (`TEMPLATES`), then damages its files, its config
or its words. Work that takes long raises `ReachedError`, an error of our own, so that a case
ends where the work would begin.
"""

import importlib
import json
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from fuzz_samples import Samples

from eligo.cli.commands import COMMANDS
from eligo.config import Config, shipped_configs
from eligo.config.problems import dotted_keys
from eligo.errors import EligoError

_WORK = (
    "eligo.train.loop:_Loop._step",
    "eligo.cli.tokens.bench:_measure",
    "eligo.tokens.inference.evaluate:evaluate_plan",
    "eligo.tokens.inference.sweep:Sweep.run",
    "eligo.pixels.inference.evaluate:evaluate_rows",
    "eligo.scenes.export:_export",
    "eligo.train.search:_Worker.take",
    "eligo.cli.demo.shots:run",
    "eligo.cli.demo.own:predict",
    "eligo.cli.demo.patches:run",
    "eligo.cli.demo.pixels:run",
    "eligo.cli.demo.tokens:run",
    "eligo.cli.explorer.live:serve",
)
"""Functions that start the slow part of a command."""

# {name} is a sample, {out} a new place to write to.
TEMPLATES: tuple[tuple[str, ...], ...] = (
    ("info",),
    ("demo", "--quick", "--out", "{out}"),
    ("demo", "--questions", "{vqa_lines}", "--out", "{out}"),
    ("demo", "--questions", "{tabs}", "--out", "{out}", "--seed", "3"),
    ("demo", "--questions", "{questions}", "--images", "{photos}", "--out", "{out}"),
    ("explore", "{explored}", "--out", "{out}"),
    ("explore", "{explored}"),
    ("shots embed", "--data", "{examples}", "--out", "{out}"),
    ("shots embed", "--data", "{examples}", "--vectors", "{vectors}", "--out", "{out}"),
    ("shots embed", "--data", "{vqa_lines}", "--out", "{out}", "--queries", "{examples}"),
    ("shots embed", "--data", "{questions}", "--annotations", "{annotations}",
     "--images", "{photos}", "--out", "{out}"),
    ("shots teach", "--data", "{embedded}", "--out", "{out}", "--dry_run"),
    ("shots teach", "--data", "{embedded}", "--out", "{taught}", "--shots", "2", "--beam", "1",
     "--sampler.num_candidates", "4"),
    ("shots teach", "--data", "{embedded}", "--dry_run", "--host.url", "http://127.0.0.1:9/v1",
     "--host.model", "m"),
    ("shots train", "{config shots/v1}", "--data.path", "{taught}", "--data.embedded",
     "{embedded}", "--train.out", "{out}"),
    ("shots train", "v3", "--data.path", "{legacy}", "--data.embedded", "{embedded}"),
    ("shots predict", "--question", "is 3 odd?", "--selector", "{selectors}/shots_v1"),
    ("shots predict", "--question", "is it red?", "--selector", "{model shots_v1}"),
    ("shots predict", "--question", "is 3 odd?", "--selector", "knn", "--embedded", "{embedded}",
     "--model", "m", "--url", "localhost"),
    ("shots predict", "--data", "{embedded}", "--selector", "{selectors}/shots_v1", "--out",
     "{out}"),
    ("shots predict", "{embedded}", "--checkpoint_path", "{checkpoint}", "--model_version", "v1",
     "--output_path", "{out}", "--batch_size", "4"),
    ("shots predict", "--question", "is 3 odd?", "--selector", "knn", "--embedded", "{embedded}"),
    ("shots evaluate", "--selector", "{selectors}/shots_v1", "--data", "{embedded}"),
    ("shots convert", "{selectors}/shots_v1", "--out", "{out}", "--half"),
    ("shots convert", "{checkpoint}", "--version", "v1", "--out", "{out}"),
    ("shots convert", "{model shots_v1}", "--out", "{out}", "--half"),
    ("patches train", "{config patches/scenes_open}", "--train.out", "{out}"),
    ("patches train", "scenes_global", "--smoke", "--train.out", "{runs}", "--resume"),
    ("patches train", "f30k_vit224", "--data.captions", "{karpathy}", "--data.images", "{photos}"),
    ("patches index", "{photos}", "--out", "{out}"),
    ("patches index", "--texts", "{texts}", "--out", "{out}"),
    ("patches index", "{photos}", "--dense", "{dense}", "--out", "{out}"),
    ("patches index", "{photos}", "--out", "{index}"),
    ("patches search", "{index}", "a red cat"),
    ("patches search", "{index}", "--queries", "{texts}", "--page", "{out}"),
    ("patches search", "{index}", "--image", "{photo}", "--copy_to", "{out}"),
    ("patches export", "{index}", "--to", "lancedb", "--out", "{out}"),
    ("patches export", "{index}", "--to", "qdrant", "--out", "{out}"),
    ("patches search", "{index}", "a red cat", "--model", "{model patches}", "--exhaustive"),
    ("patches search", "{index}", "--image", "{photo}", "--rerank", "auto", "--dev", "{texts}"),
    ("patches predict", "--image", "{photo}", "--text", "a cat", "--out", "{out}"),
    ("patches predict", "--image", "{photo}", "--text", "a cat", "--out", "{out}", "--model",
     "{model patches}"),
    ("patches evaluate", "--captions", "{karpathy}", "--images", "{photos}"),
    ("patches evaluate", "--captions", "{karpathy}", "--images", "{photos}", "--cache",
     "{features}"),
    ("patches evaluate", "{runs}/patches_scenes_global", "--captions", "{karpathy}", "--images",
     "{photos}"),
    ("patches convert", "{checkpoint}", "--out", "{out}", "--vision", "{model patches}",
     "--text", "{model patches}"),
    ("patches convert", "{model patches}", "--out", "{out}", "--half"),
    ("tokens build", "--tower", "{model vlm}", "--language", "{model vlm}", "--out", "{out}"),
    ("tokens questions", "{karpathy}", "--out", "{out}"),
    ("tokens finetune", "{config tokens/finetune}", "--host.model", "{model vlm}",
     "--data.questions", "{vqa_lines}", "--data.images", "{photos}", "--train.out", "{out}"),
    ("tokens plan", "--model", "{model vlm}", "--questions", "{vqa_lines}"),
    ("tokens plan", "--target", "0.5", "--cuts", "2", "--budgets", "8"),
    ("tokens train", "{config tokens/default}", "--train.out", "{out}"),
    ("tokens train", "{config tokens/two_stage}", "--train.out", "{out}"),
    ("tokens predict", "--image", "{photo}", "--question", "what is it?", "--out", "{out}",
     "--plan", "{model tokens_default}", "--max_new_tokens", "2"),
    ("tokens predict", "--image", "{photo}", "--question", "what is it?", "--out", "{out}",
     "--method", "random", "--budget", "8", "--model", "{model vlm}"),
    ("tokens predict", "--video", "{photo}", "--question", "what is it?", "--frames", "4"),
    ("tokens evaluate", "{model tokens_default}", "--questions", "8"),
    ("tokens sweep", "{config tokens/sweep}", "--out", "{out}"),
    ("tokens bench", "--plan", "{model tokens_default}"),
    ("tokens export", "--plan", "{model tokens_default}", "--out", "{out}"),
    ("pixels words", "{classes}", "{pixel_lines}", "--encoder", "{model patches}", "--out",
     "{out}"),
    ("pixels train", "{config pixels/scenes}", "--train.out", "{out}"),
    ("pixels train", "nyu_s", "--data.kind", "jsonl", "--data.train", "{pixel_lines}",
     "--data.classes", "{classes}"),
    ("pixels train", "rooms", "--data.train", "{pixel_lines}", "--data.validation", "{pixel_lines}",
     "--data.classes", "{classes}", "--data.label_offset", "0", "--data.ignore_index", "255",
     "--inputs.resize_depth", "--inputs.size", "32", "64", "--text.source", "none", "--smoke"),
    ("pixels predict", "--image", "{photo}", "--tags", "table", "--out", "{out}"),
    ("pixels predict", "--image", "{photo}", "--depth", "{depth}", "--text", "a table", "--out",
     "{out}", "--model", "{model pixels}", "--resize_depth"),
    ("pixels predict", "--image", "{photos}", "--depth", "{photos}", "--out", "{out}"),
    ("pixels evaluate", "{model pixels}", "--data", "{config pixels/scenes}"),
    ("pixels convert", "{checkpoint}", "--out", "{out}"),
    ("pixels convert", "{weights}", "--out", "{out}"),
    ("pixels convert", "{model pixels}", "--out", "{out}", "--half"),
    ("pixels export", "--model", "{model pixels}", "--out", "{out}", "--height", "-1"),
    ("pixels export", "--model", "{model pixels}", "--out", "{out}", "--dynamic",
     "--words", "sofa"),
    ("scenes show", "--out", "{out}", "--scenes", "1"),
    ("scenes export", "{config scenes/jsonl}", "--out", "{out}"),
    ("search", "{config tokens/search}"),
)  # fmt: skip

_SMALL = (-1, 0, 1, 2, 7)
_NUMBERS = ("0", "-1", "1e999", "nan", "-inf", "1e-400", "0x10", "1_000", str(2**63), "9" * 5000)
_TEXTS = ("", " ", "a" * 10_000, "ä𝄞", "\ud800", "a\0b", "--", "-", "[", "{a: 1}", "*", "None",
          "true", "..", "%s{}", "\x1b[31m", "a\nb", "-1", "~", "[[[[", "!!int x",
          "..//..")  # fmt: skip
_YAML_VALUES: tuple[Any, ...] = (
    None, 5, -1, 0, 1.5, "text", "", [], {}, [1, [2]], {"a": {"b": 1}}, True, 2**70,
    float("nan"), float("inf"), "a\0b", "\ud800",
)  # fmt: skip
_YAML_TEXTS = (
    "a: &a [1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
    + "\n".join(f"{n}: &{n} [{', '.join([f'*{m}'] * 9)}]" for m, n in pairwise("cdefghi")),
    "a: &a {x: 1}\nb: &b {<<: [*a, *a]}\n<<: [*b, *b]\n", "a: &a [*a]\n", "<<: 3\n",
    "[" * 10_000, "{a: " * 3000, "- a\n", "a: 1\na: 2\n", "a: 1\n---\nb: 2\n", "\ta: 1\n",
    "? [a, b]\n: c\n", "1: x\nnull: y\ntrue: z\n", "a: !!python/object:os.system x\n",
    "a: !!binary aGk=\n", "a: !!set {x}\n", "a: !!timestamp 2001-01-01\n", "a: !!omap [x: 1]\n",
    "a: !!int x\n", "a: !!float x\n", "a: !!bool x\n", "a: !!null x\n", "a: !own x\n",
    f"a: {'9' * 5000}\n", "extends: [a]\n", "extends: .\n", "extends: ''\n", "extends: 3\n",
    "extends: config.yaml\n", "task: 3\n", "task: os:path\n", "task: no.such:Class\n",
    "task: a:b:c\n",
    "task: [tokens.train]\n", "task: tokens.trian\n", "\ufeffa: 1\n", "a: 1\r\nb: 2\r\n", "",
    "a: \x00\n", "x" * 100_000, "a: *nowhere\n", "%YAML 9.9\n---\na: 1\n", "search: 3\n",
)  # fmt: skip
_JSON_TEXTS = (
    "[" * 100_000, "[" * 500 + "]" * 500, "", "{", "[]", "{}", "null", "3", '"text"', "9" * 5000,
    '{"a": NaN}', '{"id": 1e999}', '{"a": "\\ud800"}', '{"a": 1, "a": 2}', "\ufeff{}", "[{}]",
    '{"images": 3}', '{"images": [3]}', '{"questions": [[]]}', '{"format": 1}', '{"format": 2}',
    '{"id": {}, "question": [], "answer": 3, "image": null, "text": ""}',
)  # fmt: skip


class ReachedError(EligoError):
    """The input was accepted; the slow part would start here."""


@dataclass(frozen=True)
class Case:
    """A command line and a description of its mistakes."""

    argv: list[str]
    mistakes: str


@contextmanager
def without_work() -> Iterator[None]:
    """Slow functions raise `ReachedError` inside this context."""

    def reach(*_args: Any, **_options: Any) -> Any:
        raise ReachedError("the work would begin here")

    replaced = []
    for target in _WORK:
        module, _, name = target.partition(":")
        owner: Any = importlib.import_module(module)
        *outer, last = name.split(".")
        for part in outer:
            owner = getattr(owner, part)
        replaced.append((owner, last, getattr(owner, last)))
        setattr(owner, last, reach)
    try:
        yield
    finally:
        for owner, name, work in replaced:
            setattr(owner, name, work)


def make_case(seed: int, number: int, samples: Samples, folder: Path) -> Case:
    """The case of a seed and a number; its files are put into the folder."""
    rng = random.Random(f"{seed} {number}")
    # Round-robin, so that few cases cover every command.
    template = TEMPLATES[(number + rng.randrange(2) * len(TEMPLATES) // 2) % len(TEMPLATES)]
    command, *words = template
    argv, files, mistakes = command.split(), [], []
    for word in words:
        if word == "{out}":
            argv.append("out")
        elif word.startswith("{"):
            name, _, below = word[1:].partition("}")
            files.append(samples.link(name, folder))
            argv.append(files[-1].name + below)
        else:
            argv.append(word)
    words = [_odd_word, _odd_word, _odd_path, _extra_flag]
    ways = list(words)
    if files:
        ways += [_damaged_file] * 5
    if any(file.suffix == ".yaml" for file in files):
        ways += [_odd_config] * 6
    mistakes.append(rng.choice(ways)(rng, argv, files, folder))
    if rng.random() < 0.2:
        mistakes.append(rng.choice(words[:2] + words[3:])(rng, argv, files, folder))
    return Case(argv, "; ".join(mistakes))


# ------------------------------------------------------------------ words


def _odd_word(rng: random.Random, argv: list[str], files: list[Path], folder: Path) -> str:
    places = [n for n, word in enumerate(argv) if n and not word.startswith("--")]
    place = rng.choice([*places, *places, *range(1, len(argv) + 1)])
    way = rng.choice(("replace",) * 5 + ("drop", "insert", "repeat", "equals"))
    word = rng.choice((*_TEXTS, *_NUMBERS))
    if way == "insert" or place == len(argv):
        argv.insert(place, word)
    elif way == "drop":
        del argv[place]
    elif way == "repeat":
        argv += argv[place : place + 2]
    elif way == "equals":
        argv[place] += "="
    else:
        argv[place] = word
    return f"{way} word {place} with {word[:20]!r}"


def _extra_flag(rng: random.Random, argv: list[str], files: list[Path], folder: Path) -> str:
    flag = f"--{rng.choice(_flags(' '.join(argv[:2])) or _flags(argv[0]) or ['no'])}"
    value = rng.choice((*_TEXTS, *_NUMBERS, *map(str, _SMALL), *(file.name for file in files)))
    argv += [flag, value]
    return f"flag {flag} {value[:20]!r}"


@cache
def _flags(name: str) -> list[str]:
    """The flags of a command, those of its config by their dotted keys."""
    if name not in COMMANDS:
        return []
    hints = get_type_hints(COMMANDS[name].load())
    config = hints.pop("config", None)
    is_config = isinstance(config, type) and issubclass(config, Config)
    keys = [*dotted_keys(config)] if is_config else ["config"] if config else []
    return sorted({*hints, "help", *keys} - {"return"})


def _odd_path(rng: random.Random, argv: list[str], files: list[Path], folder: Path) -> str:
    """Replaces a given path by one of another kind."""
    odd = folder / "odd"
    way = rng.choice(
        ("long", "parts", "pipe", "loop", "folder", "file", "closed", "newline", "gone")
    )
    name = {
        "long": "x" * 5000, "parts": "x/" * 3000, "newline": "a\nb", "gone": "no/such/place",
    }.get(way, "odd")  # fmt: skip
    if way == "pipe":
        os.mkfifo(odd)
        # A command may write to a pipe, so we read it; a command that reads it would block.
        threading.Thread(target=_drain, args=(os.open(odd, os.O_RDWR),), daemon=True).start()
    elif way == "loop":
        odd.symlink_to(odd)
    elif way == "folder":
        odd.mkdir()
    elif way == "file":
        odd.write_bytes(rng.randbytes(50))
    elif way == "closed":
        odd.mkdir(mode=0)
        name = "odd/inside"
    if rng.random() < 0.3:
        name += rng.choice((".yaml", ".jsonl", ".json", ".npy", ".safetensors", ".png", ".pth"))
        if odd.exists() or odd.is_symlink():
            odd.rename(folder / name) if way != "closed" else None
    places = [n for n, word in enumerate(argv) if word in [*(f.name for f in files), "out"]]
    if not places:
        argv += ["--out", name]
        return f"--out: {way}"
    place = rng.choice(places)
    argv[place] = name
    return f"word {place}: {way}"


def _drain(pipe: int) -> None:
    while os.read(pipe, 1 << 16):
        pass


# ------------------------------------------------------------------ files


def _damaged_file(rng: random.Random, argv: list[str], files: list[Path], folder: Path) -> str:
    """Damages one of the files (for a folder, one inside it)."""
    chosen = rng.choice(files)
    inside = [chosen] if chosen.is_file() else sorted(p for p in chosen.rglob("*") if p.is_file())
    path = rng.choice(inside)
    way = rng.choice(("flip", "flip", "cut", "kind", "kind", "text", "values", "gone", "folder"))
    data = path.read_bytes()
    path.unlink()  # a link: the sample stays whole
    if way == "flip":
        place = rng.randrange(min(len(data), rng.choice((64, 2000, len(data) + 1))) or 1)
        data = data[:place] + rng.randbytes(rng.choice((1, 4))) + data[place + 1 :]
        path.write_bytes(data)
    elif way == "cut":
        path.write_bytes(data[: rng.randrange(len(data) + 1)])
    elif way == "kind":
        path.write_bytes(_other_kind(rng, folder))
    elif way == "text":
        path.write_text(rng.choice(_JSON_TEXTS), encoding="utf-8", newline="")
    elif way == "values":
        path.write_bytes(_other_values(rng, path, data))
    elif way == "folder":
        path.mkdir()
    return f"{path.relative_to(folder)}: {way}"


def _other_kind(rng: random.Random, folder: Path) -> bytes:
    """The start of another file type, or random bytes."""
    others = sorted(path for path in folder.rglob("*") if path.is_file())
    data = (b"", b"\x00" * 64, b"\xff\xfea\x00", rng.randbytes(500), b"PK\x03\x04", b"\x80\x02.",
            b"\x93NUMPY\x01\x00\xff\xff", b"\xff" * 8 + b"{}",
            b"\x02\x00\x00\x00\x00\x00\x00\x00{}",
            b"\x89PNG\r\n\x1a\n", b"GIF89a", b"a: 1\n")  # fmt: skip
    if others and rng.random() < 0.3:
        return rng.choice(others).read_bytes()[:100_000]
    return rng.choice(data)


def _other_values(rng: random.Random, path: Path, data: bytes) -> bytes:
    """A document that is still JSON or YAML, with one value of another type."""
    try:
        if path.suffix == ".jsonl":
            rows = [json.loads(line) for line in data.splitlines()]
            tree = rng.choice(rows) if rows else {}
            _retype(rng, tree)
            return b"\n".join(json.dumps(row).encode() for row in rows)
        if path.suffix in (".yaml", ".json"):
            tree = yaml.safe_load(data)
            _retype(rng, tree)
            return json.dumps(tree).encode()
        size = int.from_bytes(data[:8], "little")
        if path.suffix == ".safetensors" and size < len(data):
            head = json.loads(data[8 : 8 + size])
            _retype(rng, head)
            text = json.dumps(head).encode()
            return len(text).to_bytes(8, "little") + text + data[8 + size :]
    except ValueError:
        pass
    return data[::-1]


def _retype(rng: random.Random, tree: Any) -> None:
    """Change one value (or key) somewhere in a tree."""
    while isinstance(tree, dict | list) and tree:
        key = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
        inner = tree[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
            tree = inner
            continue
        way = rng.choice(("value", "value", "drop", "rename"))
        if way == "value":
            tree[key] = rng.choice(_YAML_VALUES)
        elif way == "drop" or isinstance(tree, list):
            del tree[key]
        else:
            tree[f"{key}"[:-1] + rng.choice("xyz")] = tree.pop(key)
        return


def _odd_config(rng: random.Random, argv: list[str], files: list[Path], folder: Path) -> str:
    """The config of the command, with a mistake in it."""
    path = rng.choice([file for file in files if file.suffix == ".yaml"])
    text = path.read_text(encoding="utf-8")
    path.unlink()
    way = rng.choice(("whole", "added", "values", "values", "values", "other", "big", "bytes"))
    if way == "whole":
        path.write_text(rng.choice(_YAML_TEXTS), encoding="utf-8", newline="")
    elif way == "added":
        path.write_text(text + rng.choice(_YAML_TEXTS), encoding="utf-8", newline="")
    elif way == "values":
        tree = yaml.safe_load(text)
        _retype(rng, tree)
        path.write_text(yaml.safe_dump(tree, allow_unicode=False), encoding="utf-8")
        if isinstance(tree, dict) and tree and rng.random() < 0.5:
            argv += [f"--{rng.choice(list(tree))}.{rng.choice(('lr', 'kind', 'seed', 'out'))}", "3"]
    elif way == "other":
        path.write_text(f"extends: {rng.choice(shipped_configs())}\n", encoding="utf-8")
    elif way == "big":
        path.write_bytes(b"a: 1\n" * 400_000)
    else:
        path.write_bytes(text.encode(rng.choice(("utf-16", "utf-32", "cp500"))))
    return f"config {way}"
