"""Nothing of `before.json` is lost: every entry is still there, moved, or removed with a reason."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from collect import collect, flat
from inventory_outputs import collect_outputs
from places import CHANGED, MOVED, REMOVED, VALUES

Sections = Mapping[str, Mapping[str, Any]]
Rules = Mapping[str, Mapping[str, str]]

BEFORE = json.loads(Path(__file__).with_name("before.json").read_text(encoding="utf-8"))
RELATIVE, ABSOLUTE = 1e-5, 1e-9  # CPUs round differently: 2e-6 between two of them


def rule_for(entry: str, rules: Mapping[str, str]) -> str | None:
    """The key that applies: the entry itself, or else the longest beginning."""
    if entry in rules:
        return entry
    fitting = [key for key in rules if key.endswith("*") and entry.startswith(key[:-1])]
    return max(fitting, key=len, default=None)


def moved(entry: str, rules: Mapping[str, str]) -> str:
    """What an old entry is called now."""
    rule = rule_for(entry, rules)
    if rule is None or rule == entry:
        return rules.get(entry, entry)
    return rules[rule].removesuffix("*") + entry.removeprefix(rule[:-1])


def same(old: Any, new: Any) -> bool:
    """Equal, but floats only nearly so, and text also if it was renamed."""
    if isinstance(old, bool) or isinstance(new, bool):
        return old is new
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(same, old, new))
    return type(old) is type(new) and old == new


def problems(
    before: Sections,
    now: Sections,
    moves: Rules,
    removals: Rules,
    changes: Rules,
    values: Mapping[str, str],
) -> list[str]:
    """All that is lost, another one without a reason, or said of what never was."""
    messages = []
    for section, old in before.items():
        there = now.get(section, {})
        mine = [rules.get(section, {}) for rules in (moves, removals, changes)]
        used: list[set[str | None]] = [{rule_for(entry, mine[0]) for entry in old}, set(), set()]
        for entry, value in old.items():
            name = moved(entry, mine[0])
            gone = rule_for(entry, mine[1])
            used[1].add(gone)
            if gone is not None:
                if name in there:
                    messages.append(f"{section}: {entry}: said to be removed, but {name} is there")
            elif name not in there:
                messages.append(f"{section}: {entry}: lost (looked for {name})")
            elif not same(_renamed(value, values), there[name]) and not same(value, there[name]):
                used[2].add(why := rule_for(entry, mine[2]))
                if why is None:
                    messages.append(f"{section}: {entry}: was {value!r}, is {there[name]!r}")
        for kind, rules, seen in zip(("MOVED", "REMOVED", "CHANGED"), mine, used, strict=True):
            messages += [
                f"{kind}: {section}: {rule}: fits nothing" for rule in rules if rule not in seen
            ]
    for kind, all_rules in (("MOVED", moves), ("REMOVED", removals), ("CHANGED", changes)):
        messages += [f"{kind}: {name}: no such section" for name in all_rules if name not in before]
    return messages


def _renamed(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_renamed(one, values) for one in value]
    return values.get(value, value) if isinstance(value, str) else value


def of(sections: Mapping[str, Any], *, outputs: bool) -> dict[str, Any]:
    """The outputs, or all the rest."""
    return {name: value for name, value in sections.items() if (name == "outputs") is outputs}


def checked(before: Mapping[str, Any], now: Mapping[str, Any], *, outputs: bool) -> list[str]:
    """The problems of some sections, by the rules of `places`."""
    rules = [of(rules, outputs=outputs) for rules in (MOVED, REMOVED, CHANGED)]
    return problems(flat(of(before, outputs=outputs)), flat(now), *rules, VALUES)


def test_nothing_is_lost():
    found = checked(BEFORE, collect(), outputs=False)
    assert not found, "\n".join(found)


def test_commands_print_the_same():
    found = checked(BEFORE, {"outputs": collect_outputs()}, outputs=True)
    assert not found, "\n".join(found)


def test_known_values_and_reasons():
    sections = {*BEFORE}
    assert {*MOVED, *REMOVED, *CHANGED} <= sections
    reasons = [
        why for rules in (REMOVED, CHANGED) for mine in rules.values() for why in mine.values()
    ]
    assert all(len(why.split()) > 2 for why in reasons)
    stored = {value for mine in flat(BEFORE).values() for value in _texts(list(mine.values()))}
    assert stored >= VALUES.keys()


def _texts(value: Any) -> list[str]:
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return [value] if isinstance(value, str) else []


OLD = {"public": {"a.x": None, "a.y": None}, "configs": {"a:C rate": 0.1, "a:C name": "demos"}}


@pytest.mark.parametrize(
    ("now", "rules", "expected"),
    [
        (OLD, {}, []),
        ({**OLD, "public": {"a.x": None}}, {}, ["public: a.y: lost (looked for a.y)"]),
        ({"configs": OLD["configs"]}, {}, ["lost (looked for a.x)", "lost (looked for a.y)"]),
        ({**OLD, "public": {"a.x": None}}, {"removals": {"public": {"a.y": "not used"}}}, []),
        (OLD, {"removals": {"public": {"a.y": "not used"}}}, ["said to be removed"]),
        ({**OLD, "public": {"b.x": None, "c": None}},
         {"moves": {"public": {"a.*": "b.*", "a.y": "c"}}}, []),
        ({**OLD, "public": {"b.x": None}}, {"moves": {"public": {"a.*": "b.*"}}}, ["for b.y)"]),
        (OLD, {"moves": {"public": {"z.*": "b.*"}}}, ["MOVED: public: z.*: fits nothing"]),
        (OLD, {"removals": {"public": {"z": "was never"}}}, ["REMOVED: public: z: fits nothing"]),
        (OLD, {"changes": {"configs": {"a:C rate": "better"}}}, ["CHANGED: configs: a:C rate"]),
        (OLD, {"moves": {"other": {"a": "b"}}}, ["MOVED: other: no such section"]),
        ({**OLD, "configs": {"a:C rate": 0.2, "a:C name": "demos"}}, {}, ["was 0.1, is 0.2"]),
        ({**OLD, "configs": {"a:C rate": 0.2, "a:C name": "demos"}},
         {"changes": {"configs": {"a:C rate": "better"}}}, []),
        ({**OLD, "configs": {"a:C rate": 0.1, "a:C name": "shots"}}, {}, ["is 'shots'"]),
        ({**OLD, "configs": {"a:C rate": 0.1, "a:C name": "shots"}},
         {"values": {"demos": "shots"}}, []),
    ],
)  # fmt: skip
def test_the_comparison_itself(now, rules, expected):
    given = {"moves": {}, "removals": {}, "changes": {}, "values": {}, **rules}
    messages = problems(OLD, now, **given)
    assert len(messages) == len(expected), messages
    assert all(part in line for part, line in zip(expected, messages, strict=True)), messages


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (1.0, 1.0 + 1e-7, True),
        (1.0, 1.0 + 1e-4, False),
        (1, 1.0, False),
        (1, True, False),
        ([1, 0.5], [1, 0.5 + 1e-9], True),
        ([1], [1, 2], False),
        ("yes", "no", False),
        (None, None, True),
        (None, 0, False),
    ],
)
def test_what_counts_as_the_same(old, new, expected):
    assert same(old, new) is expected
