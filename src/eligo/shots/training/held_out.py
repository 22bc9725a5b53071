"""Compare a trained selector with the untrained one and with simple baselines on held-out queries.

These queries also chose the best step, so the comparison favours the trained selector: if it is no
better here, it is unlikely to be better elsewhere. "Better" means that the paired 95 % interval of
the difference lies above 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from eligo.report.intervals import paired_bootstrap
from eligo.shots import metrics
from eligo.shots.data.records import EncodedRecord, RecordBatch, collate
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.pool.pool import Pool
from eligo.shots.training.task import record_metrics

Outcome = Literal["better", "unclear", "no better"]
_MESSAGES = {
    "no better": "on {queries} held-out {noun} this selector is no better than {baseline}",
    "unclear": "{queries} held-out queries are too few to show whether this selector is better "
    "than {baseline}",
}
_REMEDY = (
    "teach on more queries, train longer (--train.min_steps) or faster (--train.lr), or use the "
    "nearest examples instead"
)


class Ranked(NamedTuple):
    """Results of a model on the held-out queries."""

    values: Float[Tensor, " records"]
    """The metric of each query; NaN where there is nothing to rank."""
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
    """Queries whose picks differ from those of the untrained model."""
    outcome: Outcome
    """Against the untrained model and the nearest examples; unclear: too few queries."""
    remark: str | None
    """A warning, if it is not better."""


@torch.no_grad()
def ranked(
    model: PointerSelector, records: Sequence[EncodedRecord], pool: Pool, metric: str
) -> Ranked:
    """Evaluate a model on the held-out queries, in eval mode."""
    training = model.training
    values = record_metrics(model.eval(), records, pool)[metric].cpu()
    batch = collate(records, pool).to(next(model.parameters()).device)
    shots = batch.labels.shape[1]
    prediction = model.predict(batch.query, batch.candidates, shots=shots, cand_mask=batch.mask)
    model.train(training)
    return Ranked(values, prediction.predictions.tolist())


def compare(
    trained: Ranked, untrained: Ranked, records: Sequence[EncodedRecord], pool: Pool, metric: str
) -> HeldOut:
    """Compare the trained model with what needs no training."""
    batch = collate(records, pool)
    cosines = F.cosine_similarity(batch.query[:, None], batch.candidates, dim=-1)
    drawn = torch.rand(cosines.shape, generator=torch.Generator().manual_seed(0))
    rows = {
        "trained": trained.values,
        "untrained": untrained.values,
        "nearest": _metric_of(cosines, batch, metric),
        "random": _metric_of(drawn, batch, metric),
    }
    kept = ~torch.stack(list(rows.values())).isnan().any(0)
    rows = {name: values[kept] for name, values in rows.items()}
    means = {name: float(values.mean()) for name, values in rows.items()}
    changed = sum(a != b for a, b in zip(trained.picks, untrained.picks, strict=True))
    outcome, baseline = _outcome(rows, changed)
    remark = None
    if baseline is not None:
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
        numbers = f"{metric}: {numbers}; other picks than untrained for {changed} of {len(records)}"
        noun = "query" if len(records) == 1 else "queries"
        message = _MESSAGES[outcome].format(baseline=baseline, queries=len(records), noun=noun)
        remark = f"{message} ({numbers}); {_REMEDY}"
    return HeldOut(metric, len(records), **means, changed=changed, outcome=outcome, remark=remark)


def _outcome(rows: dict[str, Tensor], changed: int) -> tuple[Outcome, str | None]:
    """Return the outcome, and the baseline that the trained model does not beat."""
    baselines = {"an untrained one": rows["untrained"], "the nearest examples": rows["nearest"]}
    if not changed:
        return "no better", "an untrained one: it makes the same picks"
    for baseline, values in baselines.items():
        if not len(values) or float((rows["trained"] - values).mean()) <= 0:
            return "no better", baseline
    for baseline, values in baselines.items():
        _, low, _ = paired_bootstrap([(rows["trained"] - values).tolist()])
        if low <= 0 or len(values) < 2:  # one query has no interval
            return "unclear", baseline
    return "better", None


def _metric_of(
    logits: Float[Tensor, "records candidates"], batch: RecordBatch, metric: str
) -> Float[Tensor, " records"]:
    logits = logits.masked_fill(~batch.mask, -torch.inf)
    if metric == "ndcg" and batch.step_scores is not None:
        return metrics.ndcg(logits, batch.step_scores[:, 0], batch.labels.shape[1])
    return metrics.reciprocal_rank(logits, batch.labels)
