"""What all pointer selectors share: the two towers, a call, `predict`. Guides V2 and V3, section 3.

    query ──┐ input_proj, dropout ──> (V2: look at the candidates) ──> query_proj ──┐
            │ (shared)                        ▲ state: each pick moves it           ├─ cosine / T
    cands ──┘                    ─────────────┴───────────────────> cand_proj ──────┘

At each step the best candidate that was not picked before is picked. Departures from the guides:
- Dropout acts after `input_proj`, not before the norm, where it turns the very vector that is
  compared. The temperature is a saved buffer (`SimilarityScale`).
- Without a state the scores do not depend on the step: cross-entropy over the steps is then
  Plackett-Luce, in closed form, and greedy picking is a top-S. So V1 cannot react to its picks;
  `state` (gate, gru) is how it can.
- Smoothing spreads over valid candidates only, and losses never see a large fill.
- A repeated label is an ignored step, as the guides' own example has them.
"""

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eligo import losses, ops
from eligo.errors import InputError
from eligo.nn import SimilarityScale
from eligo.selection import Selection
from eligo.shots.model import checks
from eligo.shots.model.closed_form import plackett_luce_steps
from eligo.shots.model.config import PointerConfig
from eligo.shots.model.output import PointerOutput, PointerPrediction
from eligo.shots.model.ranking import StepLoss, Steps, spread_beam_scores
from eligo.shots.model.steps import available, best_candidates, first_occurrences, over_rows

PointerT = TypeVar("PointerT", bound="PointerSelector")
_HEAD_NOISE = 0.01  # how far the towers' last layers start from the identity


class Entered(NamedTuple):
    """Query and candidates inside the model, before any pick."""

    query: Float[Tensor, "batch hidden"]
    candidates: Float[Tensor, "batch candidates hidden"]
    mask: Bool[Tensor, "batch candidates"]
    keys: Float[Tensor, "batch candidates hidden"]
    """What the query is compared with."""
    memory: tuple[Tensor, ...]
    """What a version wants to compute once (V0: keys and values of its layers)."""

    def take(self, rows: Int[Tensor, " rows"]) -> "Entered":
        """Some rows, or one several times."""
        memory = tuple(part[rows] for part in self.memory)
        query, candidates, mask, keys = (part[rows] for part in self[:4])
        return Entered(query, candidates, mask, keys, memory)


