"""Merger, pruners and discriminator by themselves, without a host."""

import operator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from eligo import ops
from eligo.config.yaml import dump_yaml
from eligo.errors import EligoError, InputError
from eligo.tokens.model.discriminator import Discriminator, DiscriminatorShape
from eligo.tokens.model.layer_pruners import LayerPruner, LayerPruners, PrunersShape
from eligo.tokens.model.relaxer import Relaxation, TrainingRelaxer, add_noise, relax_top_k
from eligo.tokens.model.scorers import real_features
from eligo.tokens.model.token_merger import MergerShape, TokenMerger
from eligo.tokens.reducer import Reducer, ReducerContext
from eligo.train.weights import save_weights

WIDTH, TEXT, DIM = 12, 10, 16
SOFT = Relaxation(temperature=0.7, noise=0.5, hard=False)
HARD = Relaxation(temperature=0.1, noise=0.0, hard=True)
KINDS = ("simple", "question_aware", "mmr")
"""Mergers; the last reads the question and ranks by marginal relevance, the others by peaks."""


def make_merger(kind: str, text: int = TEXT) -> TokenMerger:
    shape: dict[str, Any] = {"width": WIDTH, "dim": DIM, "num_heads": 2}
    if kind != "simple":
        shape |= {"kind": "question_aware", "question_width": text}
    return TokenMerger(MergerShape(**shape, redundancy="mmr" if kind == "mmr" else "peaks"))


def make_pruners(layers: tuple[int, ...] = (1, 3), redundancy: str = "peaks") -> LayerPruners:
    shape: dict[str, Any] = {"layers": layers, "redundancy": redundancy}
    return LayerPruners(PrunersShape(**shape, width=WIDTH, dim=DIM, num_heads=2))


def make_reducer(part: str, text: int = TEXT) -> TokenMerger | LayerPruner:
    """Return a merger, or the first of the pruners `pruner` and `pruner_mmr`."""
    if part.startswith("pruner"):
        return make_pruners(redundancy="mmr" if part == "pruner_mmr" else "peaks")[1]
    return make_merger(part, text)


def make_context(
    images: int = 3, tokens: int = 9, words: int = 4, question_width: int = TEXT, seed: int = 0
) -> ReducerContext:
    """Rows of 9, 8, 7... tokens, the rest padding full of NaN."""
    source = torch.Generator().manual_seed(seed)
    features = torch.randn(images, tokens, WIDTH, generator=source)
    mask = torch.arange(tokens) < tokens - torch.arange(images)[:, None]
    question = torch.randn(images, words, question_width, generator=source)
    question_mask = torch.arange(words) >= torch.arange(images)[:, None] % words
    return ReducerContext(
        features=features.masked_fill(~mask[..., None], torch.nan),
        mask=mask,
        positions=torch.arange(tokens).expand(images, -1),
        grid=torch.tensor([[3, 3]]).expand(images, -1),
        question=question.masked_fill(~question_mask[..., None], torch.nan),
        question_mask=question_mask,
    )


def rows(context: ReducerContext, chosen: list[int], tokens: int | None = None) -> ReducerContext:
    return ReducerContext(
        features=context.features[chosen, :tokens],
        mask=context.mask[chosen, :tokens],
        positions=context.positions[chosen, :tokens],
        grid=context.grid[chosen],
        question=context.question[chosen],
        question_mask=context.question_mask[chosen],
    )


def budget(count: int, images: int = 3) -> Tensor:
    return torch.full((images,), count)


def dead(module: nn.Module) -> list[str]:
    """Parameters whose gradient is missing, not finite, or below 1e-5 of the largest."""
    sizes = {
        name: torch.nan if p.grad is None else p.grad.abs().max().item()
        for name, p in module.named_parameters()
    }
    largest = max(size for size in sizes.values() if size == size)
    return [name for name, size in sizes.items() if not 1e-5 * largest < size < 1e6]


