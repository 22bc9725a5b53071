"""Base of the pointer selectors: two towers, the forward pass, `predict`.

    query ──┐ input_proj, dropout ──> (V2: attend to candidates) ──> query_proj ──┐
            │ (shared)                       ▲ state: each pick updates it        ├─ product
    cands ──┘                   ─────────────┴────────────────────> cand_proj ────┘
    score = (cosine of the given vectors + product) / T

At each step the best candidate that was not picked before is picked. `query_proj` starts at zero,
so a new model picks the nearest neighbours, and learns what to add to their cosine. Departures from
the published pointer-selector designs (docs/sources.md):
- Without `residual` the score is the cosine of the two projections alone, as in the designs. A new
  model then compares random projections, and picks worse than the nearest neighbours.
- Dropout acts after `input_proj`, not before the norm, where it would rotate the vector that is
  compared. The temperature is a saved buffer (`SimilarityScale`).
- Without a state the scores do not depend on the step: cross-entropy over the steps is then
  Plackett-Luce, in closed form, and greedy picking is a top-S. So V1 cannot react to its picks;
  with a `state` (gate, gru) it can.
- Label smoothing spreads over valid candidates only, and losses contain no large fill value.
- A repeated label is an ignored step, as in the designs' own example.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from eligo import losses, ops
from eligo.errors import InputError
from eligo.nn import SimilarityScale
from eligo.nn.contexts import without_autocast
from eligo.selection import Selection
from eligo.shots.config import AnyPointerConfig
from eligo.shots.model import checks
from eligo.shots.model.losses import (
    StepLoss,
    Steps,
    available,
    best_candidates,
    first_occurrences,
    over_rows,
    plackett_luce_steps,
    spread_beam_scores,
)

PointerT = TypeVar("PointerT", bound="PointerSelector")
_HEAD_NOISE = 0.01  # standard deviation of the towers' last layers around the identity


class PointerOutput(TypedDict):
    """Output of the forward pass."""

    loss: Float[Tensor, ""] | None
    """What to minimise; None without labels."""
    logits: Float[Tensor, "rows steps candidates"]
    """Float32; -inf where padded or picked before."""
    predictions: Int[Tensor, "rows steps"]
    """Best candidate of each step, given the labels before it (or its own picks); -1: none left."""
    ce_loss: Float[Tensor, ""] | None
    """Smoothed cross-entropy."""
    ranking_loss: Float[Tensor, ""] | None
    """Before its weight; None without scores."""
    num_ignored_steps: Int[Tensor, ""]
    """Steps without a label, or with one that was picked before."""


@dataclass(frozen=True, eq=False)
class PointerPrediction:
    """Output of `predict`; iterating yields predictions and scores, as in the published designs.

    With top_k > 1 a last axis holds the alternatives of each step along the greedy path, and
    `[..., 0]` is that path.
    """

    predictions: Int[Tensor, "batch steps *alternatives"]
    """Candidates; -1 where none is left."""
    scores: Float[Tensor, "batch steps *alternatives"]
    """Their logits at that step; -inf where none is left."""
    log_probs: Float[Tensor, "batch steps *alternatives"]
    """Log-softmax over what could be picked at that step; -inf where none is left."""
    selection: Selection
    """The greedy path, with the first step's logits as scores."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.predictions, self.scores))


class EncodedInputs(NamedTuple):
    """Projected query and candidates, before any pick."""

    query: Float[Tensor, "batch hidden"]
    candidates: Float[Tensor, "batch candidates hidden"]
    mask: Bool[Tensor, "batch candidates"]
    keys: Float[Tensor, "batch candidates hidden"]
    """Candidates as the query is compared with them."""
    memory: tuple[Tensor, ...]
    """What a version computes once (V0: keys and values of its layers)."""
    cosines: Float[Tensor, "batch candidates"] | None
    """Of the given vectors; None without `residual`."""

    def take(self, rows: Int[Tensor, " rows"]) -> "EncodedInputs":
        """Return some rows, which may repeat."""
        query, candidates, mask, keys = (part[rows] for part in self[:4])
        memory = tuple(part[rows] for part in self.memory)
        cosines = None if self.cosines is None else self.cosines[rows]
        return EncodedInputs(query, candidates, mask, keys, memory, cosines)


