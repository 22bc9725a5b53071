"""Plans on disk: `plan.json`, and the weights of its learned parts beside it.

Training-free methods are their settings; the merger and the pruner heads are files of their own,
each loadable alone. Nothing in the folder is run: a name that is not known is an error.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eligo.errors import InputError
from eligo.io.files import write_text
from eligo.io.reading import read_object, reading
from eligo.tokens.host_mark import HostMark
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.tokens.reducer import Reducer

_FORMAT = "eligo.plan.v1"
PLAN = "plan.json"


def save(plan: Plan, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write a plan and its parts, the latter's weights as `dtype`."""
    from eligo.tokens.model.layer_pruners import LayerPruner, LayerPruners
    from eligo.tokens.model.token_merger import TokenMerger

    heads = {
        layer: cut.reducer
        for layer, cut in zip(_layers(plan), plan.cuts, strict=True)
        if isinstance(cut.reducer, LayerPruner)
    }
    if plan.stage1 is not None and isinstance(plan.stage1.reducer, TokenMerger):
        plan.stage1.reducer.save_pretrained(folder, dtype=dtype)
    if heads:
        pruners = LayerPruners(next(iter(heads.values())).shape(tuple(heads)))
        pruners.heads = nn.ModuleDict({str(layer): head for layer, head in heads.items()})
        pruners.save_pretrained(folder, dtype=dtype)
    described = {
        "format": _FORMAT,
        "stage1": None if plan.stage1 is None else _describe(plan.stage1),
        "cuts": [{"layer": cut.layer, **_describe(cut)} for cut in plan.cuts],
        "positions": plan.positions,
        "size_bias": plan.size_bias,
    }
    if plan.host is not None:
        described["host"] = {
            "architecture": dict(plan.host.architecture), "weights": dict(plan.host.weights),
        }  # fmt: skip
    write_text(folder / PLAN, json.dumps(described, indent=1) + "\n")


def load(folder: Path, reducers: Mapping[str, Callable[..., Reducer]]) -> Plan:
    """Read a plan and its parts."""
    path = next((p for p in _places(folder) if p.is_file()), None)
    if path is None:
        raise InputError(
            f"{folder}: no {PLAN} in it; expected the folder of a saved plan (Plan.save), or of "
            "a run of `eligo tokens train` or one of its checkpoints"
        )
    described = read_object(path, "Plan.save")
    if (found := described.get("format")) != _FORMAT:
        raise InputError(f"{path}: got format {found!r}, expected {_FORMAT!r}")
    build = _Builder(folder, reducers)
    with reading(path, "a plan as Plan.save writes it"):
        first = described["stage1"]
        stage1 = None if first is None else Stage1(build(first["reducer"]), *_amount(first))
        cuts = [
            Cut(cut["layer"], build(cut["reducer"], cut["layer"]), *_amount(cut))
            for cut in described["cuts"]
        ]
        mark = described.get("host")  # plans of older versions have none
        host = None if mark is None else HostMark(dict(mark["architecture"]), dict(mark["weights"]))
        return Plan(stage1, cuts, described["positions"], described["size_bias"], host)


def _places(folder: Path) -> tuple[Path, ...]:
    """Its own; for a checkpoint, its run's, which is written once: only the parts change."""
    inside = folder.resolve()  # `best` and `last` are links
    run = [inside.parents[1] / PLAN] if inside.parent.name == "checkpoints" else []
    return (folder / PLAN, *run)


class _Builder:
    """Reducers by name; learned parts from their files, the heads' file only once."""

    def __init__(self, folder: Path, own: Mapping[str, Callable[..., Reducer]]) -> None:
        self.folder, self.own = folder, own
        self.heads: Any = None

    def __call__(self, described: dict[str, Any], layer: int | float = 0) -> Reducer:
        from eligo.tokens import methods
        from eligo.tokens.model.layer_pruners import LayerPruners
        from eligo.tokens.model.token_merger import TokenMerger

        settings = dict(described)
        name = settings.pop("name")
        if name in self.own:
            return self.own[name](**settings)
        if name == TokenMerger.name:
            return TokenMerger.from_pretrained(self.folder)
        if name == "pruner":
            self.heads = self.heads or LayerPruners.from_pretrained(self.folder)
            return self.heads[int(layer)]
        return methods.build(name, **settings)


def _describe(stage: Stage1 | Cut) -> dict[str, Any]:
    reducer: Any = stage.reducer
    settings = reducer.describe() if hasattr(reducer, "describe") else {"name": reducer.name}
    return {"reducer": settings, "budget": stage.budget, "ratio": stage.ratio}


def _amount(described: Mapping[str, Any]) -> tuple[int | None, float | None]:
    return described["budget"], described["ratio"]


def _layers(plan: Plan) -> list[int]:
    """Heads belong to layers; a plan of depths alone has no learned cuts."""
    return [cut.layer if isinstance(cut.layer, int) else -1 for cut in plan.cuts]
