"""What the answers of an exam say: arms, comparisons with intervals, bars, shapes.

Everything is computed from which answers were right, question by question, so that the committed
results can be judged again without a model. Differences are in points of accuracy; intervals are
95 %, from a paired bootstrap over questions and trainings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.tokens.config import TWO_STAGE
from eligo.report.intervals import paired_bootstrap
from eligo.tokens.inference.answers import WHOLE, rows_of
from eligo.tokens.inference.evaluate import ALL

ORACLE = "oracle"
_MOST_LOST, _LEAST_SAVED = 3.0, 0.6
_LITTLE = 0.5  # points


@dataclass(frozen=True)
class Results:
    """Which answers were right, by arm and run; what arms cost."""

    families: Sequence[str]
    right: Mapping[str, str]
    """Arm, or `ARM#SEED` of a trained one: a 0 or a 1 for each question."""
    cost: Mapping[str, Mapping[str, Any]]
    allowed: Mapping[str, float]
    """FLOPs of each point."""
    resamples: int = 2000

    def packed(self) -> dict[str, Any]:
        """For a result file: four answers in a hexadecimal digit, families by number."""
        names = list(dict.fromkeys(self.families))
        codes = "".join(str(names.index(name)) for name in self.families)
        right = {arm: f"{int('1' + bits, 2):x}" for arm, bits in self.right.items()}
        answers = {"families": {"names": names, "codes": codes}, "right": right}
        return {"cost": self.cost, "allowed": self.allowed, "answers": answers}

    @classmethod
    def unpacked(cls, document: Mapping[str, Any]) -> "Results":
        """Of a result file."""
        coded, right = document["answers"]["families"], document["answers"]["right"]
        return cls(
            families=[coded["names"][int(code)] for code in coded["codes"]],
            right={arm: f"{int(digits, 16):b}"[1:] for arm, digits in right.items()},
            cost=document["cost"],
            allowed=document["allowed"],
            resamples=document["config"]["resamples"],
        )

    @property
    def arms(self) -> dict[str, list[str]]:
        """The runs of every arm."""
        arms: dict[str, list[str]] = {}
        for run in self.right:
            arms.setdefault(run.partition("#")[0], []).append(run)
        return arms

    def accuracies(self, arm: str) -> dict[str, float]:
        """Per cent right by family, mean over runs."""
        runs = [
            {row["family"]: 100 * row["accuracy"] for row in rows_of(self.families, right)}
            for right in ([bit == "1" for bit in self.right[run]] for run in self.arms[arm])
        ]
        return {family: sum(run[family] for run in runs) / len(runs) for family in runs[0]}

    def difference(self, arm: str, other: str, family: str = ALL) -> tuple[float, float, float]:
        """By how many points an arm is ahead, and the interval; a single run meets all runs.

        An arm that is a trained plan used otherwise (`ARM, HOW`) meets the same training.
        """
        ours, theirs = self.arms[arm], self.arms[other]
        if other.startswith(f"{arm}, ") and len(theirs) == 1:
            ours = ours[:1]
        count = max(len(ours), len(theirs))
        asked = [place for place, its in enumerate(self.families) if family in (its, ALL)]
        rows = [
            [
                100.0 * (int(self.right[mine][place]) - int(self.right[its][place]))
                for place in asked
            ]
            for mine, its in zip(_spread(ours, count), _spread(theirs, count), strict=True)
        ]
        return paired_bootstrap(rows, resamples=self.resamples)


def _spread(runs: list[str], count: int) -> list[str]:
    return [runs[number % len(runs)] for number in range(count)]


def judge(results: Results) -> dict[str, Any]:
    """All that the exam found, as JSON holds it."""
    comparisons = _comparisons(results)
    return {
        "arms": [_row(results, arm) for arm in results.arms],
        "comparisons": comparisons,
        "bars": [*_first_bar(results), *_second_bars(results, comparisons)],
        "shapes": _shapes(results),
    }


def _row(results: Results, arm: str) -> dict[str, Any]:
    runs = results.arms[arm]
    lost, low, high = results.difference(WHOLE, arm)
    cost = results.cost.get(runs[0], {})
    kept = ("kept", "layers", "vision_keep_mean", "flops_reduction_llm",
            "flops_reduction_with_selector", "flops_reduction_total")  # fmt: skip
    told = {name: cost[name] for name in kept if name in cost}
    drop = {"drop": lost, "drop_low": low, "drop_high": high}
    return {"arm": arm, "runs": len(runs), "accuracy": results.accuracies(arm), **drop, **told}


def _comparisons(results: Results) -> list[dict[str, Any]]:
    """Two stages against every baseline at the same point, overall and by family."""
    found = []
    for point in results.allowed:
        ours = f"{TWO_STAGE}_{point}"
        baselines = [arm for arm in results.arms if arm.endswith(f"@{point}")]
        for baseline in baselines if ours in results.arms else []:
            for family in (ALL, *dict.fromkeys(results.families)):
                mean, low, high = results.difference(ours, baseline, family)
                found.append(
                    {"point": point, "arm": ours, "baseline": baseline, "family": family}
                    | {"ahead": mean, "low": low, "high": high}
                )
    return found


def _first_bar(results: Results) -> list[dict[str, Any]]:
    """Little is lost and much is saved under the default plan."""
    if TWO_STAGE not in results.arms:
        return []
    lost, low, high = results.difference(WHOLE, TWO_STAGE)
    cost = results.cost[results.arms[TWO_STAGE][0]]
    saved, gone = cost["flops_reduction_with_selector"], 1 - cost["vision_keep_mean"]
    met = lost < _MOST_LOST and saved > _LEAST_SAVED and gone > _LEAST_SAVED
    said = (
        f"default plan: {lost:.2f} points lost ({low:.2f} to {high:.2f}; asked < {_MOST_LOST:g}), "
        f"{saved:.1%} of the language model's FLOPs saved with the selector counted and "
        f"{gone:.1%} of its vision tokens gone (asked > {_LEAST_SAVED:.0%} each)"
    )
    return [{"bar": "cheap", "met": met, "said": said}]


def _second_bars(results: Results, comparisons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ahead of every training-free method at equal cost, behind it in no family."""
    bars = []
    for point in results.allowed:
        mine = [
            one
            for one in comparisons
            if one["point"] == point and not one["baseline"].startswith(ORACLE)
        ]
        if not mine:
            continue
        overall = [one for one in mine if one["family"] == ALL]
        not_ahead = [one["baseline"] for one in overall if one["low"] <= 0]
        behind = [
            f"{one['baseline']} in {one['family']}"
            for one in mine
            if one["family"] != ALL and one["high"] < 0
        ]
        closest = min(overall, key=lambda one: one["ahead"])
        said = (
            f"point {point}: closest baseline {closest['baseline']}, two stages are "
            f"{closest['ahead']:+.2f} points ahead ({closest['low']:+.2f} to "
            f"{closest['high']:+.2f}); not significantly ahead of: {_listed(not_ahead)}; "
            f"significantly behind: {_listed(behind)}"
        )
        bars.append({"bar": f"ahead@{point}", "met": not not_ahead and not behind, "said": said})
    return bars


