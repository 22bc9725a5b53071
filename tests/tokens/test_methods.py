"""Requirements of every method: exact budgets, real tokens only, independent rows."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eligo import Selection
from eligo.config import load_config, save_config
from eligo.errors import ConfigError, InputError
from eligo.tokens.methods import METHODS, Method, build, proposals
from eligo.tokens.methods.base import similarities
from eligo.tokens.reducer import Reducer, ReducerContext
from strategies import production, quick
from token_cases import contexts, full_context, make_context, one_row

VARIANTS = [
    *(build(name) for name in METHODS if name != "none"),
    build("random", seed=-5),
    build("tome", rounds=1),
    build("tome", rounds=9),
    build("visionzip", contextual_ratio=0.5),
    build("visionzip", contextual_ratio=1),
    build("cdpruner", relevance="attention_row", relevance_weight=0.5),
    build("cdpruner", relevance="cls_row", relevance_weight=0),
    build("oracle", fill="uniform"),
    build("uniform", phase="first"),
    build("uniform", phase="last"),
    build("sparsevlm", scale=0),
    build("dart", pivots=2, word_pivots=0),
    build("dart", pivots=20, word_pivots=1),
    build("hiprune", object_ratio=1),
    build("vispruner", important_ratio=0),
    build("vispruner", important_ratio=1),
    build("holov", crops=1),
    build("holov", crops=3, variance_weight=2),
    build("prumerge", uniform_ratio=0.5, neighbours=2),
    build("prumerge", uniform_ratio=1, neighbours=0),
    build("mmtok", vision_weight=0),
    build("mmr", balance=0, words="best"),
    build("mmr", balance=1),
]
FOLDING = {"pool", "tome", "visionzip", "prumerge"}
every_method = pytest.mark.parametrize(
    "method", VARIANTS, ids=lambda m: "-".join(str(v) for v in m.describe().values())
)
few = settings(quick, max_examples=12)


def picks(selection: Selection) -> list[list[int]]:
    return [[i for i in row if i >= 0] for row in selection.indices.tolist()]


@every_method
@few
@given(contexts, st.data())
def test_exact_budgets_of_real_tokens(method: Method, context: ReducerContext, data: st.DataObject):
    budget = torch.tensor(data.draw(st.lists(st.integers(0, 14), min_size=3, max_size=3)))
    selection = method.select(context, budget)
    selection.check()
    expected = torch.minimum(budget, context.mask.sum(-1))
    assert selection.num_kept.equal(expected)
    assert not (selection.kept_mask & ~context.mask).any()
    assert selection.scores.isfinite().all()
    assert selection.mask is context.mask
    own = torch.ones_like(selection.scores) if context.sizes is None else context.sizes
    if method.name in FOLDING:
        assert selection.assignment is not None
        # Hard: a token goes into one place, with its size, and what is kept into itself.
        if method.name != "prumerge":  # a token goes into several places
            assert (selection.assignment > 0).sum(-2).le(1).all()
        for row, kept in enumerate(picks(selection)):
            for column, token in enumerate(kept):
                assert selection.assignment[row, column, token] == own[row, token]
            if method.name in ("pool", "tome") and kept:
                torch.testing.assert_close(
                    selection.sizes[row].sum(), own[row, context.mask[row]].sum()
                )
    else:
        assert selection.assignment is None


@every_method
@few
@given(contexts, st.data())
def test_rows_are_independent_of_batch_and_padding(
    method: Method, context: ReducerContext, data: st.DataObject
):
    budget = torch.tensor(data.draw(st.lists(st.integers(0, 14), min_size=3, max_size=3)))
    together = method.select(context, budget)
    for row in range(3):
        alone = method.select(one_row(context, row), budget[row : row + 1])
        assert picks(alone)[0] == picks(together)[row]
        dense = method.select(one_row(context, row, only_real=True), budget[row : row + 1])
        places = context.mask[row].nonzero().squeeze(-1).tolist()
        assert [places[i] for i in picks(dense)[0]] == picks(together)[row]
        torch.testing.assert_close(
            dense.scores[0], together.scores[row, context.mask[row]], rtol=1e-4, atol=1e-5
        )
        if together.assignment is not None and dense.assignment is not None:
            kept = len(picks(dense)[0])
            real = together.assignment[row][:kept, context.mask[row]]
            torch.testing.assert_close(dense.assignment[0, :kept], real)


def test_rounding_does_not_break_ties():
    """Mutual nearest neighbours have equal distances; the lowest index must win."""
    context = make_context(133428, num_tokens=6)
    for real in (False, True):
        chosen = build("divprune").select(one_row(context, 1, only_real=real), torch.tensor([1]))
        assert picks(chosen) == [[0 if real else 3]]
    distances = similarities(make_context(0, num_images=8, num_tokens=40, share=1.0, width=48))
    assert distances.equal(distances.transpose(-1, -2))


@every_method
def test_full_budget_keeps_all_tokens(method: Method):
    context = make_context(1, num_images=4, share=0.6)
    context.mask[2] = False
    selection = method.select(context, torch.full((4,), 50))
    assert selection.kept_mask.equal(context.mask)
    assert selection.num_kept[2] == 0
    if selection.assignment is not None:
        assert selection.sizes.sum(-1).equal(context.mask.sum(-1).float())


@every_method
def test_single_token_and_empty_inputs(method: Method):
    context = full_context(1, 1)
    assert method.select(context, torch.tensor([1])).indices.tolist() == [[0]]
    nothing = make_context(0, share=0.0)
    assert method.select(nothing, torch.tensor([3, 0, 1])).num_kept.tolist() == [0, 0, 0]
    empty = make_context(0, num_images=0)
    assert method.select(empty, torch.zeros(0, dtype=torch.int64)).indices.shape[0] == 0


@every_method
def test_half_precision_and_repetition(method: Method):
    context = make_context(3, num_tokens=12)
    features, question = context.features.bfloat16(), context.question
    assert question is not None
    assert context.attention_row is not None
    assert context.question_rows is not None
    assert context.cls_row is not None
    assert context.object_row is not None
    half = ReducerContext(
        features,
        context.mask,
        context.positions.int(),
        context.grid.int(),
        question=question.bfloat16(),
        question_mask=context.question_mask,
        attention_row=context.attention_row.bfloat16(),
        question_rows=context.question_rows.bfloat16(),
        cls_row=context.cls_row.bfloat16(),
        object_row=context.object_row.bfloat16(),
        scene=context.scene,
    )
    budget = torch.tensor([4, 2, 5], dtype=torch.int32)
    selection = method.select(half, budget)
    assert selection.scores.dtype == torch.float32
    assert selection.num_kept.tolist() == [4, 2, 5]
    assert method.select(half, budget).indices.equal(selection.indices)
    widened = {
        name: value.float() if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in vars(half).items()
    }
    same = method.select(ReducerContext(**widened), budget)
    assert same.indices.equal(selection.indices)


ORDERLESS = ("random", "fastv", "pyramiddrop", "divprune", "cdpruner", "sparsevlm", "dart", "mmtok",
             "mmr", "vispruner", "hiprune")  # fmt: skip


@pytest.mark.parametrize("name", ORDERLESS)
def test_selection_is_independent_of_token_order(name: str):
    context = full_context(3, 4)
    method = build(name)
    kept = method.select(context, torch.tensor([5])).indices
    order = torch.randperm(12)
    per_token = ("features", "mask", "positions", "attention_row", "cls_row", "object_row", "scene")
    moved = {
        key: value[:, order] if key in per_token else value for key, value in vars(context).items()
    }
    moved["question_rows"] = moved["question_rows"][:, :, order]
    again = method.select(ReducerContext(**moved), torch.tensor([5])).indices
    assert order[again].equal(kept)


@pytest.mark.parametrize(
    "name", ["fastv", "pyramiddrop", "divprune", "cdpruner", "sparsevlm", "dart", "mmtok", "mmr"]
)
def test_ties_go_to_the_lowest_index(name: str):
    context = full_context(2, 3)
    equal = ReducerContext(
        features=torch.eye(8)[:1].expand(1, 6, 8),
        mask=torch.tensor([[False, True, True, True, True, True]]),
        positions=context.positions,
        grid=context.grid,
        question=torch.eye(8)[None, 1:3],
        attention_row=torch.full((1, 6), 0.25),
        question_rows=torch.full((1, 2, 6), 0.25),
    )
    assert build(name).select(equal, torch.tensor([3])).indices.tolist() == [[1, 2, 3]]


def test_random_rows_differ_and_repeat_in_any_batch():
    context = make_context(5, num_images=8, num_tokens=40, share=1.0)
    budget = torch.full((8,), 10)
    together = build("random").select(context, budget)
    assert len({tuple(row) for row in picks(together)}) == 8
    backwards = [one_row(context, row) for row in reversed(range(8))]
    for row, alone in zip(reversed(range(8)), backwards, strict=True):
        assert picks(build("random").select(alone, budget[:1]))[0] == picks(together)[row]
    assert picks(build("random", seed=1).select(context, budget)) != picks(together)


def test_random_is_uniform_over_places():
    context = full_context(5, 5, num_images=4000)
    kept = build("random").select(context, torch.full((4000,), 5)).kept_mask.float()
    # Binomial with p = 0.2: a standard deviation of 0.0063; pairs are independent up to 5/25.
    torch.testing.assert_close(kept.mean(0), torch.full((25,), 0.2), atol=0.03, rtol=0)
    together = (kept.T @ kept / 4000)[~torch.eye(25, dtype=torch.bool)]
    torch.testing.assert_close(together, torch.full((600,), 0.2 * 4 / 24), atol=0.02, rtol=0)


def test_scores_are_those_before_the_first_pick():
    context = full_context(2, 4)
    units = torch.nn.functional.normalize(context.features, dim=-1)[0]
    gaps = (1 - units @ units.T).fill_diagonal_(torch.inf).amin(-1)
    torch.testing.assert_close(build("divprune").select(context, torch.tensor([2])).scores[0], gaps)
    alone = build("divprune").select(full_context(1, 1), torch.tensor([1]))
    assert alone.scores.tolist() == [[2.0]]  # the largest distance there is
    assert context.cls_row is not None
    row = context.cls_row - context.cls_row.amin(-1, keepdim=True)
    method = build("cdpruner", relevance="cls_row")
    scores = method.select(context, torch.tensor([2])).scores
    torch.testing.assert_close(scores, (row / row.amax(-1, keepdim=True)) ** 2)
    sizes = build("tome").select(context, torch.tensor([2]))
    assert sizes.gather(sizes.scores).equal(sizes.sizes)


class Exported(torch.nn.Module):
    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        context = ReducerContext(
            features,
            torch.ones((1, 6), dtype=torch.bool),
            torch.arange(6)[None],
            torch.tensor([[2, 3]]),
            cls_row=features.abs().mean(-1),
        )
        selection = self.method.select(context, torch.tensor([2]))
        return selection.fold(features), selection.indices


@pytest.mark.parametrize("name", ["random", "pool", "tome", "visionzip", "divprune"])
def test_methods_before_the_language_model_can_be_exported(name: str):
    options = {"rounds": 1} if name == "tome" else {}  # shorter to trace
    module, features = Exported(build(name, **options)), torch.randn(1, 6, 8)
    with production(), torch.no_grad():
        program = torch.export.export(module, (torch.randn(1, 6, 8),), strict=False)
        for found, expected in zip(program.module()(features), module(features), strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.gpu
@every_method
def test_same_selection_on_a_gpu(method: Method):
    context = make_context(7, num_images=4, num_tokens=12, share=0.8)
    moved = {k: v.cuda() if torch.is_tensor(v) else v for k, v in vars(context).items()}
    budget = torch.tensor([3, 5, 12, 1])  # stays on the CPU: no sync
    selection = method.select(ReducerContext(**moved), budget).to("cpu")
    assert selection.indices.equal(method.select(context, budget).indices)


def test_none_keeps_all_and_refuses_smaller_budgets():
    context = make_context(2, share=0.7)
    selection = build("none").select(context, context.mask.sum(-1))
    assert selection.kept_mask.equal(context.mask)
    with pytest.raises(InputError, match="drops nothing"):
        build("none").select(context, context.mask.sum(-1) - 1)


@every_method
def test_missing_needs_and_bad_budgets_are_refused(method: Method):
    context = full_context(2, 2)
    with pytest.raises(InputError, match=rf"{method.name}: got budgets \[-1\]"):
        method.select(context, torch.tensor([-1]))
    for need in method.needs:
        without = ReducerContext(**{**vars(context), need: None})
        with pytest.raises(InputError, match=f"{method.name}: the context has no {need}"):
            method.select(without, torch.tensor([2]))


@pytest.mark.parametrize("name", ["cdpruner", "sparsevlm", "dart", "mmtok", "mmr"])
def test_question_of_another_width_is_refused(name: str):
    context = vars(full_context(2, 2))
    other_width = ReducerContext(**{**context, "question": torch.randn(1, 3, 7)})
    with pytest.raises(InputError, match=r"width 7 .* inside the language model"):
        build(name).select(other_width, torch.tensor([2]))
    no_words = ReducerContext(**{**context, "question_mask": torch.zeros(1, 3, dtype=torch.bool)})
    with pytest.raises(InputError, match="no word"):
        build(name).select(no_words, torch.tensor([2]))


@pytest.mark.parametrize("name", METHODS)
def test_registry_describes_and_rebuilds(name: str, tmp_path):
    method = build(name)
    assert isinstance(method, Reducer)
    assert isinstance(method, METHODS[name])
    assert method.name == name
    assert method.where
    assert build(**method.describe()) == method
    save_config(method, tmp_path / "method.yaml")
    assert load_config(type(method), tmp_path / "method.yaml") == method
    assert hash(method) == hash(build(name))
    for setting in itertools.product(*method.space.values()):
        build(name, **dict(zip(method.space, setting, strict=True)))


def test_cdpruner_where_and_needs():
    places = {"question": {"inside"}, "attention_row": {"inside"}, "cls_row": {"before"}}
    for relevance, where in places.items():
        method = build("cdpruner", relevance=relevance)
        assert method.where == where
        assert method.needs == {relevance}


def test_invalid_names_and_options_are_refused():
    with pytest.raises(InputError, match="did you mean divprune"):
        build("divprun")
    with pytest.raises(ConfigError, match="rounds"):
        build("tome", round=2)
    with pytest.raises(ConfigError, match="got 0"):
        build("tome", rounds=0)


@pytest.mark.parametrize("name", METHODS)
def test_proposed_settings_of_each_method(name: str):
    most = 1
    for values in METHODS[name].space.values():
        most *= len(values)
    trials = proposals(name, 4)
    assert len(trials) == min(4, most)
    assert trials[0] == build(name)
    assert len(set(trials)) == len(trials)
    assert trials == proposals(METHODS[name], 4)
    assert len(proposals(name, 1000)) == most
    if most > 4:
        assert any(proposals(name, 4, seed=s) != trials for s in range(1, 5))
