"""`eligo tokens export`: write stage 1 as a module for serving engines."""

from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import Annotated

import tyro

from eligo.cli.console import messages, print_result
from eligo.cli.flags import Budget, Count
from eligo.errors import InputError


def run(
    out: Path,
    plan: str | None = None,
    method: str | None = None,
    budgets: Annotated[tuple[Budget, ...], tyro.conf.arg(name="budget")] = (),
    model: Path | None = None,
    grid: tuple[Count, Count] | None = None,
    plain: bool = False,
    json: bool = False,
) -> None:
    """Write stage 1 of a plan for `torch.export.load`: it maps image features to fewer features.

    It also returns their positions in the grid and how many tokens each one replaces. Widths are
    read from the config.json of the host. Plans with an attention bias (size_bias) are errors.

    Args:
        out: The folder to write to.
        plan: A plan: a folder (of a plan, a checkpoint or a run), or the name of a shipped one.
        method: A training-free method instead of a plan, one that works before the language model.
        budgets: Vision tokens that the method keeps, or a share of them, such as 0.25.
        model: Folder of the host; by default the tiny LLaVA that comes with eligo.
        grid: Rows and columns of vision tokens; by default those of the host's image size.
        plain: For a method that merges tokens: leave out its attention bias.
        json: Print one JSON document.
    """
    from eligo.tokens.inference.resolve import load_plan

    chosen = load_plan(plan, method, budgets)
    if plain and method is None:
        raise InputError("--plain: needs --method; a plan was trained with its bias or without")
    chosen = replace(chosen, size_bias=chosen.size_bias and not plain)
    from eligo.pretrained.load import shipped_model
    from eligo.scenes.vlm import MADE_BY
    from eligo.tokens.cost.shapes import HostShape
    from eligo.tokens.inference.export import export_stage1

    host = HostShape.load(model or shipped_model("vlm", made_by=MADE_BY))
    if grid is None:
        if host.vision is None:
            raise InputError(f"--grid: needed, as a {host.name} takes images of any size")
        side = isqrt(host.vision)
        grid = (side, side)
    written = export_stage1(
        chosen, out, grid=grid, width=host.feature_width, question_width=host.layer.width
    )
    print_result(written, json)
    if written.left_out:
        messages().print(
            f"[bold yellow]warning:[/] left out: {', '.join(written.left_out)}; cuts between "
            "layers run in transformers only",
            soft_wrap=True,
        )
    if written.positions == "original":
        messages().print(
            "[bold yellow]warning:[/] this plan keeps the original positions of tokens; an engine "
            "that numbers columns anew gives other answers: pass the positions on, or train with "
            "positions: reindex (docs/serving.md)",
            soft_wrap=True,
        )
