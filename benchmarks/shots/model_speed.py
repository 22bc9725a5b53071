"""Speed of training, reranking and teaching: batch 64, 32 candidates, 6 shots, 5 beams."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.shots.index_speed import scene_captions
from eligo.scenes.vlm import SPECIAL, VlmConfig, build_processor
from eligo.shots.config import (
    PointerSelectorV1Config,
    PointerSelectorV2Config,
    PointerSelectorV3Config,
)
from eligo.shots.data.query import Query
from eligo.shots.hosts.reader import Reader
from eligo.shots.hosts.scorer import HostScorer
from eligo.shots.model.bi_encoder import PointerSelectorV1, PointerSelectorV3
from eligo.shots.model.losses import available, plackett_luce_steps
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.model.pretrained import build_model_v2
from eligo.shots.pool.pool import Pool

BATCH, POOL, STEPS, BEAMS, RERANKED = 64, 32, 6, 5, 64
PICKS, CANDIDATES = 5, 27
"""Of the teacher: the last step for six shots and 32 candidates."""
WIDTH, LAYERS = 256, 4
"""Of the teacher's host."""


def compare(
    slow: Callable[[], object], fast: Callable[[], object], device: str, rounds: int
) -> dict[str, float]:
    """Run both in turn, after two rounds of warm-up; return medians and ratios."""
    cuda = torch.device(device).type == "cuda"
    clock = time.perf_counter if cuda else time.process_time
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 2):
        for function, seconds in zip((slow, fast), times, strict=True):
            if cuda:
                torch.cuda.synchronize()
            start = clock()
            function()
            if cuda:
                torch.cuda.synchronize()
            elapsed = clock() - start
            if number >= 2:
                seconds.append(elapsed)
    slow_ms, fast_ms = (1000 * median(seconds) for seconds in times)
    lowest = min(a / b for a, b in zip(*times, strict=True))
    return {"slow_ms": slow_ms, "fast_ms": fast_ms, "speedup": slow_ms / fast_ms, "lowest": lowest}


