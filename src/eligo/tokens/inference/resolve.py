"""The plan that a user means: a saved one by name, or a training-free method with its budgets.

Shared by the command line and the lmms-eval plug-in.
"""

from collections.abc import Sequence

from eligo.errors import InputError
from eligo.pretrained.load import shipped_models
from eligo.tokens.methods import METHODS, read_method
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.tokens.plan_files import PLAN

_FIRST_CUT = 2  # FastV's K: what attention says in the first two layers decides


def find_plan(
    plan: str | None = None,
    method: str | None = None,
    budgets: Sequence[int | float] = (),
    layers: Sequence[int | float] = (),
) -> Plan:
    """The plan of a folder, a shipped one, one of the hub, or a method that keeps `budgets`.

    A budget is a number of vision tokens, or (a fraction) a share of the image's; a layer is its
    number, or (a fraction) how deep it lies.

    >>> find_plan(method="uniform", budgets=(288, 100), layers=(2, 8)).layers
    (2, 8)
    """
    if (plan is None) == (method is None):
        raise InputError(
            "expected one of a plan (a folder or a name) and a method with its budget "
            f"(plans: {', '.join(shipped_models(PLAN)) or 'none are shipped'}; "
            f"methods: {', '.join(METHODS)})"
        )
    if method is not None:
        return _of_method(method, budgets, layers)
    assert plan is not None
    if budgets or layers:
        raise InputError("budget and layer go with a method; a plan has its own")
    return Plan.from_pretrained(plan)


def _of_method(name: str, budgets: Sequence[int | float], layers: Sequence[int | float]) -> Plan:
    method = read_method(name)
    if method.name == "none":
        return Plan()
    if not budgets:
        raise InputError(f"method {name}: needs a budget, how many vision tokens to keep")
    if not layers and "before" in method.where:
        if len(budgets) != 1:
            raise InputError(
                f"method {name}: got budgets {tuple(budgets)}, expected one before the language "
                "model, or a layer for each"
            )
        return Plan(Stage1(method, *_amount(budgets[0])))
    layers = layers or (_FIRST_CUT,)
    if len(layers) != len(budgets):
        raise InputError(f"got {len(layers)} layers and {len(budgets)} budgets, expected pairs")
    pairs = zip(layers, budgets, strict=True)
    return Plan(cuts=[Cut(at, method, *_amount(kept)) for at, kept in pairs])


def _amount(kept: int | float) -> tuple[int | None, float | None]:
    """Budget and ratio."""
    return (kept, None) if isinstance(kept, int) else (None, kept)
