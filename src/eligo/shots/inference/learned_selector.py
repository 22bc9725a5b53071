"""LearnedSelector: a pointer selector with its pool, for one query at a time.

    pool ──> tower (V1), once ──> index ──┐
    query ──> tower ──> the 64 nearest ───┴──> the model picks among them, step by step

A small pool goes to the model whole. V1 and V3 without a state are their own tower; `fit` gives the
others a V1 of their size, fitted on the same records. Without a tower they score all candidates.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from eligo.config.bounds import check_count
from eligo.errors import InputError
from eligo.io.tensors import save_tensors
from eligo.shots.config import (
    DEFAULT,
    NAMED,
    AnyPointerConfig,
    FitConfig,
    PointerConfig,
    PointerSelectorV1Config,
)
from eligo.shots.data.query import Query
from eligo.shots.data.records import Record
from eligo.shots.model.pointer import PointerPrediction, PointerSelector
from eligo.shots.model.pretrained import build_model, build_saved
from eligo.shots.pool.index import PoolIndex
from eligo.shots.pool.pool import Pool
from eligo.shots.selector import PoolSelector, ScoredPicks
from eligo.shots.training.held_out import HeldOut, compare
from eligo.shots.training.task import fit_pointer, fit_task
from eligo.train import load_weights, save_weights
from eligo.train.rng import seed_everything
from eligo.train.weights import read_tensors

_log = logging.getLogger("eligo.shots")
_INDEX, _ROWS = "index", "rows.safetensors"


class Option(NamedTuple):
    """A candidate at one step."""

    id: str
    score: float
    """Its logit."""
    probability: float
    """Softmax over what could be picked."""


class LearnedSelector(PoolSelector):
    """`LearnedSelector().fit(records, pool).select(query, shots=4)`.

    The model is a name (v0, v1, v2, v2_gru, v3, v3_scores) or a config, whose d_model becomes the
    pool's width. More than `rerank` candidates are first cut down to `rerank` by the tower;
    `approximate` does this with FAISS, for pools of a million.
    """

    kind: ClassVar[str] = "learned"

    def __init__(
        self,
        model: str | AnyPointerConfig = DEFAULT,
        *,
        fit: FitConfig | None = None,
        rerank: int = 64,
        approximate: bool = False,
    ) -> None:
        if isinstance(model, str):
            if model not in NAMED:
                raise InputError(
                    f"LearnedSelector: got {model!r}, expected one of {', '.join(NAMED)}, or a "
                    "PointerSelectorV1Config(...)"
                )
            model = NAMED[model]
        if rerank < 1:
            raise InputError(f"LearnedSelector: got rerank {rerank}, expected >= 1")
        self.config: AnyPointerConfig = model
        self.settings = fit or FitConfig()
        self.rerank, self.approximate = rerank, approximate
        self.held_out: HeldOut | None = None
        """The comparison on held-out records that `fit` made."""
        self._model: PointerSelector | None = None
        self._tower: PointerSelector | None = None
        self._index: PoolIndex | None = None
        self._slots = self._row_of = torch.zeros(0, dtype=torch.int64)

    @property
    def model(self) -> PointerSelector:
        """The fitted pointer selector."""
        if self._model is None:
            raise InputError("LearnedSelector: is not fitted yet; call fit(records, pool)")
        return self._model

    @classmethod
    def of(
        cls,
        model: PointerSelector,
        pool: Pool,
        tower: PointerSelector | None = None,
        **options: Any,
    ) -> "LearnedSelector":
        """Wrap trained models; one that needs a tower and has none scores all candidates."""
        selector = cls(model.config, **options)
        selector._pool, selector._model, selector._tower = pool, model.eval(), tower
        return selector

    def with_pool(self, pool: Pool) -> "LearnedSelector":
        """Return a copy that chooses from another pool; nothing is learned again."""
        other = super().with_pool(pool)
        other._index = None
        return other

    def alternatives(
        self, query: Query, shots: int, top_k: int = 2, *, candidates: Iterable[str] | None = None
    ) -> list[list[Option]]:
        """Return the pick of each step and the next best ones, best first."""
        check_count("shots", shots)
        check_count("top_k", top_k)
        with self._lock:
            pool = self.pool
            rows = self._shortlist(query, self._allowed(query, candidates), shots)
            if not len(rows):
                return []
            prediction = self._predict(query, rows, min(shots, len(rows)), top_k)
        steps = []
        for positions, scores, log_probs in zip(
            prediction.predictions[0], prediction.scores[0], prediction.log_probs[0], strict=True
        ):
            numbers = zip(
                positions.flatten().tolist(), scores.flatten().tolist(),
                log_probs.flatten().exp().tolist(), strict=True,
            )  # fmt: skip
            steps.append([Option(pool.ids[int(rows[i])], s, p) for i, s, p in numbers if i >= 0])
        return steps

    def _learn(self, records: Sequence[Record]) -> None:
        config = self.config.replace({"d_model": self.pool.vectors.shape[1]})
        task = fit_task(config, records, self.pool, self.settings)
        model, tower = task.model, None
        untrained = _untrained(config, self.settings.seed)
        self.held_out = compare(model, untrained, task)
        remark = self.held_out.remark
        if self.held_out.kept != "learned" and config.residual:
            model, remark = untrained, f"{remark}; the nearest examples are picked instead"
        if remark is not None:
            _log.warning(remark)
        if not _is_tower(model):
            shared = config.model_dump(include=set(PointerConfig.model_fields))
            tower = PointerSelectorV1Config(**shared)
            tower = fit_pointer(tower, records, self.pool, self.settings)
        self.config, self._model, self._tower, self._index = config, model, tower, None

    @torch.no_grad()
    def _shortlist(self, query: Query, mask: Tensor, shots: int) -> Tensor:
        """Return at most `rerank` rows (or `shots`, if that is more): the nearest by the tower."""
        size, tower = max(self.rerank, shots), self._projector
        if tower is None or int(mask.sum()) <= size:
            return mask.nonzero().flatten()
        index = self.index
        allowed = torch.zeros_like(index.alive)
        allowed[self._slots] = mask
        vector = query.vector[None].to(_device(tower))
        slots = index.search(tower.query_tower(vector), size, allowed).slots[0].cpu()
        return self._row_of[slots[slots >= 0]].sort().values

    def _choose(self, query: Query, rows: Tensor, shots: int) -> ScoredPicks:
        if not len(rows):
            return ScoredPicks(rows, torch.zeros(0))
        selection = self._predict(query, rows, shots, 1).selection.to("cpu")
        picks = selection.indices[0]
        return ScoredPicks(picks[picks >= 0], selection.scores[0])

    def _predict(self, query: Query, rows: Tensor, shots: int, top_k: int) -> PointerPrediction:
        device = _device(self.model)
        vector, vectors = query.vector.to(device), self.pool.vectors[rows].to(device)
        return self.model.predict(vector[None], vectors[None], top_k, shots=shots)

    @property
    def _projector(self) -> PointerSelector | None:
        return self.model if self._tower is None and _is_tower(self.model) else self._tower

    def _project(self, vectors: Tensor) -> Tensor:
        tower = self._projector
        if tower is None:
            raise InputError(
                f"LearnedSelector: {type(self.model).__name__} has no tower to make an index of; "
                "fit it here, or give LearnedSelector.of(model, pool, tower) a V1"
            )
        return tower.candidate_tower(vectors.to(_device(tower)))

    @property
    def index(self) -> PoolIndex:
        """The index of the pool, built on first use.

        If it is approximate, call `selector.index.calibrate(...)` with representative queries.
        """
        with self._lock:
            if self._index is None:
                self._index = PoolIndex.build(
                    self.pool.vectors, self._project, approximate=self.approximate
                )
                self._set_slots(torch.arange(len(self.pool)))
            return self._index

    def _set_slots(self, slots: Tensor) -> None:
        """Store the slot of each row, and the row of each slot."""
        assert self._index is not None
        self._slots, self._row_of = slots, torch.full((len(self._index.alive),), -1)
        self._row_of[slots] = torch.arange(len(slots))

    @torch.no_grad()
    def _added(self, rows: range) -> None:
        if self._index is not None:
            new = self._project(self.pool.vectors[rows.start :])
            self._set_slots(torch.cat([self._slots, self._index.add(new)]))

    def _removed(self, rows: Tensor) -> None:
        if self._index is not None:
            self._index.remove(self._slots[rows])
            keep = torch.ones(len(self._slots), dtype=torch.bool)
            keep[rows] = False
            self._set_slots(self._slots[keep])

    def _settings(self) -> dict[str, Any]:
        tower = self._tower
        return {
            "model": self.model.config.model_dump(mode="json"),
            "tower": None if tower is None else tower.config.model_dump(mode="json"),
            "fit": self.settings.model_dump(mode="json"),
            "rerank": self.rerank,
            "approximate": self.approximate,
        }

    def _save(self, folder: Path, dtype: torch.dtype | None) -> None:
        save_weights(folder, self._modules(), dtype)
        if self.approximate and self._index is not None:  # an exact one is quick to build
            self._index.save(folder / _INDEX)
            save_tensors(folder / _INDEX / _ROWS, {"slots": self._slots})

    def _modules(self) -> dict[str, torch.nn.Module]:
        modules: dict[str, torch.nn.Module] = {"pointer": self.model}
        return modules if self._tower is None else {**modules, "tower": self._tower}

    @classmethod
    def _restore(cls, settings: dict[str, Any], folder: Path, pool: Pool) -> "LearnedSelector":
        tower = settings["tower"]
        selector = cls.of(
            build_saved(folder, "pointer", settings["model"]),
            pool,
            None if tower is None else build_saved(folder, "tower", tower).eval(),
            fit=FitConfig(**settings["fit"]),
            rerank=settings["rerank"],
            approximate=settings["approximate"],
        )
        load_weights(folder, selector._modules())
        if (folder / _INDEX / _ROWS).exists():
            selector._index = PoolIndex.load(folder / _INDEX)
            selector._set_slots(read_tensors(folder / _INDEX / _ROWS)["slots"])
        return selector


def _device(model: PointerSelector) -> torch.device:
    return model.input_proj.weight.device


def _untrained(config: AnyPointerConfig, seed: int) -> PointerSelector:
    seed_everything(seed)
    return build_model(config).eval()


def _is_tower(model: PointerSelector) -> bool:
    """Return whether its logits are products of two towers."""
    return model.is_static and getattr(model, "look", None) is None
