"""What the tree offers, as plain data: commands, names, configs, files, tests and outputs.

`python tests/inventory/collect.py OUT.json [--outputs]` writes it. Everything is found by looking
at the installed package and at the files; `PLACES` says where to look.
"""

import ast
import hashlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import torch
import tyro
from inventory_outputs import collect_outputs, find
from pydantic_core import to_jsonable_python

from eligo.train.config import SearchConfig

PACKAGE, BENCHMARKS = "eligo", "benchmarks"
ROOT = Path(__file__).parents[2]

PLACES = {
    "commands": "eligo.cli.commands:COMMANDS",
    "tasks": "eligo.cli.registry:TASKS",
    "load run config": "eligo.cli.registry:load_run_config",
    "resolve task": "eligo.cli.registry:resolve_task",
    "config": "eligo.config:Config",
    "shipped configs": "eligo.config:shipped_configs",
    "read layer": "eligo.config:read_layer",
    "methods": "eligo.tokens.methods:METHODS",
    "hosts": "eligo.tokens.hosts:_FAMILIES",
    "kernels": "eligo.patches.kernels:KERNELS",
    "selectors": "eligo.shots.selector:_KINDS",
    "rooms presets": "eligo.pixels.config:PRESETS",
    "export formats": "eligo.scenes.formats:FORMATS",
}
"""Where the tables and functions are that the collector reads, as `module:name`."""

MODELS = "src/eligo/models"
"""Where the shipped models are."""

FILES = {
    "VQAv2 questions and annotations": "eligo.vqa:read_vqa",
    "JSON lines of image, question, answers": "eligo.vqa:read_vqa_lines",
    "VQAv2 or JSON lines for tokens": "eligo.tokens.data.file_source:read_examples",
    "folder of an exported VQAv2": "eligo.tokens.data.file_source:read_folder",
    "Karpathy JSON": "eligo.patches.data.readers:read_captions",
    "LAPS and SEPS checkpoints": "eligo.patches.inference.convert:read_checkpoint",
    "index of images or texts": "eligo.patches.index.store:read_manifest",
    "NYUDepthv2, SUN RGB-D and JSON lines of rooms": "eligo.pixels.data.records:read_records",
    "class names, one per line": "eligo.pixels.data.classes:read_classes",
    "photos": "eligo.pixels.data.pictures:read_photo",
    "depth as PNG, TIFF or npy": "eligo.pixels.data.pictures:read_depth",
    "label images": "eligo.pixels.data.pictures:read_label",
    "official DFormerv2 weights": "eligo.pixels.inference.convert:read_official",
    "examples as JSON lines or VQAv2": "eligo.shots.data.items:read_items",
    "texts as JSON lines": "eligo.shots.data.text:read_texts",
    "Lever-LM and V3 JSON": "eligo.shots.compat:read_legacy",
    "Lever-LM and V3 JSON as records": "eligo.shots.teacher.read:read_legacy_records",
    "records of a teacher": "eligo.shots.teacher.read:read_records",
    "results of a teacher": "eligo.shots.teacher.read:read_results",
    "flags of published selectors": "eligo.shots.compat:translate_flags",
    "keys of the two-stage pruning design": "eligo.tokens.compat:from_two_stage_design",
    "saved selector": "eligo.shots.selector:load_selector",
    "saved pointer model": "eligo.shots.model.pretrained:load_pointer",
    "saved plan": "eligo.tokens.plan_files:load",
    "saved record of the explorer": "eligo.explorer.folder:load_record",
    "method with options, as text": "eligo.tokens.methods:read_method",
    "lmms-eval plug-in": "eligo.tokens.inference.lmms_eval:manifest",
}
"""What is read from disk (or from text) and by which function; the function's place may change."""

WEIGHTS = (".safetensors",)
Inventory = dict[str, Any]


