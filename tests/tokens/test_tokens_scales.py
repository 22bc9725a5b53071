"""One plan for several budgets; pruners that do not read the question; attention as a target."""

from dataclasses import replace

import pytest
import torch
from tiny_task import first_batch, make, tiny

from eligo.errors import ConfigError, InputError
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.inference.resolve import load_plan
from eligo.tokens.methods import build
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.tokens.training import objective
from eligo.tokens.training.task import TokensTask
from eligo.train import Progress


def kept(plan: Plan) -> list[int | None]:
    return [stage.budget for stage in plan.stages]


def test_a_budget_scales_all_stages():
    plan = Plan(Stage1(build("uniform"), 48), [Cut(2, build("uniform"), 32)])
    assert kept(load_plan(plan, budgets=(24,))) == [24, 16]
    assert kept(load_plan(plan)) == [48, 32]
    shares = Plan(Stage1(build("uniform"), ratio=0.5))
    assert load_plan(shares, budgets=(0.25,)).stages[0].ratio == 0.25


@pytest.mark.parametrize(
    ("plan", "budget", "message"),
    [
        (Plan(Stage1(build("uniform"), ratio=0.5)), 9, "expected a share"),
        (Plan(Stage1(build("uniform"), 9)), 0.5, "expected a number of tokens"),
        (Plan(), 9, "removes no tokens"),
        (Plan(Stage1(build("uniform"), ratio=0.5)), 1.5, "at most 1"),
        (Plan(Stage1(build("uniform"), 9)), -3, "above 0"),
    ],
)
def test_budgets_that_do_not_fit_a_plan_are_refused(plan, budget, message):
    with pytest.raises(InputError, match=message):
        load_plan(plan, budgets=(budget,))


def test_steps_take_the_scales_in_turn():
    task = make(scales=[1.0, 0.5])
    batch = first_batch(task)
    counts = [
        [float(value) for name, value in task.step(batch, Progress(step, 4)).metrics.items()
         if name.startswith("kept/")]
        for step in range(3)
    ]  # fmt: skip
    assert counts == [[9, 6, 3], [5, 3, 2], [9, 6, 3]]


def test_scales_above_the_tokens_of_the_host_are_refused():
    with pytest.raises(ConfigError, match=r"scales: got 2\.0: .*expected at most 16"):
        TokensTask(tiny(scales=[2.0]))


def test_simple_pruners_do_not_read_the_question(tmp_path):
    task = make(merger=None, pruners__kind="simple")
    assert "simple" in str(task.pruners.shape)
    task.plan.save(tmp_path)
    plan = Plan.load(tmp_path)
    assert plan.cuts[0].reducer.kind == "simple"
    batch = first_batch(task)
    chosen = []
    one_word = batch.question_mask & (batch.question_mask.long().cumsum(-1) == 1)
    for asked in (batch.question_mask, one_word):
        with torch.no_grad(), pruning(task.model, plan, asked) as trace:
            task.model(**batch.inputs)
        chosen.append([stage.selection.indices for stage in trace.stages])
    for one, other in zip(*chosen, strict=True):
        assert torch.equal(one, other)
    assert plan.cuts[0].reducer.flops(16, 5) < task_flops(5)


def task_flops(words: int) -> float:
    return make(merger=None).plan.cuts[0].reducer.flops(16, words)


@pytest.mark.parametrize("questions", [1, 2])
def test_recorded_attention_is_that_of_the_model(questions: int):
    """Of rows of their own, and of packed ones."""
    task = make(losses__attention=1.0, data__questions_per_image=questions)
    batch = first_batch(task)
    assert (batch.packed is None) == (questions == 1)
    found = task.observe_whole(batch).attention
    task.model.set_attn_implementation("eager")
    with torch.no_grad():
        layers = task.model(**batch.inputs, output_attentions=True).attentions
    is_image = batch.inputs["input_ids"] == task.host.image_token_id
    for row in range(len(is_image)):
        last = int((batch.labels[row] != -100).nonzero()[0]) - 1
        of_layers = torch.stack([layers[at][row, :, last].mean(0) for at in (2, 3)])
        expected = of_layers.mean(0)[is_image[row]]
        torch.testing.assert_close(found[row], expected / expected.sum(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("questions", [1, 2])
def test_rows_without_an_answer_have_finite_attention(questions: int):
    task = make(losses__attention=1.0, data__questions_per_image=questions)
    batch = first_batch(task)
    labels = batch.labels.clone()
    labels[1] = -100
    found = task.observe_whole(replace(batch, labels=labels)).attention
    assert found.isfinite().all()


def test_attention_trains_the_scores_of_all_stages():
    task = make(losses__attention=1.0)
    batch = first_batch(task)
    target = task.observe_whole(batch)
    parts = [*task.merger.parameters(), *task.pruners.parameters()]
    optimizer = torch.optim.Adam(parts, lr=0.02)
    values = []
    for _ in range(30):
        student, relaxer = task.observe_pruned(batch, task.relaxation(0.0, training=False))
        loss = objective.losses_of(student, target, relaxer, batch)["attention"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
        gradients = [head.scorer.mlp[0].weight.grad for head in task.pruners.heads.values()]
        assert all(gradient.abs().max() > 0 for gradient in gradients)
    assert values[-1] < 0.5 * values[0]


def test_a_merged_token_is_worth_the_attention_to_its_members():
    task = make(losses__attention=1.0)
    batch = first_batch(task)
    whole = task.observe_whole(batch)
    _, relaxer = task.observe_pruned(batch, task.relaxation(1.0, training=False))
    members = relaxer.members
    assert members.shape == (4, 9, 16)
    assert ((members == 0) | (members == 1)).all()  # after annealing each token is in exactly one
    torch.testing.assert_close(members.sum(1), torch.ones(4, 16))
    _, soft = task.observe_pruned(batch, task.relaxation(0.0, training=False))
    torch.testing.assert_close(soft.members.sum(1), torch.ones(4, 16))
    assert (soft.members.amax(1) < 0.99).any()
    expected = []
    for layer, stage in relaxer.decisions.items():
        kl = []
        for row in range(4):
            target = whole.attention[row]
            if layer:
                target = torch.stack([target[members[row, j] > 0].sum() for j in range(9)])
            alive = stage.mask[row]
            target = target[alive] / target[alive].sum()
            scores = stage.scores[row][alive].log_softmax(-1)
            kl.append((target * (target.log() - scores)).sum())
        expected.append(torch.stack(kl).mean())
    found = objective.attention_loss(whole.attention, relaxer)
    torch.testing.assert_close(found, torch.stack(expected).mean())


def test_attention_needs_a_fixed_number_of_tokens(monkeypatch):
    task = make()
    monkeypatch.setattr(type(task.host), "supply", None, raising=False)
    with pytest.raises(ConfigError, match="expected a host with a fixed number"):
        TokensTask(tiny(losses__attention=1.0))
