"""VisionSelector: scores against plain loops, and checkpoints of the published form."""

import json
from pathlib import Path

import pytest
import torch
from hosts import shared
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from eligo.errors import InputError
from eligo.tokens import VisionSelector, load_plan
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.model.relaxer import Relaxation
from eligo.tokens.model.vision_selector import SelectorShape
from eligo.tokens.plan import Plan, Stage1
from token_cases import full_context, make_context, one_row


def published(folder: Path, width: int, dim: int, **changes: Tensor) -> dict[str, Tensor]:
    """Write a made-up checkpoint: two shards of a larger model, the scorer divided among them."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"q_proj.weight": (dim, width), "q_proj.bias": (dim,),
             "k_proj.weight": (dim, width), "k_proj.bias": (dim,)}  # fmt: skip
    weights = {name: torch.randn(size, generator=generator) for name, size in sizes.items()}
    weights = {f"visual.importance_scorer.{name}": w for name, w in (weights | changes).items()}
    names = sorted(weights)
    folder.mkdir()
    others = {"visual.merger.ln_q.weight": torch.ones(3), "lm_head.weight": torch.ones(2, 2)}
    shards = [names[:1], names[1:]]
    places = {}
    for number, (shard, other) in enumerate(zip(shards, others, strict=True), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        tensors = {name: weights[name].bfloat16() for name in shard} | {other: others[other]}
        save_file(tensors, folder / file)
        places |= dict.fromkeys(tensors, file)
    index = json.dumps({"metadata": {}, "weight_map": places})
    (folder / "model.safetensors.index.json").write_text(index)
    return {name.rpartition("scorer.")[2]: w.bfloat16().float() for name, w in weights.items()}


def slow_scores(x: Tensor, weights: dict[str, Tensor], dim: int) -> list[float]:
    def project(token: Tensor, name: str) -> list[float]:
        matrix, bias = weights[f"{name}.weight"].tolist(), weights[f"{name}.bias"].tolist()
        values = token.tolist()
        return [
            sum(w * v for w, v in zip(row, values, strict=True)) + b
            for row, b in zip(matrix, bias, strict=True)
        ]

    queries, keys = ([project(token, name) for token in x] for name in ("q_proj", "k_proj"))
    return [
        sum(sum(a * b for a, b in zip(q, k, strict=True)) / dim**0.5 for k in keys) / len(keys)
        for q in queries
    ]


def test_published_checkpoint_scores_as_its_formula(tmp_path: Path):
    weights = published(tmp_path / "given", 16, 6)
    selector = VisionSelector.from_pretrained(tmp_path / "given")
    assert selector.shape == SelectorShape(width=16, dim=6)
    context = make_context(4, 3, 9)
    selection = selector.select(context, torch.tensor([3, 9, 0]))
    for row in range(3):
        real = context.mask[row]
        expected = slow_scores(context.features[row][real], weights, 6)
        torch.testing.assert_close(
            selection.scores[row][real], torch.tensor(expected), rtol=1e-4, atol=1e-4
        )
        alone = selector.select(one_row(context, row, only_real=True), torch.tensor([3]))
        slots = real.nonzero().squeeze(-1)
        best = slots[torch.tensor(expected).argsort(descending=True)[:3]].sort().values
        assert slots[alone.indices[0]].tolist() == best.tolist()
    assert selection.indices[0].tolist()[:3] == sorted(selection.indices[0].tolist()[:3])
    assert selection.num_kept.tolist() == [3, int(context.mask[1].sum()), 0]


def test_checkpoint_is_a_plan_that_is_saved_and_runs(tmp_path: Path):
    host = shared("qwen")
    published(tmp_path / "given", 32, 8)
    plan = load_plan(tmp_path / "given", budgets=[0.5])
    assert plan.stage1 is not None
    assert plan.stage1.ratio == 0.5
    plan.save(tmp_path / "saved")
    again = Plan.load(tmp_path / "saved")
    assert again.stage1 is not None
    assert isinstance(again.stage1.reducer, VisionSelector)
    inputs = host.batch([[3, (4, 6), 5], [2, (2, 4), 6]])
    outputs = []
    for each in (plan, again):
        with pruning(host.model, each) as trace, torch.no_grad():
            outputs.append(host.model(**inputs, use_cache=False).logits)
    assert trace.stages[0].selection.num_kept.tolist() == [12, 4]
    assert outputs[0].equal(outputs[1])


def test_misfits_are_refused(tmp_path: Path):
    published(tmp_path / "shape", 8, 4, **{"k_proj.weight": torch.zeros(4, 7)})
    with pytest.raises(InputError, match=r"shape of k_proj.weight: \(4, 7\) stored"):
        VisionSelector.from_pretrained(tmp_path / "shape")
    published(tmp_path / "nan", 8, 4, **{"q_proj.bias": torch.full((4,), torch.nan)})
    with pytest.raises(InputError, match=r"not finite: q_proj.bias"):
        VisionSelector.from_pretrained(tmp_path / "nan")
    published(tmp_path / "more", 8, 4, **{"norm.weight": torch.ones(8)})
    with pytest.raises(InputError, match=r"unexpected: norm.weight"):
        VisionSelector.from_pretrained(tmp_path / "more")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no weights of an importance_scorer"):
        VisionSelector.from_pretrained(tmp_path / "empty")
    with pytest.raises(InputError, match=r"no plan.json"):
        Plan.load(tmp_path / "empty")
    selector = VisionSelector(SelectorShape(width=8, dim=4))
    with pytest.raises(InputError, match="got features of width 16, expected 8"):
        selector.select(full_context(2, 2), torch.tensor([2]))


def test_training_form_equals_loops():
    """The kept tokens are the best, the bias is 0, and its gradient is that of the relaxed top-k:
    `p = sigmoid((s + t) / T)` with a sum of k, so `dp_i/ds_j = v_i (d_ij - v_j / sum v) / T`.
    """
    selector, context = VisionSelector(SelectorShape(width=16, dim=4)), full_context(2, 3)
    temperature, pull = 0.5, torch.tensor([1.0, -2.0, 0.5])
    with torch.no_grad():
        for parameter in selector.parameters():
            parameter.normal_()
    relaxation = Relaxation(temperature, noise=0.0, hard=False)
    merged = selector.relax(context, torch.tensor([3]), relaxation)
    kept = merged.selection.indices[0]
    assert kept.equal(selector.select(context, torch.tensor([3])).indices[0])
    assert merged.features[0].equal(context.features[0, kept])
    assert merged.key_bias.abs().max() == 0
    (found,) = torch.autograd.grad((merged.key_bias[0] * pull).sum(), merged.scores)
    p = merged.choice.keep[0].tolist()
    v = [x * (1 - x) for x in p]
    assert sum(p) == pytest.approx(3, abs=1e-4)
    for j in range(6):
        slopes = [v[i] * ((i == j) - v[j] / sum(v)) / temperature for i in kept.tolist()]
        expected = sum(a * b for a, b in zip(pull.tolist(), slopes, strict=True))
        assert found[0, j].item() == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_flops_and_gradients():
    selector, context = VisionSelector(SelectorShape(width=16, dim=4)), full_context(2, 3)
    assert selector.scores(context).abs().max() < 1e-4
    with FlopCounterMode(display=False) as counter:
        scores = selector.scores(context)
    assert selector.flops(6, 5, 16, 16, 3) == counter.get_total_flops()
    scores[0, 1].backward()
    for name, parameter in selector.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    assert Stage1(selector, 3).reducer is selector
