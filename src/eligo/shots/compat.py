"""Flags and record files of the published pointer-selector designs and of Lever-LM. Without torch.

Flags of the V3 design's training command (docs/sources.md):

    --model_version v3   v3 (the config)             --sample_num 4949    --data.num_anchors 4949
    FOLDER               --data.path FOLDER          --scoring_method gain  --data.objective gain
    --num_epochs, --batch_size, --lr, --weight_decay       the same under --train
    --icds_origin random_train                --data.sampler random --data.split train

Record files, JSON:

    V3 design   {query: {"icds": [best, ...], "scores": [one per example]}}
    Lever-LM    {anchor: {"id_list": [[..., anchor], ...], "score_list": [one per list]}}

A Lever-LM list is in the order of the prompt, its query last. Ours starts with the pick nearest the
question, so the query is dropped and the rest reversed.
"""

from pathlib import Path
from typing import Any, NamedTuple

from eligo.errors import InputError
from eligo.io.reading import read_json, reading
from eligo.shots.data.pickles import is_pickle, refuse_pickle

_ALIASES = {
    "--num_epochs": "--train.num_epochs",
    "--batch_size": "--train.batch_size",
    "--lr": "--train.lr",
    "--weight_decay": "--train.weight_decay",
    "--sample_num": "--data.num_anchors",
    "--scoring_method": "--data.objective",
}
_ORIGIN, _VERSION = "--icds_origin", "--model_version"
_VERSIONS = ("v0", "v1", "v2", "v3")
_SWITCHES = {"--resume", "--json", "--smoke", "--help", "-h"}
_SAMPLERS = ("random", "text", "image", "mix")


def translate_flags(args: list[str]) -> list[str]:
    """Return a command line with our flags; a bare folder or JSON file holds the records.

    >>> translate_flags(["--lr", "1e-4", "--icds_origin", "random_train"])
    ['--train.lr', '1e-4', '--data.sampler', 'random', '--data.split', 'train']
    """
    translated: list[str] = []
    config = version = None
    words = iter(args)
    for word in words:
        if not word.startswith("-"):
            refuse_pickle(Path(word))
            is_data = Path(word).is_dir() or Path(word).suffix == ".json"
            config = config if is_data else word
            translated += ["--data.path", word] if is_data else [word]
            continue
        flag, has_value, value = word.partition("=")
        name = "--" + flag[2:].replace("-", "_") if flag.startswith("--") else flag
        if name not in _SWITCHES and not has_value:
            value = next(words, None)
        if value is not None and is_pickle(Path(value)):
            refuse_pickle(Path(value))
        if name == _VERSION:
            version = value
        elif name == _ORIGIN:
            translated += _translate_origin(value or "")
        else:
            translated.append(_ALIASES.get(name, flag))
            translated += [] if value is None or name in _SWITCHES else [value]
    if version is None:
        return translated
    if config is None and version in _VERSIONS:
        return [version, *translated]
    return [*translated, "--model.version", version]


def _translate_origin(value: str) -> list[str]:
    sampler, _, split = value.partition("_")
    if sampler not in _SAMPLERS or not split:
        raise InputError(
            f"{_ORIGIN}: got {value!r}, expected a sampler ({', '.join(_SAMPLERS)}) and a split, "
            "such as random_train"
        )
    return ["--data.sampler", sampler, "--data.split", split]


class Labelled(NamedTuple):
    """A list of examples for a query."""

    query: str
    picks: list[str]
    """In order of choice."""
    value: float | None
    """Score of the whole list."""
    scores: list[float] | None
    """Score of each pick."""


def read_legacy(path: str | Path) -> list[list[Labelled]]:
    """Read the lists of each query, the best first."""
    path = Path(path)
    refuse_pickle(path)
    document = read_json(path, unique_keys=True)
    if not isinstance(document, dict) or not document:
        raise InputError(f"{path}: expected an object of queries, {{query: {{...}}}}")
    return [_lists(f"{path}: {query}", str(query), entry) for query, entry in document.items()]


def _lists(where: str, query: str, entry: Any) -> list[Labelled]:
    if not isinstance(entry, dict):
        raise InputError(f"{where}: got {entry!r:.60}, expected an object")
    if "icds" in entry:
        picks = _ids(entry["icds"], f"{where}: icds")
        scores = entry.get("scores")
        numbers = None if scores is None else _numbers(scores, len(picks), f"{where}: scores")
        return [Labelled(query, picks, None, numbers)]
    if "id_list" not in entry:
        raise InputError(
            f"{where}: got {', '.join(entry) or 'nothing'}, expected icds and scores (V3 design), "
            "or id_list and score_list (Lever-LM)"
        )
    lists = entry["id_list"]
    if not isinstance(lists, list) or not lists:
        raise InputError(f"{where}: id_list: got {lists!r:.60}, expected lists of ids")
    values = _numbers(entry.get("score_list"), len(lists), f"{where}: score_list")
    labelled = []
    for number, (ids, value) in enumerate(zip(lists, values, strict=True)):
        location = f"{where}: id_list[{number}]"
        names = _ids(ids, location)
        if names[-1:] != [query]:
            raise InputError(f"{location}: ends in {names[-1:]}, expected its query, {query!r}")
        labelled.append(Labelled(query, names[-2::-1], value, None))
    return sorted(labelled, key=lambda item: -(item.value or 0.0))


def _ids(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not all(
        isinstance(name, int | str) and not isinstance(name, bool) for name in value
    ):
        raise InputError(f"{where}: got {value!r:.60}, expected a list of ids")
    return [str(name) for name in value]


def _numbers(value: Any, length: int, where: str) -> list[float]:
    if (
        not isinstance(value, list)
        or len(value) != length
        or not all(isinstance(n, int | float) and not isinstance(n, bool) for n in value)
    ):
        raise InputError(f"{where}: got {value!r:.60}, expected {length} numbers")
    with reading(where, "numbers"):
        return [float(number) for number in value]
