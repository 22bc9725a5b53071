"""What goes wrong when a pruner is trained, and what helps: said while it happens.

The troubles are those that the two-stage pruning guide lists for its reader to look for in the log;
here the program looks itself. Remedies name our keys.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from eligo.errors import EligoError

TroubleName = Literal[
    "out_of_memory",
    "tokens_not_shrinking",
    "accuracy_falling",
    "discriminator_too_strong",
    "temperature_stuck",
]

_NOT_SHRUNK = 0.9  # part of the tokens that is "close to the original number"
_BIG_DROP = 0.03  # the guide's goal for accuracy
_SURE = 0.9  # a discriminator that is this sure of both sides teaches nothing

REMEDIES: dict[TroubleName, str] = {
    "out_of_memory": (
        "lower train.batch_size, raise train.gradient_accumulation, or store the host in bfloat16 "
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
class Trouble:
    """One thing that is wrong now."""

    name: TroubleName
    symptom: str

    @property
    def remedy(self) -> str:
        """What helps."""
        return REMEDIES[self.name]

    def __str__(self) -> str:
        return f"{self.name.replace('_', ' ')}: {self.symptom}; {self.remedy}"


def find_troubles(metrics: Mapping[str, float], fraction: float) -> list[Trouble]:
    """What the metrics of an evaluation show; `fraction` of the training is done.

    Looks at the metrics of `TokensTask.evaluate`; what they do not hold is not looked for.
    """
    found = (_shrinking(metrics), _accuracy(metrics, fraction), _discriminator(metrics))
    return [trouble for trouble in (*found, _temperature(metrics, fraction)) if trouble]


@contextmanager
def memory_guard(doing: str) -> Iterator[None]:
    """Turns running out of device memory into an error that says what helps."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        trouble = Trouble("out_of_memory", f"{doing} needs more memory than the device has")
        raise EligoError(str(trouble)) from error


def _shrinking(metrics: Mapping[str, float]) -> Trouble | None:
    kept = metrics.get("vision_keep_mean", 0.0)
    if kept <= _NOT_SHRUNK:
        return None
    merged, original = (metrics.get(f"avg_{name}_tokens") for name in ("merged", "original"))
    counts = f" ({merged:.0f} of {original:.0f} enter)" if merged and original else ""
    return Trouble(
        "tokens_not_shrinking", f"{100 * kept:.0f} % of the vision tokens are kept{counts}"
    )


def _accuracy(metrics: Mapping[str, float], fraction: float) -> Trouble | None:
    """Only of choices that are meant to be good already: when three quarters are done."""
    baseline, hard = metrics.get("accuracy_baseline"), metrics.get("accuracy_hard")
    if baseline is None or hard is None or fraction < 0.75 or baseline - hard <= _BIG_DROP:
        return None
    merged = metrics.get("accuracy_merge_only", hard)
    where = "most of it by merging" if baseline - merged > (baseline - hard) / 2 else "by the cuts"
    return Trouble(
        "accuracy_falling",
        f"{100 * hard:.1f} % right with tokens removed, {100 * baseline:.1f} % with all of them "
        f"({where})",
    )


def _discriminator(metrics: Mapping[str, float]) -> Trouble | None:
    real, fake = metrics.get("disc_prob_real"), metrics.get("disc_prob_fake")
    if real is None or fake is None or real <= _SURE or fake >= 1 - _SURE:
        return None
    return Trouble(
        "discriminator_too_strong",
        f"it takes {100 * real:.0f} % of the whole and {100 * fake:.0f} % of the pruned answers "
        "for whole ones; both near 50 % would mean that it cannot tell them apart",
    )


def _temperature(metrics: Mapping[str, float], fraction: float) -> Trouble | None:
    now, start, end = (
        metrics.get(name) for name in ("temperature", "temperature_start", "temperature_end")
    )
    if now is None or start is None or end is None or start == end:
        return None
    if now < start or fraction < 0.1:
        return None
    return Trouble(
        "temperature_stuck",
        f"it is still {now:.2f} after {100 * fraction:.0f} % of the steps, and should fall to "
        f"{end:.2f}",
    )