class PointerSelector(nn.Module):
    """Base of V0 to V3; a version says how the query enters and how picks move it."""

    def __init__(self, config: PointerConfig, label_smoothing: float) -> None:
        super().__init__()
        self.config: Any = config  # a version narrows it
        self.label_smoothing = label_smoothing
        hidden = config.hidden_dim
        self.input_proj = nn.Linear(config.d_model, hidden, bias=False)
        self.query_proj = nn.Linear(hidden, hidden, bias=False)
        self.cand_proj = nn.Linear(hidden, hidden, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.scale = SimilarityScale("cosine", init=1 / config.temperature)
        self._reset_towers()

    @torch.no_grad()
    def _reset_towers(self) -> None:
        """Xavier, then near the identity: at first, cosines are those of projected embeddings."""
        nn.init.xavier_uniform_(self.input_proj.weight)
        for linear in (self.query_proj, self.cand_proj):
            nn.init.normal_(linear.weight, std=_HEAD_NOISE)
            linear.weight += torch.eye(*linear.weight.shape, device=linear.weight.device)

    # ------------------------------------------------------------ what a version decides

    @property
    def is_static(self) -> bool:
        """Whether scores stay the same whatever was picked."""
        raise NotImplementedError

    def _look(self, query: Tensor, candidates: Tensor, mask: Tensor | None) -> Tensor:  # noqa: ARG002
        """The query after it saw the candidates; (batch, hidden)."""
        return query

    def _memory(self, candidates: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:  # noqa: ARG002
        return ()

    def _move(self, entered: Entered, picks: Tensor, before: Tensor | None) -> Tensor:
        """The query after `picks` (batch, steps); `before` is it before the last of them."""
        raise NotImplementedError

    def _path(self, entered: Entered, picks: Tensor) -> Tensor:
        """The query before each step, and after the last; (batch, steps + 1, hidden)."""
        states = [self._move(entered, picks[:, :0], None)]
        for step in range(picks.shape[1]):
            states.append(self._move(entered, picks[:, : step + 1], states[-1]))
        return torch.stack(states, 1)

    def _ranking(self, steps: Steps) -> StepLoss | None:  # noqa: ARG002
        """A loss beside cross-entropy, from the teacher's scores."""
        return None

    # ------------------------------------------------------------ a call

    def forward(
        self,
        query_emb: Float[Tensor, "batch d_model"],
        cand_emb: Float[Tensor, "batch candidates cand_dim"],
        labels: Int[Tensor, "rows steps"] | None = None,
        *,
        cand_mask: Bool[Tensor, "batch candidates"] | None = None,
        beam_scores: Float[Tensor, "rows steps"] | None = None,
        step_scores: Float[Tensor, "rows steps candidates"] | None = None,
        weights: Float[Tensor, " rows"] | None = None,
        rows: Int[Tensor, " rows"] | None = None,
        return_loss: bool = True,
        projected: bool = False,
    ) -> PointerOutput:
        """Logits of every step; with labels (teacher forcing) the loss too.

        Labels are candidates in order of choice, -1 to ignore a step. `beam_scores` are the
        teacher's scores of the labels, `step_scores` of all candidates at each step, NaN for none.
        The loss is a mean over the steps of a row, then over rows by `weights`; rows without a
        single step to learn are left out. `rows` says which query each row of labels is for
        (default: its own), so that several beams share one look at the candidates. `projected`:
        candidates come from `project`.
        """
        entered = self._enter(query_emb, cand_emb, cand_mask, projected)
        if labels is None:
            logits, predictions = self._greedy(entered, self.config.shot_num)
            nothing = torch.zeros((), dtype=torch.int64, device=logits.device)
            return _output(None, logits, predictions, None, None, nothing)
        mask = entered.mask if rows is None else entered.mask[rows]
        checks.check_labels(labels, mask)
        # A label that is padding is an error where values may be looked at, else it is ignored.
        picks = first_occurrences(labels.masked_fill(~ops.gather(mask, labels), -1))
        left = available(picks, mask)
        valid = left[:, :-1]
        if self.is_static:
            scores = self._scores(entered, entered.query.unsqueeze(1))  # (batch, 1, candidates)
            scores = scores if rows is None else scores[rows]
        else:
            entered = entered if rows is None else entered.take(rows)
            scores = self._scores(entered, self._path(entered, picks[:, :-1]))
            scores = scores[:, : picks.shape[1]]
        logits = torch.where(valid, scores, -torch.inf)
        predictions = best_candidates(logits)
        num_ignored = (picks < 0).sum()
        if not return_loss:
            return _output(None, logits, predictions, None, None, num_ignored)

        checks.check_weights(weights, len(picks))
        if self.is_static:
            steps = plackett_luce_steps(scores.squeeze(1), picks, left, self.label_smoothing)
        else:
            steps = losses.smoothed_cross_entropy(scores, picks, valid, self.label_smoothing)
        cross_entropy = over_rows(StepLoss(steps, picks >= 0), weights)
        ranking = self._ranking_loss(
            scores, valid, picks, beam_scores=beam_scores, step_scores=step_scores, weights=weights
        )
        loss = cross_entropy
        if ranking is not None:
            loss = loss + self.config.ranking_loss_weight * ranking
        return _output(loss, logits, predictions, cross_entropy, ranking, num_ignored)

    @torch.no_grad()
    def predict(
        self,
        query_emb: Float[Tensor, "batch d_model"],
        cand_emb: Float[Tensor, "batch candidates cand_dim"],
        top_k: int = 1,
        *,
        shots: int | None = None,
        cand_mask: Bool[Tensor, "batch candidates"] | None = None,
        projected: bool = False,
    ) -> PointerPrediction:
        """Pick greedily, `shots` times (default: the config's), without dropout or gradient.

        `top_k` > 1 adds each step's next best candidates along the greedy path, on a last axis.
        Where no candidate is left: -1, with score -inf.
        """
        if shots is None:
            shots = int(self.config.shot_num)
        if top_k < 1 or shots < 0:
            raise InputError(f"predict: got top_k {top_k}, shots {shots}; expected >= 1 and >= 0")
        was_training = self.training
        self.eval()
        try:
            entered = self._enter(query_emb, cand_emb, cand_mask, projected)
            logits, path = self._greedy(entered, max(shots, 1))
        finally:
            self.train(was_training)
        first = logits[:, 0]
        logits, path = logits[:, :shots], path[:, :shots]
        valid = available(path, entered.mask)[:, :-1]
        found = ops.top_k(logits, top_k, valid)  # (batch, shots, top_k)
        missing = found < 0
        scores = ops.gather(logits, found).masked_fill(missing, -torch.inf)
        log_probs = ops.gather(ops.masked_log_softmax(logits, valid), found)
        log_probs = log_probs.masked_fill(missing, -torch.inf)
        if top_k == 1:
            found, scores, log_probs = (each.squeeze(-1) for each in (found, scores, log_probs))
        return PointerPrediction(found, scores, log_probs, Selection(path, first, entered.mask))

    def project(self, cand_emb: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch hidden"]:
        """What does not depend on the query, to do once: `forward(..., projected=True)`."""
        return self.input_proj(cand_emb.to(self.input_proj.weight.dtype))

    def query_tower(self, query_emb: Float[Tensor, "*batch d_model"]) -> Tensor:
        """Unit vectors; the logit of a static selector is their product with `candidate_tower`'s,
        over the temperature."""
        return nn.functional.normalize(self.query_proj(self.project(query_emb)).float(), dim=-1)

    def candidate_tower(self, cand_emb: Float[Tensor, "*batch d_model"]) -> Tensor:
        """Unit vectors to index once; see `query_tower`."""
        return nn.functional.normalize(self.cand_proj(self.project(cand_emb)).float(), dim=-1)

    # ------------------------------------------------------------ files

    def save_pretrained(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
        """Write a folder for `from_pretrained`; `dtype` torch.float16 halves it."""
        from eligo.shots.model.pretrained import save_pointer

        save_pointer(self, folder, dtype)

    @classmethod
    def from_pretrained(cls: type[PointerT], name: str | Path) -> PointerT:
        """A model of this version (of any: `PointerSelector`), float32, in evaluation mode.

        By its folder (or that of a run, a checkpoint, a selector), by the name of one that comes
        with eligo, or by its name on the hub.
        """
        from eligo.shots.model.pretrained import load_pointer

        found = load_pointer(name)
        if not isinstance(found, cls):
            raise InputError(f"{name}: holds a {type(found).__name__}, not a {cls.__name__}")
        return found

    # ------------------------------------------------------------ inside

    def _enter(
        self, query_emb: Tensor, cand_emb: Tensor, mask: Tensor | None, projected: bool
    ) -> Entered:
        config = self.config
        dims = {
            "query_emb": config.d_model,
            "cand_emb": config.hidden_dim if projected else config.d_model,
        }
        checks.check_shapes(query_emb, cand_emb, mask, dims=dims)
        if mask is not None:
            # A NaN in padding would reach the gradient of the projections, as 0 * NaN.
            cand_emb = cand_emb.masked_fill(~mask.unsqueeze(-1), 0.0)
        query, candidates = self.project(query_emb), cand_emb
        if not projected:
            candidates = self.project(cand_emb)
        checks.check_embeddings("query_emb", query_emb, query)
        checks.check_embeddings("cand_emb", cand_emb, candidates, mask)
        candidates = self.dropout(candidates)
        query = self._look(self.dropout(query), candidates, mask)
        memory = self._memory(candidates, mask)
        if mask is None:
            mask = torch.ones(cand_emb.shape[:2], dtype=torch.bool, device=cand_emb.device)
        return Entered(query, candidates, mask, self.cand_proj(candidates), memory)

    def _scores(self, entered: Entered, states: Tensor) -> Tensor:
        return self.scale(self.query_proj(states), entered.keys)  # (batch, states, candidates)

    def _greedy(self, entered: Entered, shots: int) -> tuple[Tensor, Tensor]:
        """Masked logits of each step (batch, shots, candidates) and the picks (batch, shots)."""
        if self.is_static:
            scores = self._scores(entered, entered.query.unsqueeze(1))
            path = ops.top_k(scores.squeeze(1), shots, entered.mask)
            return torch.where(available(path, entered.mask)[:, :-1], scores, -torch.inf), path
        free, path = entered.mask, _no_picks(entered)
        state, logits = None, []
        for _ in range(shots):
            state = self._move(entered, path, state)
            scores = self._scores(entered, state.unsqueeze(1)).squeeze(1)
            pick = ops.top_k(scores, 1, free)
            logits.append(torch.where(free, scores, -torch.inf))
            free = free & ~ops.kept_mask(pick, free.shape[-1])
            path = torch.cat([path, pick], 1)
        return torch.stack(logits, 1), path

    def _ranking_loss(
        self,
        scores: Tensor,
        valid: Tensor,
        picks: Tensor,
        *,
        beam_scores: Tensor | None,
        step_scores: Tensor | None,
        weights: Tensor | None,
    ) -> Tensor | None:
        checks.check_scores("beam_scores", beam_scores, tuple(picks.shape))
        checks.check_scores("step_scores", step_scores, tuple(valid.shape))
        if step_scores is not None:
            taught = step_scores
        elif beam_scores is not None:
            taught = spread_beam_scores(picks, beam_scores, valid.shape[-1])
        else:
            return None
        dense = step_scores is not None
        ranking = self._ranking(Steps(scores.expand(valid.shape), valid, picks, taught, dense))
        return None if ranking is None else over_rows(ranking, weights)


def _output(loss, logits, predictions, ce_loss, ranking_loss, num_ignored_steps) -> PointerOutput:
    return {
        "loss": loss,
        "logits": logits,
        "predictions": predictions,
        "ce_loss": ce_loss,
        "ranking_loss": ranking_loss,
        "num_ignored_steps": num_ignored_steps,
    }


def _no_picks(entered: Entered) -> Tensor:
    return entered.mask.new_zeros((len(entered.mask), 0), dtype=torch.int64)