@pytest.mark.parametrize("kind", KINDS)
def test_merger_keeps_the_best_and_merges_the_rest(kind):
    merger, context = make_merger(kind), make_context()
    assert isinstance(merger, Reducer)
    chosen = merger.select(context, torch.tensor([4, 2, 20]))
    assert chosen.num_kept.tolist() == [4, 2, 7]
    best = ops.top_k_mask(chosen.scores, torch.tensor([4, 2, 20]), context.mask)
    assert torch.equal(chosen.kept_mask, best)
    assert torch.equal(chosen.in_order().indices, chosen.indices)
    # Everything real went somewhere: one centre each, with weight 1 or sigmoid(score).
    weights = chosen.assignment.sum(-2)
    expected = torch.where(chosen.kept_mask, 1.0, merger.scores(context).sigmoid())
    torch.testing.assert_close(weights, expected.masked_fill(~context.mask, 0.0))
    assert (chosen.assignment > 0).sum(-2).tolist() == context.mask.int().tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_training_form_averages_by_weight(kind):
    merged = make_merger(kind).relax(make_context(), budget(4), SOFT)
    folded = merged.selection.assignment / merged.selection.sizes[..., None]
    torch.testing.assert_close(folded.sum(-1), torch.ones(3, 4))
    assert merged.features.isfinite().all()
    torch.testing.assert_close(merged.choice.keep.sum(-1), torch.full((3,), 4.0))
    torch.testing.assert_close(merged.key_bias, merged.selection.sizes.log())


@pytest.mark.parametrize("kind", KINDS)
def test_merger_keeps_one_of_each_group_of_similar_tokens(kind):
    """Four groups of three equal tokens: the best four by score alone would repeat some."""
    merger, context = make_merger(kind), make_context(images=1, tokens=12)
    context = replace(context, features=context.features[:, :4].repeat(1, 3, 1))
    looks = merger.select(context, budget(4, 1)).indices % 4
    assert sorted(looks[0].tolist()) == [0, 1, 2, 3]
    plain = TokenMerger(merger.shape.replace({"diverse": False}))
    shared = {n: v for n, v in merger.state_dict().items() if n in plain.state_dict()}
    plain.load_state_dict(shared)
    looks = plain.select(context, budget(4, 1)).indices % 4
    assert len(set(looks[0].tolist())) == 2  # equal tokens have equal scores


@pytest.mark.parametrize("part", ["mmr", "pruner_mmr"])
def test_learned_relevance_less_redundancy_equals_loops(part):
    """Greedy, with the learned scores as relevance and the learned weight, in plain Python."""
    context, budgets = make_context(question_width=WIDTH), torch.tensor([4, 3, 5])
    reducer = make_reducer(part, WIDTH)
    with torch.no_grad():
        reducer.peaks.log_weight.fill_(-1.0)
        scores, embedded = (
            reducer._scores(context, real_features(context))
            if isinstance(reducer, TokenMerger)
            else reducer._scores(context)
        )
        chosen = reducer.select(context, budgets)
    for row, count in enumerate(budgets.tolist()):
        units = torch.nn.functional.normalize(embedded[row], dim=-1).tolist()
        picked: list[int] = []
        while len(picked) < count:
            best, best_gain = -1, -float("inf")
            for i in range(9 - row):
                likes = [sum(map(operator.mul, units[i], units[j])) for j in picked]
                gain = scores[row, i].item() - max(likes, default=0.0) / 2.718281828
                if i not in picked and gain > best_gain:
                    best, best_gain = i, gain
            picked.append(best)
        assert chosen.indices[row, :count].tolist() == sorted(picked)


def test_merger_without_size_bias():
    merged = make_merger("simple").relax(make_context(), budget(4), SOFT, size_bias=False)
    assert merged.key_bias.abs().max() == 0
    assert merged.key_bias.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_training_equals_inference_after_annealing(kind):
    merger, context = make_merger(kind), make_context()
    merged, chosen = merger.relax(context, budget(4), HARD), merger.select(context, budget(4))
    assert torch.equal(merged.selection.indices, chosen.indices)
    torch.testing.assert_close(merged.selection.assignment, chosen.assignment)
    torch.testing.assert_close(merged.features, chosen.fold(context.features))


@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 9), temperature=st.floats(0.05, 2.0), seed=st.integers(0, 99))
def test_relaxed_choices_sum_to_the_budget(count, temperature, seed):
    context = make_context(seed=seed)
    scores = torch.randn(3, 9)
    ranks = add_noise(scores, Relaxation(temperature, 1.0, False))
    choice = relax_top_k(ranks, budget(count), context.mask, temperature)
    expected = context.mask.sum(-1).clamp_max(count)
    torch.testing.assert_close(choice.keep.sum(-1), expected.float(), atol=1e-3, rtol=0)
    assert torch.equal(choice.kept.sum(-1), expected)
    assert not (choice.kept & ~context.mask).any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("relaxation", [SOFT, HARD], ids=["soft", "annealed"])
