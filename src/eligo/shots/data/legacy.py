"""Records in the forms of other programs: the V3 guide's JSON, and Lever-LM's. Section 2, Readers.

    V3 guide   {query: {"icds": [best, ...], "scores": [one per example]}}
    Lever-LM   {anchor: {"id_list": [[..., anchor], ...], "score_list": [one per list]}}

A Lever-LM list is in the order of the prompt, its query last; we name the pick nearest the question
first, so the query is dropped and the rest reversed.
"""

from pathlib import Path
from typing import Any, NamedTuple

from eligo.errors import InputError
from eligo.io.reading import read_json, reading
from eligo.shots.data.pickles import refuse_pickle


class Labelled(NamedTuple):
    """A list of examples for a query."""

    query: str
    picks: list[str]
    """In order of choice."""
    value: float | None
    """Of the whole list."""
    scores: list[float] | None
    """Of each pick."""


def read_legacy(path: str | Path) -> list[list[Labelled]]:
    """For each query its lists, the best first."""
    path = Path(path)
    refuse_pickle(path)
    document = read_json(path, unique_keys=True)
    if not isinstance(document, dict) or not document:
        raise InputError(f"{path}: expected an object of queries, {{query: {{...}}}}")
    return [_lists(path, str(query), entry) for query, entry in document.items()]


def _lists(path: Path, query: str, entry: Any) -> list[Labelled]:
    where = f"{path}: {query}"
    if not isinstance(entry, dict):
        raise InputError(f"{where}: got {entry!r:.60}, expected an object")
    if "icds" in entry:
        picks = _ids(entry["icds"], f"{where}: icds")
        scores = entry.get("scores")
        numbers = None if scores is None else _numbers(scores, len(picks), f"{where}: scores")
        return [Labelled(query, picks, None, numbers)]
    if "id_list" in entry:
        lists = entry["id_list"]
        if not isinstance(lists, list) or not lists:
            raise InputError(f"{where}: id_list: got {lists!r:.60}, expected lists of ids")
        values = _numbers(entry.get("score_list"), len(lists), f"{where}: score_list")
        found = []
        for number, (ids, value) in enumerate(zip(lists, values, strict=True)):
            place = f"{where}: id_list[{number}]"
            names = _ids(ids, place)
            if names[-1:] != [query]:
                raise InputError(f"{place}: ends in {names[-1:]}, expected its query, {query!r}")
            found.append(Labelled(query, names[-2::-1], value, None))
        return sorted(found, key=lambda one: -(one.value or 0.0))
    raise InputError(
        f"{where}: got {', '.join(entry) or 'nothing'}, expected icds and scores (V3 guide), or "
        "id_list and score_list (Lever-LM)"
    )


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
