"""Summary of the study: accuracies, comparisons with intervals, targets and findings.

Everything is computed from which answers were right, question by question, so that it can be
recomputed from the committed results, without a model. Differences are in points of accuracy;
intervals are 95 %, from a paired bootstrap over questions and trainings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.tokens.config import TWO_STAGE
from eligo.config import Config
from eligo.report.intervals import paired_bootstrap
from eligo.tokens.inference.evaluate import WHOLE
from eligo.tokens.metrics import ALL, accuracy_by_family

ORACLE = "oracle"
_MOST_LOST, _LEAST_SAVED = 3.0, 0.6
_LITTLE = 0.5  # points


@dataclass(frozen=True)
class Results:
    """Which answers were right, by variant and run, and the costs of the variants."""

    families: Sequence[str]
    right: Mapping[str, str]
    """By `VARIANT`, or `VARIANT#SEED` if it was trained: a 0 or a 1 for each question."""
    cost: Mapping[str, Mapping[str, Any]]
    allowed: Mapping[str, float]
    """FLOPs of each point."""
    resamples: int = 2000

    def packed(self) -> dict[str, Any]:
        """Return a compact form for a result file: four answers in a hexadecimal digit."""
        names = list(dict.fromkeys(self.families))
        codes = "".join(str(names.index(name)) for name in self.families)
        right = {name: f"{int('1' + bits, 2):x}" for name, bits in self.right.items()}
        answers = {"families": {"names": names, "codes": codes}, "right": right}
        return {"cost": self.cost, "allowed": self.allowed, "answers": answers}

    def document(
        self, outcome: Mapping[str, Any], config: Config, summary: Mapping[str, Any], *, quick: bool
    ) -> dict[str, Any]:
        """Return the result file of a study: when and where, settings, summary, answers."""
        settings = {"config": config.model_dump(mode="json"), "tuning": outcome["tuning"]}
        return outcome["measured"] | {"quick": quick} | settings | summary | self.packed()

    @classmethod
    def unpacked(cls, document: Mapping[str, Any]) -> "Results":
        """Read the compact form of a result file."""
        coded, right = document["answers"]["families"], document["answers"]["right"]
        return cls(
            families=[coded["names"][int(code)] for code in coded["codes"]],
            right={name: f"{int(digits, 16):b}"[1:] for name, digits in right.items()},
            cost=document["cost"],
            allowed=document["allowed"],
            resamples=document["config"]["resamples"],
        )

    @property
    def variants(self) -> dict[str, list[str]]:
        """The runs of every variant."""
        variants: dict[str, list[str]] = {}
        for run in self.right:
            variants.setdefault(run.partition("#")[0], []).append(run)
        return variants

    def accuracies(self, variant: str) -> dict[str, float]:
        """Return the percentage of right answers by family, mean over runs."""
        runs = [self.accuracies_of(run) for run in self.variants[variant]]
        return {family: sum(run[family] for run in runs) / len(runs) for family in runs[0]}

    def accuracies_of(self, run: str) -> dict[str, float]:
        """Return the percentage of right answers of one run by family."""
        rows = accuracy_by_family(self.families, [bit == "1" for bit in self.right[run]])
        return {row["family"]: 100 * row["accuracy"] for row in rows}

    def difference(self, variant: str, other: str, family: str = ALL) -> tuple[float, float, float]:
        """Return the lead of a variant over another in points, with interval.

        A single run is compared with all runs of the other; an ablation of a trained plan
        (`VARIANT, CHANGE`) only with the run that it changes.
        """
        ours, theirs = self.variants[variant], self.variants[other]
        if other.startswith(f"{variant}, ") and len(theirs) == 1:
            ours = ours[:1]
        count = max(len(ours), len(theirs))
        indices = [i for i, of_question in enumerate(self.families) if family in (of_question, ALL)]
        rows = [
            [100.0 * (int(self.right[run][i]) - int(self.right[other_run][i])) for i in indices]
            for run, other_run in zip(_cycled(ours, count), _cycled(theirs, count), strict=True)
        ]
        return paired_bootstrap(rows, resamples=self.resamples)


def _cycled(runs: list[str], count: int) -> list[str]:
    return [runs[number % len(runs)] for number in range(count)]


def summarise(results: Results) -> dict[str, Any]:
    """Return the summary as plain values."""
    comparisons = _comparisons(results)
    return {
        "variants": [_row(results, variant) for variant in results.variants],
        "comparisons": comparisons,
        "targets": [*_default_target(results), *_equal_cost_targets(results, comparisons)],
        "findings": _findings(results),
    }


def _row(results: Results, variant: str) -> dict[str, Any]:
    runs = results.variants[variant]
    lost, low, high = results.difference(WHOLE, variant)
    cost = results.cost.get(runs[0], {})
    kept = ("kept", "layers", "vision_keep_mean", "flops_reduction_llm",
            "flops_reduction_with_selector", "flops_reduction_total")  # fmt: skip
    return {
        "variant": variant,
        "runs": len(runs),
        "accuracy": results.accuracies(variant),
        "drop": lost,
        "drop_low": low,
        "drop_high": high,
        **{name: cost[name] for name in kept if name in cost},
    }


def _comparisons(results: Results) -> list[dict[str, Any]]:
    """Compare two stages with every baseline at the same point, overall and by family."""
    comparisons = []
    for point in results.allowed:
        ours = f"{TWO_STAGE}_{point}"
        baselines = [name for name in results.variants if name.endswith(f"@{point}")]
        for baseline in baselines if ours in results.variants else []:
            for family in (ALL, *dict.fromkeys(results.families)):
                mean, low, high = results.difference(ours, baseline, family)
                comparisons.append(
                    {"point": point, "variant": ours, "baseline": baseline, "family": family}
                    | {"ahead": mean, "low": low, "high": high}
                )
    return comparisons


def _default_target(results: Results) -> list[dict[str, Any]]:
    """Return the target of the default plan: little accuracy lost, many FLOPs saved."""
    if TWO_STAGE not in results.variants:
        return []
    lost, low, high = results.difference(WHOLE, TWO_STAGE)
    cost = results.cost[results.variants[TWO_STAGE][0]]
    saved, removed = cost["flops_reduction_with_selector"], 1 - cost["vision_keep_mean"]
    met = lost < _MOST_LOST and saved > _LEAST_SAVED and removed > _LEAST_SAVED
    text = (
        f"default plan: {lost:.2f} points lost ({low:.2f} to {high:.2f}; target < {_MOST_LOST:g}), "
        f"{saved:.1%} of the FLOPs of the language model saved, selector included, and "
        f"{removed:.1%} of its vision tokens removed (target > {_LEAST_SAVED:.0%} each)"
    )
    return [{"target": "default plan", "met": met, "text": text}]


def _equal_cost_targets(
    results: Results, comparisons: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the targets at equal cost: ahead of every method overall, behind in no family."""
    targets = []
    for point in results.allowed:
        rows = [
            row
            for row in comparisons
            if row["point"] == point and not row["baseline"].startswith(ORACLE)
        ]
        if not rows:
            continue
        overall = [row for row in rows if row["family"] == ALL]
        not_ahead = [row["baseline"] for row in overall if row["low"] <= 0]
        behind = [
            f"{row['baseline']} in {row['family']}"
            for row in rows
            if row["family"] != ALL and row["high"] < 0
        ]
        closest = min(overall, key=lambda row: row["ahead"])
        text = (
            f"point {point}: closest baseline {closest['baseline']}, two stages are "
            f"{closest['ahead']:+.2f} points ahead ({closest['low']:+.2f} to "
            f"{closest['high']:+.2f}); not significantly ahead of: {_listed(not_ahead)}; "
            f"significantly behind: {_listed(behind)}"
        )
        met = not not_ahead and not behind
        targets.append({"target": f"ahead@{point}", "met": met, "text": text})
    return targets