def _shapes(results: Results) -> list[dict[str, Any]]:
    """What others have published, looked for here."""
    arms, found = results.arms, []

    def see(claim: str, holds: bool, said: str) -> None:
        found.append({"claim": claim, "holds": holds, "said": said})

    def right(arm: str, family: str = ALL) -> float:
        return results.accuracies(arm)[family]

    points = list(results.allowed)
    if len(points) > 1:
        many, few = points[0], points[-1]
        fades = {
            baseline: right(f"{baseline}@{many}") - right(f"{baseline}@{few}")
            for baseline in ("fastv", "divprune", "tome")
            if f"{baseline}@{many}" in arms and f"{baseline}@{few}" in arms
        }
        if len(fades) > 1 and "fastv" in fades:
            others = {baseline: fade for baseline, fade in fades.items() if baseline != "fastv"}
            told = ", ".join(f"{baseline} {fade:.1f}" for baseline, fade in fades.items())
            see(
                f"FastV collapses from {many} to {few} %, diversity and merging fade slowly",
                fades["fastv"] > 2 * max(others.values()),
                f"points lost: {told}",
            )
    if "random@half" in arms:
        lost = results.difference(WHOLE, "random@half")[0]
        see("half of the tokens at random is decent", lost < 10, f"{lost:.1f} points lost")
    for name in (arm for arm in arms if f"{arm}, last cut by chance" in arms):
        late, low, high = results.difference(name, f"{name}, last cut by chance")
        early = results.difference(name, f"{name}, first cut by chance")[0]
        said = (
            f"{name}: chance costs {late:.1f} points at the last cut ({low:.1f} to {high:.1f}), "
            f"{early:.1f} at the first"
        )
        see("scores matter little in late layers", high < _LITTLE, said)
    for name in (arm for arm in arms if f"{arm}, positions reindexed" in arms):
        mean, low, high = results.difference(name, f"{name}, positions reindexed", "location")
        said = f"{name}: {mean:.1f} points of location lost ({low:.1f} to {high:.1f})"
        see("new positions hurt location", low > 0, said)
    for name in (arm for arm in arms if f"{arm}, sizes forgotten" in arms):
        mean, low, high = results.difference(name, f"{name}, sizes forgotten")
        said = f"{name}: {mean:.1f} points lost ({low:.1f} to {high:.1f})"
        see("log-size beats plain merging", low > 0, said)
    return found


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
