"""Plans on disk: `plan.json`, and the weights of learned modules beside it.

Training-free methods are stored as their settings; merger and pruners are files of their own. No
code in the folder is run: an unknown name is an error.
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
from eligo.tokens.plan import Cut, HostMark, Plan, Stage1
from eligo.tokens.reducer import Reducer

_FORMAT = "eligo.plan.v1"
PLAN = "plan.json"


def save(plan: Plan, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write a plan and its learned modules, weights as `dtype`."""
    from eligo.tokens.model.layer_pruners import LayerPruner, LayerPruners
    from eligo.tokens.model.token_merger import TokenMerger
    from eligo.tokens.model.vision_selector import VisionSelector

    # Learned cuts have layer indices, never depths.
    heads = {
        int(cut.layer): cut.reducer for cut in plan.cuts if isinstance(cut.reducer, LayerPruner)
    }
    first = None if plan.stage1 is None else plan.stage1.reducer
    if isinstance(first, TokenMerger | VisionSelector):
        first.save_pretrained(folder, dtype=dtype)
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
    """Read a plan and its learned modules.

    A published checkpoint of VisionSelector is a plan that keeps the share it was trained for.
    """
    from eligo.tokens.model.vision_selector import (
        PUBLISHED_RATIO,
        VisionSelector,
        published_weights,
    )

    resolved = folder.resolve()  # `best` and `last` are links
    run = resolved.parents[1] if resolved.parent.name == "checkpoints" else folder
    path = next((p for p in (folder / PLAN, run / PLAN) if p.is_file()), None)
    if path is None and published_weights(folder):
        return Plan(Stage1(VisionSelector.from_pretrained(folder), ratio=PUBLISHED_RATIO))
    if path is None:
        raise InputError(
            f"{folder}: no {PLAN} in it; expected the folder of a saved plan (Plan.save), or of "
            "a run of `eligo tokens train` or one of its checkpoints"
        )
    described = read_object(path, "Plan.save")
    if (name := described.get("format")) != _FORMAT:
        raise InputError(f"{path}: got format {name!r}, expected {_FORMAT!r}")
    build = _ReducerBuilder(folder, reducers)
    with reading(path, "a plan as Plan.save writes it"):
        first = described["stage1"]
        stage1 = None
        if first is not None:
            stage1 = Stage1(build(first["reducer"]), first["budget"], first["ratio"])
        cuts = [
            Cut(cut["layer"], build(cut["reducer"], cut["layer"]), cut["budget"], cut["ratio"])
            for cut in described["cuts"]
        ]
        mark = described.get("host")  # absent in plans of older versions
        host = None if mark is None else HostMark(dict(mark["architecture"]), dict(mark["weights"]))
        return Plan(stage1, cuts, described["positions"], described["size_bias"], host)


class _ReducerBuilder:
    """Builds reducers by name; loads the pruners only once."""

    def __init__(self, folder: Path, custom: Mapping[str, Callable[..., Reducer]]) -> None:
        self.folder, self.custom = folder, custom
        self.pruners: Any = None

    def __call__(self, described: dict[str, Any], layer: int | float = 0) -> Reducer:
        from eligo.tokens import methods
        from eligo.tokens.model.layer_pruners import LayerPruner, LayerPruners
        from eligo.tokens.model.token_merger import TokenMerger
        from eligo.tokens.model.vision_selector import VisionSelector

        settings = dict(described)
        name = settings.pop("name")
        if name in self.custom:
            return self.custom[name](**settings)
        if name == TokenMerger.name:
            return TokenMerger.from_pretrained(self.folder)
        if name == VisionSelector.name:
            return VisionSelector.from_pretrained(self.folder)
        if name == LayerPruner.name:
            self.pruners = self.pruners or LayerPruners.from_pretrained(self.folder)
            return self.pruners[int(layer)]
        return methods.build(name, **settings)


def _describe(stage: Stage1 | Cut) -> dict[str, Any]:
    reducer: Any = stage.reducer
    settings = reducer.describe() if hasattr(reducer, "describe") else {"name": reducer.name}
    return {"reducer": settings, "budget": stage.budget, "ratio": stage.ratio}
