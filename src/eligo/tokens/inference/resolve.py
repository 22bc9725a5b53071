"""The plan that a user names: a saved plan, or a training-free method with its budgets."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eligo.errors import InputError
from eligo.pretrained.load import shipped_models
from eligo.tokens.methods import METHODS, Method, read_method
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.tokens.plan_files import PLAN

if TYPE_CHECKING:
    import torch

FIRST_CUT = 2
"""The layer at which FastV cuts by default (its K)."""


def load_plan(
    plan: Plan | str | Path | None = None,
    method: str | None = None,
    budgets: Sequence[int | float] = (),
    layers: Sequence[int | float] = (),
) -> Plan:
    """Load a plan from a folder, by its shipped name or from the hub; or build one from a method.

    A budget is a number of vision tokens or, if it is a float, a share of them. A layer is an
    index or, if it is a float, a depth between 0 and 1. A budget for a plan is that of its first
    stage; the others change in proportion.

    >>> load_plan(method="uniform", budgets=(288, 100), layers=(2, 8)).layers
    (2, 8)
    """
    if (plan is None) == (method is None):
        raise InputError(
            "expected either a plan (a folder or a name) or a method with its budget "
            f"(plans: {', '.join(shipped_models(PLAN)) or 'none are shipped'}; "
            f"methods: {', '.join(METHODS)})"
        )
    if method is not None:
        return _method_plan(method, budgets, layers)
    assert plan is not None
    if layers or len(budgets) > 1:
        raise InputError("a plan has its own layers; expected at most one budget, of its stage 1")
    plan = plan if isinstance(plan, Plan) else Plan.from_pretrained(plan)
    return _with_budget(plan, budgets[0]) if budgets else plan


def shipped_plans() -> dict[str, Plan]:
    """Return the shipped plans by name, but those for serving engines, which have no size bias.

    >>> "tokens_default" in shipped_plans()
    True
    """
    plans = {name: Plan.from_pretrained(name) for name in shipped_models(PLAN)}
    return {name: plan for name, plan in plans.items() if plan.size_bias}


def _with_budget(plan: Plan, budget: int | float) -> Plan:
    """Return the plan with all its amounts scaled, so that the first stage keeps `budget`."""
    if not plan.stages:
        raise InputError(f"got budget {budget} for a plan that removes no tokens")
    amount = "budget" if isinstance(budget, int) else "ratio"
    given = getattr(plan.stages[0], amount)
    if given is None:
        other = "a share, such as 0.25" if amount == "budget" else "a number of tokens"
        raise InputError(f"got budget {budget}; expected {other}: this plan's amounts are such")
    if budget <= 0:
        raise InputError(f"got budget {budget}; expected a number above 0")
    return plan.scaled(budget / given)


def _method_plan(name: str, budgets: Sequence[int | float], layers: Sequence[int | float]) -> Plan:
    method = read_method(name)
    if method.name == "none":
        return Plan()
    if not budgets:
        raise InputError(f"method {name}: needs a budget, the number of vision tokens to keep")
    if not layers and "before" in method.where and len(budgets) != 1:
        raise InputError(
            f"method {name}: got budgets {tuple(budgets)}, expected one before the language "
            "model, or a layer for each"
        )
    if len(layers or (FIRST_CUT,)) != len(budgets):
        raise InputError(f"got {len(layers)} layers and {len(budgets)} budgets, expected pairs")
    return place_method(method, budgets, layers)


def place_method(
    method: Method, budgets: Sequence[int | float], layers: Sequence[int | float] = ()
) -> Plan:
    """Return a plan of one method: cuts at `layers` or, without any, stage 1 if it can be there."""
    if not layers and "before" in method.where:
        return Plan(Stage1(method, *_amount(budgets[0])))
    pairs = zip(layers or (FIRST_CUT,), budgets, strict=True)
    return Plan(cuts=[Cut(layer, method, *_amount(kept)) for layer, kept in pairs])


def move_plan(plan: Plan | None, device: "torch.device | str") -> None:
    """Move the learned parts of a plan to a device."""
    from torch import nn

    for stage in plan.stages if plan else ():
        if isinstance(stage.reducer, nn.Module):
            stage.reducer.to(device)


def _amount(kept: int | float) -> tuple[int | None, float | None]:
    """Return budget and ratio."""
    return (kept, None) if isinstance(kept, int) else (None, kept)
