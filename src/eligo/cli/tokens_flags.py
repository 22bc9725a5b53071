"""What several `tokens` commands have alike: which plan, which device, the table of arms."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eligo.config.nearest import did_you_mean
from eligo.errors import InputError
from eligo.tokens.methods import METHODS, read_method
from eligo.tokens.plan import Cut, Plan, Stage1

if TYPE_CHECKING:
    from rich.table import Table

MODELS = Path(__file__).parents[1] / "scenes" / "models"
_FIRST_CUT = 2  # FastV's K: what attention says in the first two layers decides


def shipped_plans() -> list[str]:
    """The names of the plans in the package."""
    return sorted(path.parent.name for path in MODELS.glob("*/plan.json"))


def find_plan(
    plan: str | None, method: str | None, budgets: tuple[int, ...], layers: tuple[int, ...]
) -> Plan:
    """The plan of a folder, a shipped one by name, or a training-free method with its budgets."""
    if (plan is None) == (method is None):
        raise InputError(
            "expected one of --plan NAME_OR_FOLDER and --method NAME --budget N"
            f" (plans: {', '.join(shipped_plans()) or 'none are shipped'}; "
            f"methods: {', '.join(METHODS)})"
        )
    if method is not None:
        return _of_method(method, budgets, layers)
    assert plan is not None
    if budgets or layers:
        raise InputError("--budget and --layer go with --method; a plan has its own")
    if Path(plan).is_dir():
        return Plan.load(plan)
    if plan in shipped_plans():
        return Plan.load(MODELS / plan)
    names = shipped_plans()
    raise InputError(
        f"--plan: got {plan!r}, neither a folder nor a shipped plan{did_you_mean(plan, names)} "
        f"({', '.join(names) or 'none are shipped'})"
    )


def _of_method(name: str, budgets: tuple[int, ...], layers: tuple[int, ...]) -> Plan:
    method = read_method(name)
    if method.name == "none":
        return Plan()
    if not budgets:
        raise InputError(f"--method {name}: needs --budget, how many vision tokens to keep")
    if not layers and "before" in method.where:
        if len(budgets) != 1:
            raise InputError(
                f"--method {name}: got budgets {budgets}, expected one before the language model, "
                "or a --layer for each"
            )
        return Plan(Stage1(method, budgets[0]))
    layers = layers or (_FIRST_CUT,)
    if len(layers) != len(budgets):
        raise InputError(f"got {len(layers)} layers and {len(budgets)} budgets, expected pairs")
    return Plan(cuts=[Cut(at, method, kept) for at, kept in zip(layers, budgets, strict=True)])


def arm_table(title: str, caption: str, columns: Sequence[str]) -> "Table":
    """An empty table with a row for each arm to come."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(
        title=title, caption=caption, title_justify="left", caption_justify="left",
        box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False,
    )  # fmt: skip
    made.add_column("arm", overflow="fold")
    for name in columns:
        made.add_column(name, justify="right", no_wrap=True)
    return made


def pick_device(device: str) -> str:
    """The name of a device that is there; `auto` takes a GPU if there is one."""
    from eligo.devices import resolve_device

    return str(resolve_device(device))