def collect(*, outputs: bool = False) -> Inventory:
    """The inventory of this tree."""
    modules = import_all()
    found = {
        "commands": commands(),
        "public": public(modules),
        "configs": {name_of(cls): defaults(cls) for cls in config_classes()},
        "choices": {name_of(cls): choices(cls) for cls in config_classes()},
        "tasks": sorted(at("tasks")),
        "methods": {name: defaults(cls) for name, cls in at("methods").items()},
        "hosts": {name: cls.__name__ for name, cls in at("hosts").items()},
        "kernels": kernels(),
        "selectors": {
            name: cls.__name__
            for name, cls in at("selectors").items()
            if cls.__module__.startswith(f"{PACKAGE}.")
        },
        "formats": formats(),
        "yamls": {name: resolved(name) for name in at("shipped configs")()},
        "models": models(ROOT / MODELS),
        "tests": tests(ROOT / "tests"),
    }
    if outputs:
        found["outputs"] = collect_outputs()
    return found


def flat(inventory: Inventory) -> dict[str, dict[str, Any]]:
    """Per section, one entry for every leaf: `name` or `name inner.key`, with its value."""
    return {section: dict(_section_entries(section, found)) for section, found in inventory.items()}


def _section_entries(section: str, found: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(found, list):
        yield from ((entry, None) for entry in found)
        return
    for name, inner in found.items():
        if section == "outputs":
            yield from ((f"{name} {key}", value) for key, value in leaves(inner, lists=True))
        elif section == "tests":
            yield from ((f"{name}::{test}", None) for test in inner)
        elif isinstance(inner, Mapping):
            yield name, None
            for key, value in leaves(inner) if inner else ():
                if section == "choices":
                    yield from ((f"{name} {key}={choice}", None) for choice in value)
                else:
                    yield f"{name} {key}", value
        else:
            yield name, inner


def leaves(tree: Any, prefix: str = "", *, lists: bool = False) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values; lists count as values unless they are asked for."""
    if isinstance(tree, Mapping) and tree:
        pairs = tree.items()
    elif lists and isinstance(tree, list) and tree:
        pairs = enumerate(tree)
    else:
        yield prefix, tree
        return
    for key, value in pairs:
        yield from leaves(value, f"{prefix}.{key}" if prefix else str(key), lists=lists)


# ------------------------------------------------------------ the package


def at(what: str) -> Any:
    """The table or function at one of `PLACES`."""
    return find(PLACES[what])


def import_all() -> list[Any]:
    """All modules of the package that can be imported here; some need what is not installed."""
    roots = [import_module(name) for name in (PACKAGE, BENCHMARKS)]
    found = [*roots]
    walks = (pkgutil.walk_packages(root.__path__, f"{root.__name__}.") for root in roots)
    for info in chain.from_iterable(walks):
        if info.name in (f"{PACKAGE}.__main__", f"{PACKAGE}.demos"):  # the second says its new name
            continue
        try:
            found.append(import_module(info.name))
        except ImportError as error:
            if (error.name or "").partition(".")[0] == PACKAGE:
                raise
    return found


def public(modules: list[Any]) -> list[str]:
    """Names in `__all__`, and of packages without one all that is defined in them."""
    found = set()
    for module in modules:
        names = getattr(module, "__all__", None)
        if names is None and hasattr(module, "__path__"):
            names = [
                name
                for name, value in vars(module).items()
                if not name.startswith("_")
                and getattr(value, "__module__", None) == module.__name__
            ]
        found |= {f"{module.__name__}.{name}" for name in names or () if hasattr(module, name)}
    return sorted(found)


# ------------------------------------------------------------ commands


def commands() -> dict[str, dict[str, str]]:
    """Every command with its flags and their defaults."""
    mine = {n: c for n, c in at("commands").items() if c.target.startswith(f"{PACKAGE}.")}
    found = {name: dict(flags(command.load())) for name, command in mine.items()}
    for path in sorted((ROOT / BENCHMARKS).glob("*/*.py")):
        module = f"{BENCHMARKS}.{path.parent.name}.{path.stem}"
        if "run_script(run)" in path.read_text(encoding="utf-8"):
            found[f"python -m {module}"] = dict(flags(import_module(module).run))
    return found


def flags(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """The flags of a command; those for the keys of a config are not repeated."""
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        hint, default = hints[name], parameter.default
        plain, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if _is_config(plain):
            yield "[CONFIG]", str(next(iter(metadata), "none")).removeprefix(f"{ROOT}/")
            if hasattr(plain, "smoke"):
                yield "--smoke", "False"
        elif is_dataclass(plain):
            for field in fields(plain):
                assert field.default is not MISSING
                yield f"--{field.name}", shown(field.default)
        else:
            told = next((m.name for m in metadata if getattr(m, "name", None)), None) or name
            positional = any(mark is tyro.conf.Positional for mark in metadata)
            flag = told.upper() if positional else f"--{told}"
            yield flag, "required" if default is parameter.empty else shown(default)


def shown(value: Any) -> str:
    """A default as text."""
    return str(to_jsonable_python(value))


# ------------------------------------------------------------ configs


def _is_config(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, at("config"))


def config_classes() -> list[Any]:
    """Every config class of the package."""
    found, left = {}, [at("config")]
    while left:
        cls = left.pop()
        left += cls.__subclasses__()
        if cls.__module__.partition(".")[0] in (PACKAGE, BENCHMARKS):
            found[name_of(cls)] = cls
    return [found[name] for name in sorted(found)]


def name_of(cls: type) -> str:
    """`module:Class`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def defaults(cls: Any) -> dict[str, Any]:
    """Dotted keys of a config class with their defaults."""
    found: dict[str, Any] = {}
    for name, field in cls.model_fields.items():
        if field.is_required():
            found[name] = "required"
        elif field.default_factory_takes_validated_data:
            found[name] = "from other keys"
        else:
            found |= dict(leaves(plain(field.get_default(call_default_factory=True)), name))
    return found


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, at("config")):
        value = value.model_dump(mode="json", serialize_as_any=True)
    return to_jsonable_python(value, fallback=repr)