def test_every_merger_parameter_gets_a_gradient(kind, relaxation):
    merger, context = make_merger(kind), make_context()
    with torch.no_grad():  # the two projections start equal, and would stay in each other's shadow
        merger.key_proj.weight.add_(0.1 * torch.randn_like(merger.key_proj.weight))
    merged = merger.relax(context, budget(4), relaxation)
    target = torch.randn(merged.features.shape)
    pull = torch.linspace(-1, 1, 4)
    ((merged.features - target).square().mean() + (merged.key_bias * pull).mean()).backward()
    # One score for all: shifts cancel in top-k, but the weight of what is folded feels them.
    assert dead(merger) == []


def test_scores_of_kept_and_dropped_tokens_get_gradients():
    context = make_context(images=1)
    for relaxation in (SOFT, HARD):
        merger = make_merger("simple")
        merged = merger.relax(context, budget(4, 1), relaxation)
        scores = merged.selection.scores
        (gradient,) = torch.autograd.grad(
            merged.features.square().sum() + (merged.key_bias * torch.randn(4)).sum(), scores
        )
        assert gradient.isfinite().all()
        assert (gradient[context.mask].abs() > 0).all()


RANKING = {"peaks": ("spread", "diversity"), "mmr": ("log_weight",)}


@pytest.mark.parametrize("redundancy", RANKING)
@pytest.mark.parametrize("mode", ["straight_through", "soft"])
def test_every_pruner_parameter_gets_a_gradient(mode, redundancy):
    pruners = make_pruners(redundancy=redundancy)
    context = make_context(question_width=WIDTH)
    relaxer = TrainingRelaxer(None, pruners, Relaxation(0.7, 0.5, False, mode))
    total = torch.zeros(())
    for layer in (1, 3):
        soft = relaxer.cut(layer, context, budget(4))
        total = total + (soft.mask * torch.randn(3, 9)).sum()
        assert ((soft.mask == 0) | (soft.mask == 1)).all() == (mode == "straight_through")
        assert soft.mask[~context.mask].abs().max() == 0
    total.backward()
    # A last bias shifts all scores alike, which top-k cancels ...
    cancelled = [f"heads.{layer}.scorer.mlp.2.bias" for layer in (1, 3)]
    assert dead(pruners) == cancelled
    # ... and sparsity does not.
    pruners.zero_grad()
    for layer in (1, 3):
        relaxer.cut(layer, context, budget(4))
    relaxer.sparsity().backward()
    # Scores alone are held to the budget, not how far look-alikes are marked down.
    ranking = [f"heads.{n}.peaks.{name}" for n in (1, 3) for name in RANKING[redundancy]]
    assert dead(pruners) == ranking


def test_sparsity_is_zero_at_the_kept_ratio():
    relaxer = TrainingRelaxer(None, make_pruners(), HARD)
    relaxer.cut(1, make_context(images=1, question_width=WIDTH), budget(3, 1))
    one = relaxer.decisions[1]
    third = torch.full_like(one.scores, -torch.log(torch.tensor(2.0)).item())
    assert type(one)(third, one.mask, one.choice).sparsity() < 1e-10
    assert relaxer.sparsity() > 1e-4


@pytest.mark.parametrize("part", [*KINDS, "pruner", "pruner_mmr"])
def test_selection_is_independent_of_batch_and_padding(part):
    context = make_context(question_width=WIDTH)
    reducer = make_reducer(part, WIDTH)
    assert isinstance(reducer, Reducer)
    together = reducer.select(context, torch.tensor([4, 3, 2]))
    for row, count in enumerate([4, 3, 2]):
        alone = reducer.select(rows(context, [row], 9 - row), torch.tensor([count]))
        assert torch.equal(alone.indices[0], together.indices[row, :count])
        torch.testing.assert_close(alone.scores[0], together.scores[row, : 9 - row])
        if alone.assignment is not None:
            torch.testing.assert_close(
                alone.assignment[0], together.assignment[row, :count, : 9 - row]
            )


def test_missing_question_is_refused():
    context = make_context()
    silent = ReducerContext(context.features, context.mask, context.positions, context.grid)
    make_merger("simple").select(silent, budget(2))
    for reducer in (make_merger("question_aware"), make_pruners()[1]):
        assert "question" in reducer.needs
        with pytest.raises(InputError, match="got no question"):
            reducer.select(silent, budget(2))


