"""Plans that share the vision tower answer as each of them does alone."""

from typing import Any

import pytest
import torch
from hosts import FAMILIES, IMAGE, TinyHost, build
from torch import Tensor

from eligo.tokens import methods
from eligo.tokens.hooks.model_hooks import sharing_tower
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.plan import Cut, Plan, Stage1

PLANS = [
    None,
    Plan(),
    Plan(Stage1(methods.build("tome"), 8)),
    Plan(Stage1(methods.build("visionzip"), 6)),  # needs a row of the tower
    Plan(Stage1(methods.build("hiprune"), 7)),  # needs another one, too
    Plan(Stage1(methods.build("visionzip"), 5), [Cut(1, methods.build("fastv"), 3)]),
]


def logits(host: TinyHost, plan: Plan | None, inputs: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        if plan is None:
            return host.model(**inputs).logits
        with pruning(host.model, plan):
            return host.model(**inputs).logits


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the towers of `counted` ran."""
    return []


def counted(host: TinyHost, runs: list[int]) -> TinyHost:
    """The same host; `runs` grows with every run of its tower."""
    core = host.model.model
    tower = next(
        t for n in ("vision_tower", "visual", "vision_model") if (t := getattr(core, n, None))
    )
    inner = next(
        module
        for module in tower.modules()
        if isinstance(module, torch.nn.Conv2d | torch.nn.Conv3d)
    )
    inner.register_forward_hook(lambda *_: runs.append(1))
    return host


@pytest.mark.parametrize("family", FAMILIES)
def test_plans_share_one_run(family: str, runs: list[int]):
    host = counted(build(family), runs)
    rows = [[2, IMAGE, 3], [1, IMAGE, 4]]
    inputs, others = host.batch(rows), host.batch(rows, seed=1)
    alone = [logits(host, plan, inputs) for plan in PLANS]
    other_alone = logits(host, PLANS[3], others)
    before = len(runs)
    with sharing_tower(host.model):
        together = [logits(host, plan, inputs) for plan in PLANS]
        shared = len(runs) - before
        other = logits(host, PLANS[3], others)
        assert len(runs) - before > shared  # other images
        again = logits(host, PLANS[3], inputs)
    for one, both in zip([*alone, other_alone, alone[3]], [*together, other, again], strict=True):
        assert one.equal(both)
    assert shared == 3  # without rows, for one row, for both


def test_nothing_is_kept_outside(runs: list[int]):
    host = counted(build("llava"), runs)
    inputs = host.batch([[2, IMAGE, 3]])
    with sharing_tower(host.model):
        logits(host, PLANS[3], inputs)
    assert "forward" not in vars(host.model.model.vision_tower)
    logits(host, PLANS[3], inputs)
    logits(host, PLANS[3], inputs)
    assert len(runs) == 3


def test_changed_pixels_are_seen(runs: list[int]):
    host = build("llava")
    inputs = host.batch([[2, IMAGE, 3]])
    with sharing_tower(host.model):
        before = logits(host, PLANS[3], inputs)
        inputs["pixel_values"].add_(0.5)  # in place: the same tensor
        after = logits(host, PLANS[3], inputs)
    assert not before.equal(after)
    assert after.equal(logits(host, PLANS[3], inputs))


def test_with_gradients_every_call_runs(runs: list[int]):
    host = counted(build("llava"), runs)
    inputs = host.batch([[2, IMAGE, 3]])
    with sharing_tower(host.model):
        for _ in range(2):
            with pruning(host.model, PLANS[2]):
                host.model(**inputs).logits.sum().backward()
    assert len(runs) == 2
