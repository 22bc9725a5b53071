"""Did a training teach anything? The trained model beside the untrained one, and simple baselines.

All rank the candidates of the held-out queries, the same that chose the best step, so what is no
better there is hardly better elsewhere. Better: the paired 95 % interval lies above 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from eligo.report.intervals import paired_bootstrap
from eligo.shots import metrics
from eligo.shots.data.records import Batch, Example, collate
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.pool.pool import Pool
from eligo.shots.training.task import values_over

Verdict = Literal["better", "unclear", "no better"]
_WORDS = {
    "no better": "on {queries} held-out queries this selector is no better than {baseline}",
    "unclear": "{queries} held-out queries are too few to say whether this selector is better than "
    "{baseline}",
}
_REMEDY = (
    "teach on more queries, train longer (--train.min_steps) or faster (--train.lr), or use the "
    "nearest examples instead"
)


class Ranked(NamedTuple):
    """What a model does with the held-out queries."""

    values: Float[Tensor, " examples"]
    """The metric of each; NaN where there is nothing to rank."""
    picks: list[list[int]]


@dataclass(frozen=True)
class HeldOut:
    """Means over the held-out queries."""

    metric: str
    queries: int
    trained: float
    untrained: float
    nearest: float
    random: float
    changed: int
    """Queries for which the picks are not those of the untrained model."""
    verdict: Verdict
    """Against the untrained model and the nearest examples; unclear: too few queries to say."""
    remark: str | None
    """What is to be said, if it is not better."""


@torch.no_grad()
def ranked(model: PointerSelector, examples: Sequence[Example], pool: Pool, metric: str) -> Ranked:
    """A model on the held-out queries, in evaluation mode."""
    training = model.training
    values = values_over(model.eval(), examples, pool)[metric].cpu()
    batch = collate(examples, pool).to(next(model.parameters()).device)
    shots = batch.labels.shape[1]
    found = model.predict(batch.query, batch.candidates, shots=shots, cand_mask=batch.mask)
    model.train(training)
    return Ranked(values, found.predictions.tolist())


def compare(
    trained: Ranked, untrained: Ranked, examples: Sequence[Example], pool: Pool, metric: str
) -> HeldOut:
    """What the training changed, and whether that is better than what needs none."""
    batch = collate(examples, pool)
    cosines = F.cosine_similarity(batch.query[:, None], batch.candidates, dim=-1)
    drawn = torch.rand(cosines.shape, generator=torch.Generator().manual_seed(0))
    rows = {
        "trained": trained.values,
        "untrained": untrained.values,
        "nearest": _rank(cosines, batch, metric),
        "random": _rank(drawn, batch, metric),
    }
    kept = ~torch.stack(list(rows.values())).isnan().any(0)
    rows = {name: values[kept] for name, values in rows.items()}
    means = {name: float(values.mean()) for name, values in rows.items()}
    changed = sum(a != b for a, b in zip(trained.picks, untrained.picks, strict=True))
    verdict, baseline = _judge(rows, changed)
    remark = None
    if baseline is not None:
        said = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
        numbers = f"{metric}: {said}; other picks than untrained for {changed} of {len(examples)}"
        remark = f"{_WORDS[verdict].format(baseline=baseline, queries=len(examples))} ({numbers})"
        remark = f"{remark}; {_REMEDY}"
    return HeldOut(metric, len(examples), **means, changed=changed, verdict=verdict, remark=remark)


def _judge(rows: dict[str, Tensor], changed: int) -> tuple[Verdict, str | None]:
    """How the trained model stands, and beside whom if it is not better."""
    baselines = {"an untrained one": rows["untrained"], "the nearest examples": rows["nearest"]}
    if not changed:
        return "no better", "an untrained one: it makes the same picks"
    for baseline, theirs in baselines.items():
        if not len(theirs) or float((rows["trained"] - theirs).mean()) <= 0:
            return "no better", baseline
    for baseline, theirs in baselines.items():
        _, low, _ = paired_bootstrap([(rows["trained"] - theirs).tolist()])
        if low <= 0:
            return "unclear", baseline
    return "better", None


def _rank(
    logits: Float[Tensor, "examples candidates"], batch: Batch, metric: str
) -> Float[Tensor, " examples"]:
    logits = logits.masked_fill(~batch.mask, -torch.inf)
    labels: Int[Tensor, "examples steps"] = batch.labels
    if metric == "ndcg" and batch.step_scores is not None:
        return metrics.ndcg(logits, batch.step_scores[:, 0], labels.shape[1])
    return metrics.reciprocal_rank(logits, labels)