def choices(cls: Any) -> dict[str, list[str]]:
    """What the keys with a fixed set of words take."""
    found = {name: list(_words(field.annotation)) for name, field in cls.model_fields.items()}
    return {name: words for name, words in found.items() if words}


def _words(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    else:
        for part in get_args(annotation):
            yield from _words(part)


def resolved(name: str) -> dict[str, Any]:
    """A shipped YAML with every value; as it is written, if no task says what it is."""
    tree = dict(at("read layer")(name).tree)
    if "task" not in tree:
        return plain(tree)
    search = tree.pop("search", None)  # only `eligo search` reads it
    run = plain(at("load run config")(tree))
    return run if search is None else {**run, "search": plain(SearchConfig(**search))}


# ------------------------------------------------------------ tables and files


def formats() -> list[str]:
    """What can be written and read, and the presets; a reader counts if its function is there."""
    written = [f"written by scenes export: {name}" for name in at("export formats")]
    read = [f"read: {what}" for what, place in FILES.items() if callable(find(place))]
    return sorted([*written, *read, *(f"preset of pixels: {n}" for n in at("rooms presets"))])


def kernels() -> list[str]:
    """Ways to score pairs, and the Triton functions, whether or not Triton is installed."""
    found = [f"patches: {name}" for name in at("kernels")]
    source = ROOT / "src" / PACKAGE
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "triton.jit" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and any(
                "triton.jit" in ast.unparse(mark) for mark in node.decorator_list
            ):
                module = ".".join(path.relative_to(source.parent).with_suffix("").parts)
                found.append(f"triton: {module}:{node.name}")
    return sorted(found)


def models(folder: Path) -> dict[str, dict[str, str | None]]:
    """Files of every shipped model; of weights, what they hold."""
    found: dict[str, dict[str, str | None]] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or "__pycache__" in path.parts:
            continue
        inside = path.relative_to(folder)
        digest = None
        if path.suffix in WEIGHTS:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        name = Path(*inside.parts[1:]).as_posix() if len(inside.parts) > 1 else ""
        found.setdefault(inside.parts[0], {})[name] = digest
    return found


def tests(folder: Path) -> dict[str, list[str]]:
    """Test functions of every file, but for those of the inventory."""
    found = {}
    for path in sorted(folder.rglob("test_*.py")):
        if path.parent == Path(__file__).parent:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[path.relative_to(folder.parent).as_posix()] = sorted(set(_tests_in(tree.body)))
    return found


def _tests_in(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _tests_in(node.body, f"{prefix}{node.name}::")
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield f"{prefix}{node.name}"
        elif isinstance(node, ast.If | ast.With | ast.Try):
            yield from _tests_in(node.body, prefix)


def main(args: list[str]) -> None:
    """Write the inventory to the file that is named first."""
    torch.set_num_threads(1)
    found = collect(outputs="--outputs" in args)
    text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False)
    Path(args[0]).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
