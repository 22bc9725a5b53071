"""Losses against the definition, one row and one step at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pointer_oracle import loop_loss, loop_ranking
from shot_cases import CONFIGS, STATIC, make_case, small_model

BI_ENCODERS = [name for name in CONFIGS if not name.startswith("v0")]
TIGHT = {"atol": 1e-5, "rtol": 1e-5}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", BI_ENCODERS)
def test_cross_entropy_equals_loop(kind: str, seed: int):
    model, case = small_model(kind), make_case(seed=seed)
    found = case.call(model)["ce_loss"]
    expected = loop_loss(model, case)
    torch.testing.assert_close(found, expected, **TIGHT)
    assert found > 0.1
    weights = [p for p in model.parameters() if p.requires_grad]
    for ours, theirs in zip(
        torch.autograd.grad(found, weights, allow_unused=True),
        torch.autograd.grad(expected, weights, allow_unused=True),
        strict=True,
    ):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("form", ["corrected", "documented"])
@pytest.mark.parametrize("kind", ["v3", "v3_pairs", "v3_v2_gru"])
def test_ranking_loss_equals_loop(kind: str, form: str, dense: bool):
    model = small_model(kind, ranking_form=form, target_temperature=0.7, margin=2.0)
    case = make_case(rows=6, seed=5)
    scores = {} if dense else {"step_scores": None}
    output = case.call(model, **scores)
    if dense and form == "documented":
        at_labels = case.step_scores.gather(2, case.labels.clamp_min(0)[..., None]).squeeze(-1)
        torch.testing.assert_close(
            output["ranking_loss"],
            case.call(model, step_scores=None, beam_scores=at_labels)["ranking_loss"],
        )
    expected = loop_ranking(model, case, dense=dense)
    torch.testing.assert_close(output["ranking_loss"], expected, **TIGHT)
    assert expected > 0.01
    torch.testing.assert_close(
        output["loss"],
        output["ce_loss"] + model.config.ranking_loss_weight * output["ranking_loss"],
    )


@pytest.mark.parametrize("dense", [True, False])
def test_regression_equals_loop(dense: bool):
    model, case = small_model("v3_scores"), make_case(rows=6, seed=5)
    found = case.call(model, **({} if dense else {"step_scores": None}))["ranking_loss"]
    torch.testing.assert_close(found, loop_ranking(model, case, dense=dense), **TIGHT)
    assert found > 0.01


def test_v3_without_scores_is_v1():
    model, case = small_model("v3"), make_case()
    output = case.call(model, beam_scores=None, step_scores=None)
    assert output["ranking_loss"] is None
    assert torch.equal(output["loss"], output["ce_loss"])


def test_only_v3_has_a_ranking_loss():
    output = make_case().call(small_model("v1"))
    assert output["ranking_loss"] is None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(list(CONFIGS)),
    st.sampled_from(["corrected", "documented"]),
    st.integers(0, 4),
    st.integers(0, 7),
    st.integers(0, 5),
    st.integers(0, 2**16),
    st.booleans(),
)
def test_losses_and_gradients_are_finite(kind, form, rows, pool, steps, seed, dense):
    """No pool, no row, no step, more shots than candidates, everything masked."""
    changes = {"ranking_form": form} if kind.startswith("v3") else {}
    model, case = small_model(kind, **changes), make_case(rows, pool, steps, seed)
    case.candidates.requires_grad_()
    output = case.call(model, **({} if dense else {"step_scores": None}))
    assert output["loss"].isfinite()
    assert output["logits"].shape == (rows, steps, pool)
    assert output["logits"].dtype == torch.float32
    assert not output["logits"].isnan().any()
    if output["loss"].requires_grad:
        output["loss"].backward()
        assert case.candidates.grad.isfinite().all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    left = case.mask.unsqueeze(1) & (output["logits"] > -torch.inf)
    assert output["predictions"].ge(0).equal(left.any(-1))


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_ignored_steps_have_no_loss(kind: str):
    """-1 and repeated labels add no loss, pick nothing and are counted."""
    model, case = small_model(kind), make_case(rows=2, pool=6)
    case.mask = torch.ones(2, 6, dtype=torch.bool)
    case.candidates = torch.randn(2, 6, 12)
    case.labels = torch.tensor([[1, -1, 3, 3], [2, 0, 2, 5]])
    output = case.call(model, beam_scores=None, step_scores=None, weights=None)
    assert output["num_ignored_steps"] == 3
    assert output["logits"][0, 1].isinf().tolist() == [False, True, False, False, False, False]
    case.labels = torch.tensor([[1, 3], [2, 0]])
    first = case.call(model, beam_scores=None, step_scores=None, weights=None)
    torch.testing.assert_close(first["logits"][0], output["logits"][0, [0, 2]])
    torch.testing.assert_close(first["logits"][1], output["logits"][1, :2])
    torch.testing.assert_close(output["logits"][0, 1], output["logits"][0, 2])


def test_rows_are_weighted():
    model, case = small_model("v1"), make_case(rows=4)
    alone = []
    for row in range(3):
        weights = torch.zeros(4)
        weights[row] = 7.0
        alone.append(case.call(model, weights=weights)["loss"])
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])  # the last row has no candidate
    together = case.call(model, weights=weights)["loss"]
    torch.testing.assert_close(
        together, sum(a * b for a, b in zip(alone, [1, 2, 3], strict=True)) / 6
    )
    nothing = case.call(model, weights=torch.zeros(4))["loss"]
    assert nothing == 0


@pytest.mark.parametrize("kind", STATIC)
def test_static_selector_keeps_its_scores(kind: str):
    output = make_case().call(small_model(kind))
    logits = output["logits"]
    same = torch.where(logits.isinf(), logits.amax(1, keepdim=True), logits)
    torch.testing.assert_close(same, logits.amax(1, keepdim=True).expand_as(logits))


@pytest.mark.parametrize("kind", [name for name in CONFIGS if name not in STATIC])
def test_stateful_selector_changes_its_scores(kind: str):
    case = make_case(rows=2, pool=6)
    case.mask.fill_(True)
    case.candidates = torch.randn(2, 6, 12)
    case.labels = torch.tensor([[0, 1], [2, 3]])
    logits = case.call(small_model(kind), beam_scores=None, step_scores=None)["logits"]
    assert (logits[:, 0, 4:] - logits[:, 1, 4:]).abs().max() > 1e-2