def _findings(results: Results) -> list[dict[str, Any]]:
    """Check claims of published work on these results."""
    variants, findings = results.variants, []

    def add(claim: str, holds: bool, text: str) -> None:
        findings.append({"claim": claim, "holds": holds, "text": text})

    def right(name: str) -> float:
        return results.accuracies(name)[ALL]

    points = list(results.allowed)
    if len(points) > 1:
        many, few = points[0], points[-1]
        lost = {
            baseline: right(f"{baseline}@{many}") - right(f"{baseline}@{few}")
            for baseline in ("fastv", "divprune", "tome")
            if f"{baseline}@{many}" in variants and f"{baseline}@{few}" in variants
        }
        if len(lost) > 1 and "fastv" in lost:
            others = [points for baseline, points in lost.items() if baseline != "fastv"]
            each = ", ".join(f"{baseline} {points:.1f}" for baseline, points in lost.items())
            add(
                f"FastV collapses from {many} to {few} %, diversity and merging fade slowly",
                lost["fastv"] > 2 * max(others),
                f"points lost: {each}",
            )
    if "random@half" in variants:
        points = results.difference(WHOLE, "random@half")[0]
        add("half of the tokens at random is decent", points < 10, f"{points:.1f} points lost")
    for name in (name for name in variants if f"{name}, last cut by chance" in variants):
        late, low, high = results.difference(name, f"{name}, last cut by chance")
        early = results.difference(name, f"{name}, first cut by chance")[0]
        text = (
            f"{name}: chance costs {late:.1f} points at the last cut ({low:.1f} to {high:.1f}), "
            f"{early:.1f} at the first"
        )
        add("scores matter little in late layers", high < _LITTLE, text)
    for claim, change, family in (
        ("new positions hurt location", "positions reindexed", "location"),
        ("log-size beats plain merging", "sizes forgotten", ALL),
    ):
        for name in (name for name in variants if f"{name}, {change}" in variants):
            mean, low, high = results.difference(name, f"{name}, {change}", family)
            of = "" if family == ALL else f" of {family}"
            add(claim, low > 0, f"{name}: {mean:.1f} points{of} lost ({low:.1f} to {high:.1f})")
    return findings


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
