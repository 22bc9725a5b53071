"""Problems of a training run that can be read from its metrics, each with a remedy.

The list of problems is that of the two-stage pruning design (docs/sources.md); remedies name our
config keys.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from eligo.errors import EligoError

ProblemName = Literal["out_of_memory", "tokens_not_shrinking", "accuracy_falling",
                      "discriminator_too_strong", "temperature_stuck"]  # fmt: skip

_NOT_SHRUNK = 0.9  # share of kept tokens that counts as not shrinking
_BIG_DROP = 0.03  # accuracy that may be lost
_CONFIDENT = 0.9  # a discriminator with this probability on both sides gives no useful gradient
_LATE = 0.75  # fraction of the training after which accuracy should be good

REMEDIES: dict[ProblemName, str] = {
    "out_of_memory": (
        "lower train.batch_size, raise train.gradient_accumulation, or load the host in bfloat16 "
        "(host.dtype); for hosts that take images of any size lower data.max_vision_tokens or "
        "data.image_max_size"
    ),
    "tokens_not_shrinking": (
        "lower merger.ratio (or merger.budget) and pruners.budgets, or cut earlier "
        "(pruners.layers); losses.sparsity does not change how many are kept, budgets are exact"
    ),
    "accuracy_falling": (
        "raise losses.task, keep more (merger.ratio 0.6, larger pruners.budgets), cut later "
        "(pruners.layers), or use objective: distill; under objective: adversarial lower "
        "losses.adversarial"
    ),
    "discriminator_too_strong": (
        "lower optim.discriminator.lr (2e-4), raise discriminator.reinit_prob (0.1), turn on "
        "discriminator.spectral_norm, or raise losses.adversarial"
    ),
    "temperature_stuck": (
        "raise train.total_steps, or check temperature.start, temperature.end and "
        "temperature.anneal_fraction"
    ),
}


@dataclass(frozen=True)
class Problem:
    """A problem and its symptom."""

    name: ProblemName
    symptom: str

    def __str__(self) -> str:
        return f"{self.name.replace('_', ' ')}: {self.symptom}; {REMEDIES[self.name]}"


def find_problems(metrics: Mapping[str, float], fraction: float) -> list[Problem]:
    """Return the problems that the metrics of `TokensTask.evaluate` show.

    `fraction` of the training is done. Metrics that are missing are not checked.
    """
    problems = (
        _shrinking(metrics),
        _accuracy(metrics, fraction),
        _discriminator(metrics),
        _temperature(metrics, fraction),
    )
    return [problem for problem in problems if problem]


@contextmanager
def memory_guard(activity: str) -> Iterator[None]:
    """Replace an out-of-memory error by one with a remedy."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        symptom = f"{activity} needs more memory than the device has"
        raise EligoError(str(Problem("out_of_memory", symptom))) from error


def _shrinking(metrics: Mapping[str, float]) -> Problem | None:
    kept = metrics.get("vision_keep_mean", 0.0)
    if kept <= _NOT_SHRUNK:
        return None
    merged, original = (metrics.get(f"avg_{name}_tokens") for name in ("merged", "original"))
    counts = f" ({merged:.0f} of {original:.0f} enter)" if merged and original else ""
    return Problem(
        "tokens_not_shrinking", f"{100 * kept:.0f} % of the vision tokens are kept{counts}"
    )


def _accuracy(metrics: Mapping[str, float], fraction: float) -> Problem | None:
    baseline, hard = metrics.get("accuracy_baseline"), metrics.get("accuracy_hard")
    if baseline is None or hard is None or fraction < _LATE or baseline - hard <= _BIG_DROP:
        return None
    merged = metrics.get("accuracy_merge_only", hard)
    where = "most of it by merging" if baseline - merged > (baseline - hard) / 2 else "by the cuts"
    return Problem(
        "accuracy_falling",
        f"{100 * hard:.1f} % right with tokens removed, {100 * baseline:.1f} % with all of them "
        f"({where})",
    )


def _discriminator(metrics: Mapping[str, float]) -> Problem | None:
    real, fake = metrics.get("disc_prob_real"), metrics.get("disc_prob_fake")
    if real is None or fake is None or real <= _CONFIDENT or fake >= 1 - _CONFIDENT:
        return None
    return Problem(
        "discriminator_too_strong",
        f"it classifies {100 * real:.0f} % of the unpruned and {100 * fake:.0f} % of the pruned "
        "answers as unpruned; it should stay near 50 %",
    )


def _temperature(metrics: Mapping[str, float], fraction: float) -> Problem | None:
    names = ("temperature", "temperature_start", "temperature_end")
    now, start, end = (metrics.get(name) for name in names)
    if now is None or start is None or end is None or start == end or now < start or fraction < 0.1:
        return None
    return Problem(
        "temperature_stuck",
        f"it is still {now:.2f} after {100 * fraction:.0f} % of the steps, and should fall to "
        f"{end:.2f}",
    )
