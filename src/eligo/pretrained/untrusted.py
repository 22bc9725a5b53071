"""Checks of untrusted model folders, before `transformers` opens them. Imports no torch.

Refuses whatever `transformers` would execute, read from outside the folder, or allocate without
limit.
"""

import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from eligo.errors import InputError
from eligo.io.reading import read_object, reading

_CONFIG = "config.json"
_STOCK_CONFIGS = (
    _CONFIG,
    "generation_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "tokenizer_config.json",
    "adapter_config.json",
)
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # as `transformers` looks for them
# Counts in a config (each one is an object in memory), and limits that no model reaches.
_LAYERS = re.compile(r"(layers?|depths?|blocks)$")
_MOST = {_LAYERS: 10_000, re.compile(r"(experts|labels)$"): 1_000_000}
_FEW_LAYERS = 200  # always accepted: they cost little
_FLOATS = ("F64", "F32", "F16", "BF16")
_MANY_PATCHES = 1_000_000
# The size that a processor scales images to: sides, or an area if images keep their shape.
_SIZES = ("size", "crop_size", "pad_size", "min_pixels")
_LONGEST_SIDE, _LARGEST_AREA = 16_384, 100_000_000
_ATTENTION = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")


def check_stock_folder(folder: Path) -> dict[str, Any]:
    """Return the content of config.json ({} if there is none) after checking all configs.

    Refuses configs that name code of the folder, or more parts than any model has.
    """
    paths = [folder / name for name in _STOCK_CONFIGS if (folder / name).exists()]
    if not paths:
        raise InputError(
            f"{folder}: holds no model of transformers (no config.json); expected a folder with a "
            "model and its tokenizer or processor"
        )
    configs = {path.name: read_object(path, "transformers") for path in paths}
    for path in paths:
        _check_config(path, configs[path.name])
    return configs.get(_CONFIG, {})


def _check_config(path: Path, config: dict[str, Any]) -> None:
    for counted, most in _MOST.items():
        for key, size in _counts(config, counted):
            if size > most:
                raise InputError(f"{path}: got {key} {size}, expected at most {most}")
    if "processor" in path.name:
        for part in _objects(config):
            _check_pixels(path, part)
    for key, value in _entries(config):
        if key == "auto_map" and value:
            raise InputError(
                f"{path}: names Python code of the folder (auto_map), which eligo never runs; "
                "expected a model whose classes are part of transformers: look for a converted "
                "version (often OWNER/NAME-hf), or remove auto_map if transformers has the class"
            )
        if key in _ATTENTION and "/" in str(value):
            raise InputError(
                f"{path}: {key} names code on the hub ({value}), which eligo never runs; expected "
                "eager or sdpa: remove the key"
            )


def _check_pixels(path: Path, config: dict[str, Any]) -> None:
    """Refuse a processor that scales images to a size that does not fit into memory."""
    by_area = "merge_size" in config or "min_pixels" in config
    most = _LARGEST_AREA if by_area else _LONGEST_SIDE
    for key in _SIZES:
        value = config.get(key)
        if isinstance(value, list):
            value = dict(enumerate(value))
        sides = value if isinstance(value, dict) else {"": value}
        for side, pixels in sides.items():
            if by_area and side == "longest_edge":
                continue  # an upper limit: it makes no image larger
            if isinstance(pixels, int) and pixels > most:
                raise InputError(
                    f"{path}: got {key} {side}: {pixels}, expected at most {most} pixels: copy the "
                    "file again"
                )


def check_stock_weights(folder: Path, config: dict[str, Any]) -> None:
    """Refuse weight files that are missing, damaged, outside the folder, or of another config.

    Only the headers are read.
    """
    files = [file for file in _weight_files(folder) if file.suffix == ".safetensors"]
    headers = [(file, name, *entry) for file in files for name, entry in read_header(file).items()]
    if not headers or not config:
        return
    _check_counts(folder / _CONFIG, config, len(headers), sum(prod(shape) for *_, shape in headers))
    for file, name, dtype, _ in headers if not is_quantised(config) else ():
        if name.endswith((".weight", ".bias")) and dtype not in _FLOATS:
            raise InputError(
                f"{file}: got {name} as {dtype}, expected floats ({', '.join(_FLOATS)}), as "
                f"{_CONFIG} names no quantization_config"
            )


def _check_counts(path: Path, config: dict[str, Any], num_tensors: int, num_weights: int) -> None:
    """Refuse a config that describes far more than the weights: it would fill the memory."""
    expected = "expected config and weights of one model: copy the folder again"
    for key, size in _counts(config, _LAYERS):
        if size > max(num_tensors, _FEW_LAYERS):
            raise InputError(
                f"{path}: got {key} {size}, but the weights beside it have {num_tensors} "
                f"tensors; {expected}"
            )
    for part in _objects(config):
        size, patch = part.get("image_size"), part.get("patch_size")
        if not isinstance(size, int) or not isinstance(patch, int) or patch < 1:
            continue
        if (size // patch) ** 2 > max(num_weights, _MANY_PATCHES):
            raise InputError(
                f"{path}: got image_size {size} and patch_size {patch}, but the weights beside it "
                f"are {num_weights} numbers; {expected}"
            )


def is_quantised(config: dict[str, Any]) -> bool:
    """Whether the weights are packed, so that their shapes differ from the config's."""
    return any(key == "quantization_config" and value for key, value in _entries(config))


def read_header(file: Path) -> dict[str, tuple[str, list[int]]]:
    """Return type and shape of every tensor in a safetensors file, by name."""
    from safetensors import safe_open

    with (
        reading(file, "a whole safetensors file: copy it again"),
        safe_open(file, framework="np") as opened,
    ):
        parts = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
        return {name: (part.get_dtype(), part.get_shape()) for name, part in parts.items()}


def _weight_files(folder: Path) -> list[Path]:
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        if (index := folder / f"{name}.index.json").is_file():
            return _shards(index)
    return []  # `transformers` reports what it looked for


def _shards(index: Path) -> list[Path]:
    places = read_object(index, "transformers").get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise InputError(f"{index}: got no weight_map from tensor names to file names")
    names = sorted(set(places.values()))
    for name in names:
        if Path(name).name != name or name in (".", ".."):
            raise InputError(
                f"{index}: points to {name!r}, outside its folder; expected names of files beside "
                "it: use a folder from a source that you trust"
            )
        if not (index.parent / name).is_file():
            raise InputError(
                f"{index.parent}: cannot be read (there is no {name}, which {index.name} names); "
                "expected all its shards: copy the whole folder again"
            )
    return [index.parent / name for name in names]


def _objects(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the object itself and every object in it."""
    yield tree
    yield from (value for _, value in _entries(tree) if isinstance(value, dict))


def _counts(tree: Any, names: re.Pattern[str]) -> Iterator[tuple[str, int]]:
    """Yield whole numbers under keys with such names, alone or in a list."""
    for key, value in _entries(tree):
        if names.search(key):
            sizes = value if isinstance(value, list) else [value]
            yield from ((key, size) for size in sizes if isinstance(size, int))


def _entries(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key of a JSON tree with its value."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield from node.items()
            left += node.values()
        elif isinstance(node, list):
            left += node
