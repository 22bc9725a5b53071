"""What an update of an index keeps and what it encodes.

A stored row stays where its input still has the same id and stamp. Where an input is new or its
stamp has changed, its content is compared with the rows that are left over: a photo that was
renamed, moved or only touched is found again there, and so is one that was removed earlier. Only
what is in no row is encoded.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eligo.patches.index.sources import Source
from eligo.patches.index.store import Line, Shard, Stored


@dataclass(frozen=True)
class Plan:
    """The state of an index against its source."""

    shards: list[tuple[Shard, list[Line | None]]]
    """For each row of each shard the line of its input; None: it is gone."""
    skipped: list[Line]
    """Inputs that could not be read in an earlier run, and have not changed."""
    todo: list[int]
    """Places of the source to encode."""
    gone: int
    """Entries whose input was there in the last run and is not any more."""


@dataclass(frozen=True)
class _Slot:
    """A row, or an input that was skipped, which an input of the source may take."""

    line: Line
    lines: list[Any]
    """Where the line of the input goes, ..."""
    at: int
    """... and at which place."""


def plan_update(stored: Sequence[Stored], source: Source) -> Plan:
    """Compare what is stored with the inputs there are now."""
    shards: list[tuple[Shard, list[Line | None]]] = []
    skipped: list[Line | None] = []
    slots: list[_Slot] = []
    for part in stored:
        lines: list[Line | None] = [None] * len(part.entries)
        shards.append((part.shard, lines))
        slots += [_Slot(line, lines, at) for at, line in enumerate(part.entries)]
        for line in part.skipped:
            slots.append(_Slot(line, skipped, len(skipped)))
            skipped.append(None)
    waiting: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place in reversed(range(len(source.ids))):
        waiting[source.ids[place], source.stamp(place)].append(place)
    free: dict[str, list[_Slot]] = defaultdict(list)
    for slot in slots:
        if same := waiting.get((slot.line["id"], slot.line["stamp"])):
            _take(slot, source, same.pop())
        else:
            free[_first_word(slot.line["stamp"])].append(slot)
    todo = []
    for place in sorted(place for places in waiting.values() for place in places):
        same_size = free.get(_first_word(source.stamp(place)))
        slot = _with_content(same_size, source, place) if same_size else None
        if slot is None:
            todo.append(place)
        else:
            _take(slot, source, place)
    before = sum(line["id"] is not None for part in stored for line in part.entries)
    kept = sum(line is not None for _, lines in shards for line in lines)
    found = [line for line in skipped if line is not None]
    return Plan(shards, found, todo, max(0, before - kept))


def _take(slot: _Slot, source: Source, place: int) -> None:
    content = {name: slot.line[name] for name in ("content", "why") if name in slot.line}
    slot.lines[slot.at] = source.entry(place) | content


def _with_content(slots: list[_Slot], source: Source, place: int) -> _Slot | None:
    """Take the first slot whose input had the content of this one."""
    try:
        content = source.content(place)
    except OSError:  # reported when it is loaded
        return None
    for at, slot in enumerate(slots):
        if slot.line["content"] == content:
            return slots.pop(at)
    return None


def _first_word(stamp: str) -> str:
    return stamp.partition(" ")[0]
