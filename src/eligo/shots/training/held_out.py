"""Compare a trained selector with what needs no training on held-out queries.

A pick is worth the teacher's score of it, at every step after the teacher's own picks before it
(without scores: 1 if it is the teacher's pick). Nearest neighbours and MMR choose among the same
candidates; those of the samplers `nearest` and `nearest_random` contain what both would take from
the whole pool. MMR's balance is the best on the training records.

These queries also chose the best step, so the comparison favours the trained selector: if it is no
better here, it is unlikely to be better elsewhere. "Better" means that the paired 95 % interval of
the difference lies above 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from eligo import ops
from eligo.report.intervals import paired_bootstrap
from eligo.shots.baselines.mmr import LAMBDAS
from eligo.shots.data.records import EncodedRecord, RecordBatch, collate
from eligo.shots.model.losses import available, best_candidates
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.pool.pool import Pool
from eligo.shots.training.task import PointerTask, call

Outcome = Literal["better", "unclear", "no better"]
Kept = Literal["learned", "nearest", "mmr"]
_NAMES = {"nearest": "the nearest examples", "mmr": "MMR", "untrained": "an untrained one"}
_BATCH = 256
_BALANCE = 0.5
_REMEDY = "teach on more queries, or train longer (--train.min_steps)"


@dataclass(frozen=True)
class HeldOut:
    """Mean worth of a pick on the held-out queries."""

    queries: int
    trained: float
    untrained: float
    nearest: float
    mmr: float
    random: float
    balance: float
    """Of MMR: its lambda."""
    changed: int
    """Queries whose picks differ from those of the untrained model."""
    outcome: Outcome
    """Against the untrained model, the nearest examples and MMR; unclear: too few queries."""
    kept: Kept
    """The selector that is used: the learned one, or a simple one if that is no worse."""
    remark: str | None
    """A warning, if it is not better."""


@torch.no_grad()
def compare(trained: PointerSelector, untrained: PointerSelector, task: PointerTask) -> HeldOut:
    """Compare a trained model with the same one before training, and with simple selectors."""
    held_out, pool = task.validation, task.pool
    balance = _best_balance(task.training, pool)
    picks = {
        "trained": _picks(trained, held_out, pool),
        "untrained": _picks(untrained, held_out, pool),
    }
    batch = collate(held_out, pool)
    drawn = torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(0))
    rows = {
        **{name: _worth(batch, chosen) for name, chosen in picks.items()},
        "nearest": _worth(batch, _greedy(batch, _cosines(batch), balance=1.0)),
        "mmr": _worth_of_mmr(held_out, pool, balance),
        "random": _worth(batch, _greedy(batch, drawn, balance=1.0)),
    }
    kept = ~torch.stack(list(rows.values())).isnan().any(0)
    rows = {name: values[kept] for name, values in rows.items()}
    means = {name: float(values.mean()) for name, values in rows.items()}
    changed = int((picks["trained"] != picks["untrained"]).any(1).sum())
    outcome, rival = _outcome(rows, changed)
    simple: Kept = "mmr" if means["mmr"] > means["nearest"] else "nearest"
    keep: Kept = simple if outcome == "no better" else "learned"
    remark = None
    if rival is not None:
        noun = "query" if len(held_out) == 1 else "queries"
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
        numbers += f"; other picks than untrained for {changed} of {len(held_out)}"
        says = f"on {len(held_out)} held-out {noun} the learned selector is no better than {rival}"
        if outcome == "unclear":
            says = f"too few to show that the learned selector is better than {rival}"
            says = f"{len(held_out)} held-out {noun}: {says}"
        remark = f"{says} (worth of a pick: {numbers}); {_REMEDY}"
    return HeldOut(
        len(held_out), **means, balance=balance, changed=changed, outcome=outcome, kept=keep,
        remark=remark,
    )  # fmt: skip


def _outcome(rows: dict[str, Tensor], changed: int) -> tuple[Outcome, str | None]:
    """Return the outcome, and what the trained model does not beat."""
    if not changed:
        return "no better", "an untrained one: it makes the same picks"
    for name in _NAMES:
        if not len(rows[name]) or float((rows["trained"] - rows[name]).mean()) <= 0:
            return "no better", _NAMES[name]
    for name in _NAMES:
        _, low, _ = paired_bootstrap([(rows["trained"] - rows[name]).tolist()])
        if low <= 0 or len(rows[name]) < 2:  # one query has no interval
            return "unclear", _NAMES[name]
    return "better", None


def _picks(
    model: PointerSelector, records: Sequence[EncodedRecord], pool: Pool
) -> Int[Tensor, "records steps"]:
    """Return the pick of every step after the teacher's picks before it."""
    device, parts = next(model.parameters()).device, []
    steps = max(len(record.labels) for record in records)
    for first in range(0, len(records), _BATCH):
        batch = collate(records[first : first + _BATCH], pool).to(device)
        picks = call(model, batch)["predictions"].cpu()
        parts.append(F.pad(picks, (0, steps - picks.shape[1]), value=-1))
    return torch.cat(parts)


def _best_balance(records: Sequence[EncodedRecord], pool: Pool) -> float:
    """Return MMR's best lambda on records, the largest of equals; 0.5 for lists of one."""
    if max(len(record.labels) for record in records) < 2:
        return _BALANCE
    return max(
        reversed(LAMBDAS), key=lambda one: float(_worth_of_mmr(records, pool, one).nanmean())
    )


def _worth_of_mmr(
    records: Sequence[EncodedRecord], pool: Pool, balance: float
) -> Float[Tensor, " records"]:
    parts = []
    for first in range(0, len(records), _BATCH):
        batch = collate(records[first : first + _BATCH], pool)
        parts.append(_worth(batch, _greedy(batch, _cosines(batch), balance)))
    return torch.cat(parts)


def _cosines(batch: RecordBatch) -> Float[Tensor, "records candidates"]:
    return F.cosine_similarity(batch.query[:, None], batch.candidates, dim=-1)


def _left(batch: RecordBatch) -> Bool[Tensor, "records steps candidates"]:
    return available(batch.labels, batch.mask)[:, :-1]


def _greedy(
    batch: RecordBatch, relevance: Float[Tensor, "records candidates"], balance: float
) -> Int[Tensor, "records steps"]:
    """Return the pick of every step by relevance less similarity to the teacher's earlier picks."""
    units = F.normalize(batch.candidates, dim=-1)
    likeness = units @ ops.gather(units, batch.labels).mT  # (records, candidates, steps)
    redundancy = torch.zeros_like(likeness)
    if likeness.shape[-1] > 1:
        redundancy[..., 1:] = likeness.cummax(-1).values[..., :-1]
    scores = balance * relevance.unsqueeze(-1) - (1 - balance) * redundancy
    return best_candidates(torch.where(_left(batch), scores.mT, -torch.inf))


def _worth(batch: RecordBatch, picks: Int[Tensor, "records steps"]) -> Float[Tensor, " records"]:
    """Return the mean score of a record's picks; NaN without any."""
    if batch.step_scores is None:
        values = (picks == batch.labels).float()
    else:
        values = ops.gather(batch.step_scores, picks.unsqueeze(-1)).squeeze(-1)
    return torch.where((batch.labels >= 0) & (picks >= 0), values, torch.nan).nanmean(1)