@pytest.mark.parametrize("kind", KINDS)
def test_merging_preserves_norms(kind):
    # Neighbouring patches look alike; so do these.
    base = torch.randn(2, 1, WIDTH) * 3
    features = base + torch.randn(2, 36, WIDTH)
    mask = torch.ones(2, 36, dtype=torch.bool)
    context = make_context(images=2)
    context = ReducerContext(
        features, mask, torch.arange(36).expand(2, -1), context.grid,
        question=torch.randn(2, 4, TEXT), question_mask=torch.ones(2, 4, dtype=torch.bool),
    )  # fmt: skip
    norms = features.norm(dim=-1)
    for relaxation in (SOFT, HARD):
        merged = make_merger(kind).relax(context, budget(9, 2), relaxation)
        assert merged.selection.sizes.max() > 1.5  # a plain sum would be that much longer
        assert merged.features.norm(dim=-1).max() <= norms.max()
        assert merged.features.norm(dim=-1).min() > 0.5 * norms.min()


def parts() -> list:
    shape = DiscriminatorShape(width=WIDTH, num_layers=2, dim=8)
    return [
        make_merger("simple"),
        make_merger("question_aware"),
        make_pruners(),
        make_merger("mmr"),
        make_pruners(redundancy="mmr"),
        Discriminator(shape),
        Discriminator(shape.replace({"spectral_norm": True})),
    ]


@pytest.mark.parametrize("number", range(7))
def test_each_module_loads_alone(number, tmp_path: Path):
    part = parts()[number]
    part.save_pretrained(tmp_path / "own")
    # What the loop writes: weights, and the run's whole config.
    sections = {"merger": {"kind": "simple", "num_heads": 2}, "pruners": {"num_heads": 2}}
    if number in (1, 3):
        sections["merger"]["kind"] = "question_aware"
    if number in (3, 4):  # without the key, a run is of a version that had peaks only
        sections["merger"]["redundancy"] = sections["pruners"]["redundancy"] = "mmr"
    checkpoint = tmp_path / "run" / "best"
    save_weights(checkpoint, {part.file_name: part})
    (checkpoint / "config.yaml").write_text(dump_yaml(sections))
    for folder in (tmp_path / "own", checkpoint, tmp_path / "run"):
        again = type(part).from_pretrained(folder)
        assert not again.training
        for name, value in part.state_dict().items():
            assert torch.equal(again.state_dict()[name], value), name


def test_loading_is_strict(tmp_path: Path):
    part = make_pruners((1,))
    part.save_pretrained(tmp_path)
    described = tmp_path / "layer_pruners.json"
    described.write_text(described.read_text().replace("16", "8"))
    with pytest.raises(EligoError, match="shape of layer_pruners"):
        LayerPruners.from_pretrained(tmp_path)
    described.unlink()
    with pytest.raises(InputError, match=r"without layer_pruners\.json"):
        LayerPruners.from_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"no token_merger\.safetensors"):
        TokenMerger.from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", [*KINDS, "pruner", "pruner_mmr"])
def test_flops_equal_torchs_counter(kind):
    tokens, words, count = 9, 4, 4
    context = make_context(images=1, words=words, question_width=WIDTH)
    reducer = make_reducer(kind, WIDTH)
    # The counter does not know the CPU's fused attention.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        reducer.select(context, budget(count, 1)).fold(context.features)
    assert reducer.flops(tokens, words, WIDTH, WIDTH, count) == counter.get_total_flops()


def discriminator_inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, 5, WIDTH), torch.arange(5) >= torch.tensor([[1], [3], [4]])


@pytest.mark.parametrize("spectral", [False, True])
def test_frozen_discriminator_gives_gradients_to_states_only(spectral):
    shape = DiscriminatorShape(width=WIDTH, num_layers=2, dim=8, spectral_norm=spectral)
    critic, (states, mask) = Discriminator(shape), discriminator_inputs()
    states.requires_grad_()
    critic.frozen(states, mask).sum().backward()
    assert all(p.grad is None for p in critic.parameters())
    assert states.grad.abs().max() > 0
    assert states.grad.masked_fill(mask[None, ..., None], 0.0).abs().max() == 0
    critic(states.detach(), mask).square().sum().backward()
    assert dead(critic) == []


def test_frozen_equals_forward():
    critic, (states, mask) = parts()[5], discriminator_inputs()
    torch.testing.assert_close(critic.frozen(states, mask), critic(states, mask))
    bad = states.masked_fill(~mask[None, ..., None], torch.nan)
    torch.testing.assert_close(critic(bad, mask), critic(states, mask))


def test_reinitialise_replaces_all_weights():
    for critic in parts()[5:]:
        before = {name: value.clone() for name, value in critic.state_dict().items()}
        critic.reinitialise()
        changed = [n for n, v in critic.state_dict().items() if not torch.equal(v, before[n])]
        assert any(name.startswith("readers.0.1") for name in changed)
        assert any(name.startswith("judge.4") for name in changed)