def bench_training(device: str = "cpu", rounds: int = 15) -> dict[str, Any]:
    """Compare V1's closed form with its steps, and V3's pairwise loss with its samples.

    `loss`: from scores to their gradient. `step`: the whole training step without the optimiser;
    it includes the projections, which are the same on both sides.
    """
    torch.manual_seed(0)
    return {
        "v1_closed_form": _closed_form(device, rounds),
        "v3_pairwise": _pairwise(device, max(3, rounds // 3)),
    }


def bench_rerank(device: str = "cpu", rounds: int = 15) -> dict[str, Any]:
    """V2 on 64 candidates of 64 queries: embeddings as they are, or projected in advance."""
    torch.manual_seed(0)
    model = build_model_v2(PointerSelectorV2Config(residual=False)).to(device).eval()
    query, candidates = _inputs(BATCH, RERANKED, device)
    projected = model.project(candidates).detach()

    def slow() -> Tensor:
        return model.predict(query, candidates).predictions

    def fast() -> Tensor:
        return model.predict(query, projected, projected=True).predictions

    times = compare(slow, fast, device, rounds)
    return {**times, "same_picks": torch.equal(slow(), fast())}


def bench_teaching(device: str = "cpu", rounds: int = 15) -> dict[str, Any]:
    """A teacher's step with placement `append`: the picks read for every candidate, or once.

    The host is a language model with random weights, which do not affect the speed.
    """
    torch.manual_seed(0)
    scorers = _scorers(device)
    names = [f"d{number}" for number in range(PICKS + CANDIDATES)]
    query = Query("q", torch.ones(1))

    def scored(share: bool) -> Tensor:
        return scorers[share].score(query, names[:PICKS], names[PICKS:]).logprob

    times = compare(lambda: scored(False), lambda: scored(True), device, max(3, rounds // 3))
    return {**times, "difference": (scored(True) - scored(False)).abs().max().item()}


def _closed_form(device: str, rounds: int) -> dict[str, Any]:
    config = PointerSelectorV1Config(dropout=0.0, residual=False)
    model = PointerSelectorV1(config).to(device)
    query, candidates = _inputs(BATCH, POOL, device)
    labels, smoothing = _distinct(BATCH, device), config.label_smoothing
    scores = static_scores(model, query, candidates).detach().requires_grad_()
    mask = torch.ones_like(scores, dtype=torch.bool)

    def closed() -> Tensor:
        return plackett_luce_steps(scores, labels, available(labels, mask), smoothing).mean()

    def looped() -> Tensor:
        return step_loop(scores, labels, smoothing)

    def closed_step() -> Tensor:
        return model(query, candidates, labels)["loss"]

    def looped_step() -> Tensor:
        return step_loop(static_scores(model, query, candidates), labels, smoothing)

    return {
        "loss": compare(_backward(looped), _backward(closed), device, rounds),
        "step": compare(_backward(looped_step), _backward(closed_step), device, rounds),
        "difference": (closed() - looped()).abs().item(),
    }


def _pairwise(device: str, rounds: int) -> dict[str, Any]:
    config = PointerSelectorV3Config(ranking_loss_type="pairwise", dropout=0.0, residual=False)
    model = PointerSelectorV3(config).to(device)
    query, candidates = _inputs(BATCH, POOL, device)
    labels = _distinct(BATCH * BEAMS, device)
    beam_scores = torch.randn(labels.shape, device=device)
    rows = torch.arange(BATCH, device=device).repeat_interleave(BEAMS)

    def vectorised() -> Tensor:
        return model(query, candidates, labels, beam_scores=beam_scores, rows=rows)["loss"]

    def looped() -> Tensor:
        scores = static_scores(model, query, candidates)[rows]
        return sample_loop(
            scores, labels, smoothing=config.label_smoothing, margin=config.margin,
            weight=config.ranking_loss_weight,
        )  # fmt: skip

    times = compare(_backward(looped), _backward(vectorised), device, rounds)
    return {"step": times, "difference": (vectorised() - looped()).abs().item()}


def _backward(loss: Callable[[], Tensor]) -> Callable[[], None]:
    return lambda: loss().backward()


def _inputs(batch: int, pool: int, device: str) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 768, device=device), torch.randn(batch, pool, 768, device=device)


def _distinct(rows: int, device: str) -> Tensor:
    return torch.rand(rows, POOL).argsort(1)[:, :STEPS].to(device)


def _scorers(device: str) -> dict[bool, HostScorer]:
    """Scorers with and without sharing, on captions of generated scenes."""
    tokenizer = build_processor(VlmConfig()).tokenizer  # pyright: ignore[reportAttributeAccessIssue]
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        pad_token_id=SPECIAL.index("<pad>"),
    )
    model: Any = LlamaForCausalLM(config)
    reader = Reader(model.to(device), tokenizer)
    count = PICKS + CANDIDATES
    turns = [
        {"question": scene.dense_caption, "answer": scene.captions[0]}
        for scene in scene_captions("train", count + 1)
    ]
    pool = Pool([f"d{n}" for n in range(count)], torch.ones(count, 1), payload=turns[:count])
    queries = Pool(["q"], torch.ones(1, 1), payload=turns[count:])
    return {
        share: HostScorer(
            reader, pool, queries, placement="append", batch_size=CANDIDATES, share=share
        )
        for share in (True, False)
    }


def step_loop(
    scores: Float[Tensor, "batch candidates"], labels: Int[Tensor, "batch steps"], smoothing: float
) -> Float[Tensor, ""]:
    """Smoothed cross-entropy by masking what was picked before, step by step; distinct labels."""
    free = torch.ones_like(scores, dtype=torch.bool)
    total = scores.new_zeros(())
    for step in range(labels.shape[1]):
        label = labels[:, step : step + 1]
        log_p = scores.masked_fill(~free, -torch.inf).log_softmax(-1)
        mean = log_p.masked_fill(~free, 0.0).sum(-1) / free.sum(-1)
        own = log_p.gather(1, label).squeeze(1)
        total = total - ((1 - smoothing) * own + smoothing * mean).mean()
        free = free.scatter(1, label, False)
    return total / labels.shape[1]


def sample_loop(
    scores: Float[Tensor, "batch candidates"],
    labels: Int[Tensor, "batch steps"],
    *,
    smoothing: float,
    margin: float,
    weight: float,
) -> Float[Tensor, ""]:
    """Cross-entropy and corrected pairwise hinge (label scores only), one sample and step at a
    time; distinct labels."""
    total = scores.new_zeros(())
    for row in range(len(labels)):
        free = torch.ones_like(scores[row], dtype=torch.bool)
        unlabelled = torch.ones_like(free)
        unlabelled[labels[row]] = False
        for step in range(labels.shape[1]):
            label = int(labels[row, step])
            left = scores[row][free]
            position = free[:label].sum()
            ce = F.cross_entropy(left, position, label_smoothing=smoothing)
            hinge = F.relu(margin + scores[row][unlabelled] - scores[row, label]).mean()
            total = total + ce + weight * hinge
            free = free.clone()  # the gradient still needs the old one
            free[label] = False
    return total / labels.numel()


def static_scores(
    model: PointerSelector, query: Tensor, candidates: Tensor
) -> Float[Tensor, "batch candidates"]:
    """The logits of a model without state, before any pick."""
    query, candidates = (
        model.dropout(model.project(query)),
        model.dropout(model.project(candidates)),
    )
    logits = model.scale(model.query_proj(query).unsqueeze(1), model.cand_proj(candidates))
    return logits.squeeze(1)
