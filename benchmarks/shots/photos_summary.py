"""Tables and targets of the study on photos. Intervals: 95 %, over frames or photos and seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.studies import reached_or_not
from eligo.cli.console import compact_table, print_text, results
from eligo.report.intervals import bootstrap_means

SIMPLE = ("random", "nearest", "mmr", "dpp", "bm25")
_RIVALS = ("nearest", "mmr")
_WAY, _POINTS = 0.15, 0.01  # least share of the way to the best example; allowed loss of accuracy
_SETS = 2  # of three, on which the log-probability must be ahead


def summarise(
    found: Mapping[str, Mapping[str, Any]],
    variants: Sequence[str],
    seeds: Sequence[int],
    shots: Sequence[int],
) -> dict[str, Any]:
    """Return a table for each set, and the targets of the last variant."""
    sets = {name: _summary(one, variants, seeds, shots) for name, one in found.items()}
    return {"sets": sets, "targets": _targets(sets, variants[-1], shots)}


def _summary(
    found: Mapping[str, Any], variants: Sequence[str], seeds: Sequence[int], shots: Sequence[int]
) -> dict[str, Any]:
    frames, rows = found["frames"], []

    def runs(measure: str, name: str, count: int) -> list[list[float]]:
        names = [f"{name}_{seed}" for seed in seeds] if name in variants else [name] * len(seeds)
        return [found[measure][f"{one} {count}"] for one in names]

    def intervals(*columns: list[list[float]]) -> list[list[float]]:
        return [list(part) for part in bootstrap_means(list(columns), groups=frames)]

    for count in (0, *shots):
        for name in ("none",) if not count else (*SIMPLE, *variants):
            logprob, accuracy = (runs(measure, name, count) for measure in ("logprob", "accuracy"))
            row: dict[str, Any] = {"shots": count, "examples": name}
            row["logprob"], row["accuracy"] = intervals(logprob, accuracy)
            if name in variants:
                for rival in _RIVALS:
                    for measure, own in (("logprob", logprob), ("accuracy", accuracy)):
                        lead = _less(own, runs(measure, rival, count))
                        row[f"{measure} lead over {rival}"] = intervals(lead)[0]
            rows.append(row)
    nearby = _nearby(found, variants, seeds)
    return {"queries": len(frames), "balance": found["balance"], "rows": rows, "nearby": nearby}


def _nearby(
    found: Mapping[str, Any], variants: Sequence[str], seeds: Sequence[int]
) -> dict[str, Any]:
    """Return the first pick among the nearest candidates: its score, and the ranking's NDCG."""
    values, frames = found["nearby"], found["frames"]
    nearest, best = ([values[name]] * len(seeds) for name in ("nearest", "best"))
    near, top = bootstrap_means([nearest, best], groups=frames)
    result: dict[str, Any] = {"nearest": list(near), "best": list(top)}
    ranks = {name: [values[f"ndcg {name}_{seed}"] for seed in seeds] for name in variants}
    for name in variants:
        picks = [values[f"{name}_{seed}"] for seed in seeds]
        lead, ndcg = bootstrap_means([_less(picks, nearest), ranks[name]], groups=frames)
        result[name] = {"lead": list(lead), "ndcg": list(ndcg)}
        result[name]["way"] = lead[0] / max(top[0] - near[0], 1e-9)
    if len(variants) > 1:
        difference = _less(ranks[variants[-1]], ranks[variants[0]])
        result["ndcg difference"] = list(bootstrap_means([difference], groups=frames)[0])
    return result


def _less(one: list[list[float]], other: list[list[float]]) -> list[list[float]]:
    return [
        [a - b for a, b in zip(mine, theirs, strict=True)]
        for mine, theirs in zip(one, other, strict=True)
    ]


def _targets(
    sets: Mapping[str, Mapping[str, Any]], ours: str, shots: Sequence[int]
) -> list[dict[str, Any]]:
    targets = []

    def add(met: bool, text: str) -> None:
        targets.append({"met": met, "text": text})

    own = {
        (name, row["shots"]): row
        for name, one in sets.items()
        for row in one["rows"]
        if row["examples"] == ours
    }
    for count in shots:
        ahead = [
            name
            for name in sets
            if all(own[name, count][f"logprob lead over {rival}"][1] > 0 for rival in _RIVALS)
        ]
        listed = ", ".join(ahead) or "none"
        text = f"{count} shots: log-probability ahead of nearest and MMR on {listed}"
        add(len(ahead) >= min(_SETS, len(sets)), f"{text} (target: {_SETS} of 3)")
        for name in sets:
            low = min(own[name, count][f"accuracy lead over {rival}"][1] for rival in _RIVALS)
            add(
                low > -_POINTS,
                f"{name}, {count} shots: accuracy, lower end {100 * low:+.1f} points",
            )
    for name, one in sets.items():
        nearby = one["nearby"]
        way = nearby[ours]["way"]
        add(way >= _WAY, f"{name}: {way:.1%} of the way from the nearest to the best (15 %)")
        if "ndcg difference" in nearby:
            mean, low, high = nearby["ndcg difference"]
            text = (
                f"{name}: NDCG of {ours} less that of V1: {mean:+.4f} ({low:+.4f} to {high:+.4f})"
            )
            add(low > 0, text)
    return targets


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the tables and targets."""
    for name, one in summary["sets"].items():
        table = compact_table(
            f"{name}: {one['queries']} queries, MMR's balance {one['balance']}",
            "log-prob: of the right answer · over ...: lead of a learned selector in it, 95 % "
            "interval over frames or photos and seeds",
            ("examples",),
            ["log-prob", "accuracy", *(f"over {rival}" for rival in _RIVALS)],
        )
        for row in one["rows"]:
            leads = [row.get(f"logprob lead over {rival}") for rival in _RIVALS]
            table.add_row(
                f"{row['shots']} {row['examples']}" if row["shots"] else "none",
                f"{row['logprob'][0]:.3f}",
                f"{100 * row['accuracy'][0]:.1f} %",
                *("-" if lead is None else _lead(*lead) for lead in leads),
            )
        results().print(table)
    for target in summary["targets"]:
        print_text(f"{reached_or_not(target['met'])}: {target['text']}")


def _lead(mean: float, low: float, high: float) -> str:
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"
