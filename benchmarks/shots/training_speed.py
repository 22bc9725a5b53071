"""Training and reranking, against the plain way. Section 8: batch 64, K 32, S 6, 5 beams."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from benchmarks.shots.clock import compare
from benchmarks.shots.slow import sample_loop, static_scores, step_loop
from eligo.shots.config import PointerSelectorV1Config, PointerSelectorV3Config
from eligo.shots.model.bi_encoder import PointerSelectorV1, PointerSelectorV3
from eligo.shots.model.losses import available, plackett_luce_steps
from eligo.shots.model.pretrained import build_model_v2

BATCH, POOL, STEPS, BEAMS, RERANKED = 64, 32, 6, 5, 64


def bench_training(device: str = "cpu", rounds: int = 15) -> dict[str, Any]:
    """V1's closed form against its steps, V3's pairwise loss against its samples.

    `loss`: from scores to their gradient. `step`: the whole training step but for the optimiser;
    projections, which are the same on both sides, are in it.
    """
    torch.manual_seed(0)
    return {
        "v1_closed_form": _closed_form(device, rounds),
        "v3_pairwise": _pairwise(device, max(3, rounds // 3)),
    }


def bench_rerank(device: str = "cpu", rounds: int = 15) -> dict[str, Any]:
    """V2 on 64 candidates of 64 queries: embeddings as they come, or projected before."""
    torch.manual_seed(0)
    model = build_model_v2().to(device).eval()
    query, candidates = _inputs(BATCH, RERANKED, device)
    projected = model.project(candidates).detach()
    found = compare(
        lambda: model.predict(query, candidates),
        lambda: model.predict(query, projected, projected=True),
        device=device,
        rounds=rounds,
    )
    same = torch.equal(
        model.predict(query, candidates).predictions,
        model.predict(query, projected, projected=True).predictions,
    )
    return {**asdict(found), "same_picks": same}


def _closed_form(device: str, rounds: int) -> dict[str, Any]:
    config = PointerSelectorV1Config(dropout=0.0)
    model = PointerSelectorV1(config).to(device)
    query, candidates = _inputs(BATCH, POOL, device)
    labels = _distinct(BATCH, device)
    scores = static_scores(model, query, candidates).detach().requires_grad_()
    smoothing = config.label_smoothing
    mask = torch.ones_like(scores, dtype=torch.bool)

    def closed() -> Tensor:
        return plackett_luce_steps(scores, labels, available(labels, mask), smoothing).mean()

    def looped() -> Tensor:
        return step_loop(scores, labels, smoothing)

    return {
        "loss": asdict(
            compare(
                lambda: looped().backward(),
                lambda: closed().backward(),
                device=device,
                rounds=rounds,
            )
        ),
        "step": asdict(
            compare(
                lambda: step_loop(
                    static_scores(model, query, candidates), labels, smoothing
                ).backward(),
                lambda: _loss(model, query, candidates, labels).backward(),
                device=device,
                rounds=rounds,
            )
        ),
        "difference": (closed() - looped()).abs().item(),
    }


def _pairwise(device: str, rounds: int) -> dict[str, Any]:
    config = PointerSelectorV3Config(ranking_loss_type="pairwise", dropout=0.0)
    model = PointerSelectorV3(config).to(device)
    query, candidates = _inputs(BATCH, POOL, device)
    labels = _distinct(BATCH * BEAMS, device)
    beam_scores = torch.randn(labels.shape, device=device)

    rows = torch.arange(BATCH, device=device).repeat_interleave(BEAMS)

    def vectorised() -> Tensor:
        return _loss(model, query, candidates, labels, beam_scores=beam_scores, rows=rows)

    def looped() -> Tensor:
        scores = static_scores(model, query, candidates)[rows]
        return sample_loop(
            scores, labels, smoothing=config.label_smoothing, margin=config.margin,
            weight=config.ranking_loss_weight,
        )  # fmt: skip

    found = compare(
        lambda: looped().backward(), lambda: vectorised().backward(), device=device, rounds=rounds
    )
    return {"step": asdict(found), "difference": (vectorised() - looped()).abs().item()}


def _loss(model, query: Tensor, candidates: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return model(query, candidates, labels, **options)["loss"]


def _inputs(batch: int, pool: int, device: str) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 768, device=device), torch.randn(batch, pool, 768, device=device)


def _distinct(rows: int, device: str) -> Tensor:
    return torch.rand(rows, POOL).argsort(1)[:, :STEPS].to(device)