class PointerSelector(nn.Module):
    """Base of V0 to V3; a version decides how the query is encoded and how picks update it."""

    def __init__(self, config: AnyPointerConfig) -> None:
        super().__init__()
        self.config: Any = config  # a version narrows it
        self.label_smoothing = config.label_smoothing
        hidden = config.hidden_dim
        self.input_proj = nn.Linear(config.d_model, hidden, bias=False)
        self.query_proj = nn.Linear(hidden, hidden, bias=False)
        self.cand_proj = nn.Linear(hidden, hidden, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.scale = SimilarityScale("cosine", init=1 / config.temperature)
        # Xavier, then near the identity: products are at first those of projected embeddings.
        nn.init.xavier_uniform_(self.input_proj.weight)
        with torch.no_grad():
            for linear in (self.query_proj, self.cand_proj):
                nn.init.normal_(linear.weight, std=_HEAD_NOISE)
                linear.weight += torch.eye(*linear.weight.shape, device=linear.weight.device)
        if config.residual:
            nn.init.zeros_(self.query_proj.weight)

    @property
    def is_static(self) -> bool:
        """Whether scores do not depend on earlier picks."""
        raise NotImplementedError

    def _attend(self, query: Tensor, candidates: Tensor, mask: Tensor | None) -> Tensor:  # noqa: ARG002
        """Return the query (batch, hidden) after attention to the candidates, if any."""
        return query

    def _memory(self, candidates: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:  # noqa: ARG002
        return ()

    def _update(self, inputs: EncodedInputs, picks: Tensor, before: Tensor | None) -> Tensor:
        """Return the query after `picks` (batch, steps), from the one before the last of them."""
        raise NotImplementedError

    def _states(self, inputs: EncodedInputs, picks: Tensor) -> Tensor:
        """Return the query before each step and after the last; (batch, steps + 1, hidden)."""
        states = [self._update(inputs, picks[:, :0], None)]
        for step in range(picks.shape[1]):
            states.append(self._update(inputs, picks[:, : step + 1], states[-1]))
        return torch.stack(states, 1)

    def _ranking(self, steps: Steps) -> StepLoss | None:  # noqa: ARG002
        """Return the loss from the teacher's scores, if the version has one."""
        return None

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
        """Return the logits of every step; with labels (teacher forcing) the loss too.

        Labels are candidates in order of choice, -1 to ignore a step. `beam_scores` are the
        teacher's scores of the labels, `step_scores` of all candidates at each step, NaN for none.
        The loss is a mean over the steps of a row, then over rows by `weights`; rows without a
        label are left out. `rows` gives the query of each row of labels (default: its own), so
        that several beams share one encoding. `projected`: candidates come from `project`.
        """
        inputs = self._encode(query_emb, cand_emb, cand_mask, projected)
        if labels is None:
            logits, predictions = self._greedy(inputs, self.config.shot_num)
            zero = torch.zeros((), dtype=torch.int64, device=logits.device)
            return _output_without_loss(logits, predictions, zero)
        mask = inputs.mask if rows is None else inputs.mask[rows]
        checks.check_labels(labels, mask)
        # A padded label is an error where values may be read, else it is ignored.
        picks = first_occurrences(labels.masked_fill(~ops.gather(mask, labels), -1))
        left = available(picks, mask)
        valid = left[:, :-1]
        if self.is_static:
            scores = self._scores(inputs, inputs.query.unsqueeze(1))  # (batch, 1, candidates)
            scores = scores if rows is None else scores[rows]
        else:
            inputs = inputs if rows is None else inputs.take(rows)
            scores = self._scores(inputs, self._states(inputs, picks[:, :-1]))
            scores = scores[:, : picks.shape[1]]
        logits = torch.where(valid, scores, -torch.inf)
        output = _output_without_loss(logits, best_candidates(logits), (picks < 0).sum())
        if not return_loss:
            return output

        checks.check_weights(weights, len(picks))
        if self.is_static:
            steps = plackett_luce_steps(scores.squeeze(1), picks, left, self.label_smoothing)
        else:
            steps = losses.smoothed_cross_entropy(scores, picks, valid, self.label_smoothing)
        loss = output["ce_loss"] = over_rows(StepLoss(steps, picks >= 0), weights)
        checks.check_scores("beam_scores", beam_scores, tuple(picks.shape))
        checks.check_scores("step_scores", step_scores, tuple(valid.shape))
        dense = step_scores is not None
        if step_scores is None and beam_scores is not None:
            step_scores = spread_beam_scores(picks, beam_scores, valid.shape[-1])
        if step_scores is not None:
            ranked = Steps(scores.expand(valid.shape), valid, picks, step_scores, dense)
            ranking = self._ranking(ranked)
            if ranking is not None:
                output["ranking_loss"] = over_rows(ranking, weights)
                loss = loss + self.config.ranking_loss_weight * output["ranking_loss"]
        output["loss"] = loss
        return output

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

        `top_k` > 1 adds part step's next best candidates along the greedy path, on a last axis.
        Where no candidate is left: -1, with score -inf.
        """
        if shots is None:
            shots = int(self.config.shot_num)
        if top_k < 1 or shots < 0:
            raise InputError(f"predict: got top_k {top_k}, shots {shots}; expected >= 1 and >= 0")
        was_training = self.training
        self.eval()
        try:
            inputs = self._encode(query_emb, cand_emb, cand_mask, projected)
            logits, path = self._greedy(inputs, max(shots, 1))
        finally:
            self.train(was_training)
        first = logits[:, 0]
        logits, path = logits[:, :shots], path[:, :shots]
        valid = available(path, inputs.mask)[:, :-1]
        top = ops.top_k(logits, top_k, valid)  # (batch, shots, top_k)
        missing = top < 0
        scores = ops.gather(logits, top).masked_fill(missing, -torch.inf)
        log_probs = ops.gather(ops.masked_log_softmax(logits, valid), top)
        log_probs = log_probs.masked_fill(missing, -torch.inf)
        if top_k == 1:
            top, scores, log_probs = (part.squeeze(-1) for part in (top, scores, log_probs))
        return PointerPrediction(top, scores, log_probs, Selection(path, first, inputs.mask))

    def project(self, cand_emb: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch width"]:
        """Apply what is the same for all queries, once: `forward(..., projected=True)`.

        Returns the shared projection; with `residual`, after the unit vectors themselves.
        """
        if not self.config.residual:
            return self._hidden(cand_emb)
        return torch.cat([_unit(cand_emb), self._hidden(cand_emb).float()], -1)

    def query_tower(self, query_emb: Float[Tensor, "*batch d_model"]) -> Tensor:
        """Return vectors whose product with `candidate_tower` ranks as a static V1 does.

        With `residual` it is the score times the temperature, else the cosine.
        """
        return self._tower(self.query_proj, query_emb)

    def candidate_tower(self, cand_emb: Float[Tensor, "*batch d_model"]) -> Tensor:
        """Return the vectors to index; see `query_tower`."""
        return self._tower(self.cand_proj, cand_emb)

    def _tower(self, head: nn.Linear, embeddings: Tensor) -> Tensor:
        last = head(self._hidden(embeddings)).float()
        if self.config.residual:
            return torch.cat([_unit(embeddings), last], -1)
        return F.normalize(last, dim=-1)

    def _hidden(self, embeddings: Tensor) -> Tensor:
        """Apply the shared projection; with `residual`, to unit vectors."""
        embeddings = _unit(embeddings) if self.config.residual else embeddings
        return self.input_proj(embeddings.to(self.input_proj.weight.dtype))

    def save_pretrained(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
        """Write a folder for `from_pretrained`; `dtype` torch.float16 halves it."""
        from eligo.shots.model.pretrained import save_pointer

        save_pointer(self, folder, dtype)

    @classmethod
    def from_pretrained(cls: type[PointerT], name: str | Path) -> PointerT:
        """Load a model of this version (any version: `PointerSelector`), float32, in eval mode.

        `name` is a folder (of a model, run, checkpoint or selector), a model shipped with eligo, or
        a name on the hub.
        """
        from eligo.shots.model.pretrained import load_pointer

        loaded = load_pointer(name)
        if not isinstance(loaded, cls):
            raise InputError(f"{name}: holds a {type(loaded).__name__}, not a {cls.__name__}")
        return loaded

    def _encode(
        self, query_emb: Tensor, cand_emb: Tensor, mask: Tensor | None, projected: bool
    ) -> EncodedInputs:
        width, residual = self.config.d_model, self.config.residual
        hidden = self.config.hidden_dim
        cand_dim = (width + hidden if residual else hidden) if projected else width
        checks.check_shapes(query_emb, cand_emb, mask, query_dim=width, cand_dim=cand_dim)
        if mask is not None:
            # A NaN in padding would reach the gradient of the projections, as 0 * NaN.
            cand_emb = cand_emb.masked_fill(~mask.unsqueeze(-1), 0.0)
        query, cosines = self._hidden(query_emb), None
        given, candidates = cand_emb, cand_emb
        if not projected:
            candidates = self._hidden(cand_emb)
        elif residual:
            given, candidates = cand_emb.split([width, hidden], -1)
            candidates = candidates.to(query.dtype)
        checks.check_embeddings("query_emb", query_emb, query)
        checks.check_embeddings("cand_emb", cand_emb, candidates, mask)
        if residual:
            with without_autocast(query.device):
                cosines = torch.einsum("bd,bcd->bc", _unit(query_emb), _unit(given))
        candidates = self.dropout(candidates)
        query = self._attend(self.dropout(query), candidates, mask)
        memory = self._memory(candidates, mask)
        if mask is None:
            mask = torch.ones(cand_emb.shape[:2], dtype=torch.bool, device=cand_emb.device)
        keys = self.cand_proj(candidates)
        return EncodedInputs(query, candidates, mask, keys, memory, cosines)

    def _scores(self, inputs: EncodedInputs, states: Tensor) -> Tensor:
        """Return the scores of all candidates in each state; (batch, states, candidates)."""
        queries = self.query_proj(states)
        if inputs.cosines is None:
            return self.scale(queries, inputs.keys)
        with without_autocast(queries.device):
            products = queries.float() @ inputs.keys.float().mT
            return self.scale.scale * (inputs.cosines.unsqueeze(1) + products)

    def _greedy(self, inputs: EncodedInputs, shots: int) -> tuple[Tensor, Tensor]:
        """Return masked logits of each step (batch, shots, candidates) and picks (batch, shots)."""
        mask = inputs.mask
        if self.is_static:
            scores = self._scores(inputs, inputs.query.unsqueeze(1))
            path = ops.top_k(scores.squeeze(1), shots, mask)
            return torch.where(available(path, mask)[:, :-1], scores, -torch.inf), path
        free, path = mask, mask.new_zeros((len(mask), 0), dtype=torch.int64)
        state, logits = None, []
        for _ in range(shots):
            state = self._update(inputs, path, state)
            scores = self._scores(inputs, state.unsqueeze(1)).squeeze(1)
            pick = ops.top_k(scores, 1, free)
            logits.append(torch.where(free, scores, -torch.inf))
            free = free & ~ops.kept_mask(pick, free.shape[-1])
            path = torch.cat([path, pick], 1)
        return torch.stack(logits, 1), path


def _unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors.float(), dim=-1)


def _output_without_loss(logits: Tensor, predictions: Tensor, num_ignored: Tensor) -> PointerOutput:
    return {
        "loss": None,
        "logits": logits,
        "predictions": predictions,
        "ce_loss": None,
        "ranking_loss": None,
        "num_ignored_steps": num_ignored,
    }
