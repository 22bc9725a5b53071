"""Pruning plans: one reduction before the language model, and cuts between its layers.

Training, cost and inference use the same plan. It is independent of a model: `resolve` fits it to a
number of layers, `counts` to an image. Departure from the two-stage pruning design
(docs/sources.md): budgets are exact counts, so lengths and costs are known before a model runs.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from eligo.config.bounds import check_count
from eligo.errors import InputError
from eligo.pretrained.identity import Weights, same_weights, sampled_weights
from eligo.pretrained.load import find_model
from eligo.tokens.reducer import Reducer, Where

if TYPE_CHECKING:
    import torch

    from eligo.tokens.hosts import Host

_log = logging.getLogger("eligo.tokens")

Positions = Literal["original", "reindex"]
"""Kept tokens keep their positions in the full sequence, or are renumbered without gaps."""


@dataclass(frozen=True)
class Stage1:
    """The reduction before the language model: `budget` tokens of every image, or a `ratio`.

    Both may be given if they agree. A ratio is of the image's own tokens, rounded to the nearest
    count. An image with fewer tokens than the budget keeps them all.
    """

    reducer: Reducer
    budget: int | None = None
    ratio: float | None = None

    def __post_init__(self) -> None:
        _check_stage(self, "before")


@dataclass(frozen=True)
class Cut:
    """A cut at the **input** of `layer`: later layers get only the kept tokens.

    `layer` is an index (from 1: layer 0 is never cut), or a depth in (0, 1). A ratio is of the
    image's full number of tokens, before stage 1, so that ratios of successive cuts fall.
    """

    layer: int | float
    reducer: Reducer
    budget: int | None = None
    ratio: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.layer, float) and not 0 < self.layer < 1:
            raise InputError(
                f"Cut: got layer={self.layer}; expected a whole number from 1, or a depth between "
                "0 and 1 such as 0.25"
            )
        if isinstance(self.layer, int) and self.layer < 1:
            raise InputError(
                f"Cut: got layer={self.layer}; expected 1 or more: layer 0 is never cut, reduce "
                "before the language model with stage1 instead"
            )
        _check_stage(self, "inside")


@dataclass(frozen=True)
class HostMark:
    """Architecture and a sample of the weights of the host in which a plan was trained."""

    architecture: Mapping[str, Any]
    weights: Weights
    _compared: set[int] = field(default_factory=set, compare=False, repr=False)
    """Ids of models whose weights were compared: once is enough."""

    @classmethod
    def of(cls, host: "Host") -> "HostMark":
        """Return the mark of a host."""
        return cls(_architecture(host), sampled_weights(host.core))

    def check(self, host: "Host") -> None:
        """Raise if a host has a different architecture; warn if only its weights differ."""
        now = _architecture(host)
        for name, expected in self.architecture.items():
            if name in now and now[name] != expected:
                raise InputError(
                    f"plan: was trained in a host with {name} {expected}, this one has "
                    f"{now[name]}; expected the host that it was trained in: train a plan for "
                    "this one with `eligo tokens train --host.model FOLDER`"
                )
        if id(host.core) in self._compared:
            return
        self._compared.add(id(host.core))
        if not same_weights(host.core, self.weights):
            _log.warning(
                "plan: was trained in a host of this architecture with other weights; its "
                "selection may be poor here: compare it with `eligo tokens evaluate`, or train a "
                "plan for this host"
            )


def _architecture(host: "Host") -> dict[str, Any]:
    """Return the properties that a trained plan depends on, as JSON values."""
    feature = getattr(host.config, "vision_feature_layer", None)
    tower = getattr(host.tower, "config", None)
    return {
        "family": host.family,
        "layers": len(host.layers),
        "width": host.text_width,
        "feature width": host.feature_width,
        "tokens of an image": host.supply,
        "tower layers": getattr(tower, "num_hidden_layers", None),
        "patch size": getattr(tower, "patch_size", None),
        "vision feature layer": list(feature) if isinstance(feature, list | tuple) else feature,
    }


@dataclass(frozen=True)
class Plan:
    """Stage 1 (or none), cuts in the order of their layers, and treatment of kept tokens.

    >>> from eligo.tokens.methods import build
    >>> plan = Plan(Stage1(build("uniform"), 288), [Cut(1 / 4, build("uniform"), 150)])
    >>> plan.counts((24, 24))
    (288, 150)
    """

    stage1: Stage1 | None = None
    cuts: Sequence[Cut] = ()
    positions: Positions = "original"
    size_bias: bool = True
    """Keys merged from z tokens get a bias of `log z` in every layer of the language model."""
    host: HostMark | None = None
    """The host in which the learned modules were trained; None: fits every host."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cuts", tuple(self.cuts))
        if self.positions not in ("original", "reindex"):
            raise InputError(
                f"Plan: got positions={self.positions!r}; expected 'original' or 'reindex'"
            )
        _check_order([cut.layer for cut in self.cuts])
        for name in ("budget", "ratio"):
            given = [getattr(stage, name) for stage in self.stages]
            amounts = [amount for amount in given if amount is not None]
            if any(later > earlier for earlier, later in pairwise(amounts)):
                raise InputError(
                    f"Plan: got {name}s {amounts}; expected none above the one before it: dropped "
                    "tokens do not come back"
                )

    @property
    def stages(self) -> tuple[Stage1 | Cut, ...]:
        """Stage 1, if there is one, then the cuts."""
        return (*([self.stage1] if self.stage1 else []), *self.cuts)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the cuts, as indices; depths need `resolve` first."""
        for cut in self.cuts:
            if isinstance(cut.layer, float):
                raise InputError(
                    f"Plan: got depth {cut.layer} where a layer index is needed; call "
                    "plan.resolve(num_layers)"
                )
        return tuple(int(cut.layer) for cut in self.cuts)

    def resolve(self, num_layers: int, supply: int | None = None) -> "Plan":
        """Return the plan with layer indices, checked against a model of `num_layers` layers.

        `supply`: tokens of an image, if all images have equally many; then budgets above it, and
        budgets that disagree with their ratios, are errors before any image is read. A depth is
        rounded to the nearest layer, but at least 1.
        """
        layers = [
            cut.layer
            if isinstance(cut.layer, int)
            else max(1, math.floor(cut.layer * num_layers + 0.5))
            for cut in self.cuts
        ]
        if any(layer >= num_layers for layer in layers):
            raise InputError(
                f"Plan: got cuts at layers {layers}; expected them below {num_layers}, the number "
                "of layers of this language model"
            )
        _check_order(layers, f" (depths {[cut.layer for cut in self.cuts]} of {num_layers} layers)")
        cuts = [replace(cut, layer=layer) for cut, layer in zip(self.cuts, layers, strict=True)]
        plan = replace(self, cuts=cuts)
        if supply is not None:
            self.check_budgets(supply, "that this model computes for an image")
            plan.counts((supply,))
        return plan

    def scaled(self, factor: float) -> "Plan":
        """Return the plan with all budgets and ratios multiplied by a factor; at least one token.

        >>> from eligo.tokens.methods import build
        >>> plan = Plan(Stage1(build("uniform"), 64), [Cut(2, build("uniform"), 33)])
        >>> [stage.budget for stage in plan.scaled(0.5).stages]
        [32, 17]
        """
        if not (math.isfinite(factor) and factor > 0):
            raise InputError(f"Plan: got scale {factor}; expected a number above 0")

        def scale(stage: Any) -> Any:
            budget, ratio = stage.budget, stage.ratio
            if budget is not None:
                budget = max(1, math.floor(budget * factor + 0.5))
            return replace(stage, budget=budget, ratio=None if ratio is None else ratio * factor)

        stage1 = None if self.stage1 is None else scale(self.stage1)
        return replace(self, stage1=stage1, cuts=[scale(cut) for cut in self.cuts])

    def check_budgets(self, num_tokens: int, origin: str) -> None:
        """Raise for budgets above the number of vision tokens: they would keep everything."""
        budgets = [stage.budget for stage in self.stages if stage.budget is not None]
        if budgets and max(budgets) > num_tokens:
            raise InputError(
                f"Plan: got a budget of {max(budgets)}; expected at most {num_tokens}, the number "
                f"of vision tokens {origin}"
            )

    def count(self, grid: Sequence[int]) -> int:
        """Return the tokens of an image that enter the language model; `grid` is rows x columns.

        Pure Python: for engines that need the number of placeholders before features exist.
        """
        return self.counts(grid)[0] if self.stage1 else math.prod(grid)

    def counts(self, grid: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens of an image after each of `stages`."""
        full = math.prod(grid)
        reached, counts = full, []
        for stage in self.stages:
            target = _target(stage, full)
            if stage.budget is None and target > reached:
                raise InputError(
                    f"Plan: {_name(stage)} keeps {target} of {full} tokens (ratio {stage.ratio}) "
                    f"but only {reached} reach it; expected amounts that fall from stage to stage"
                )
            reached = min(target, reached)
            counts.append(reached)
        return tuple(counts)

    def save(self, folder: str | Path, *, dtype: "torch.dtype | None" = None) -> None:
        """Write `plan.json` and the files of learned modules (weights as `dtype`) to a folder.

        Also called `save_pretrained`.
        """
        from eligo.tokens import plan_files

        plan_files.save(self, Path(folder), dtype)

    @classmethod
    def load(
        cls, name: str | Path, reducers: "Mapping[str, Callable[..., Reducer]] | None" = None
    ) -> "Plan":
        """Load a plan from its folder, by the name of a shipped one, or by a name on the hub.

        A run gives the modules of its best checkpoint; one of `RUN/checkpoints`, `RUN/best` and
        `RUN/last` gives its own, with the plan of the run. `reducers` adds custom methods: a name,
        and a function that builds the method from its settings. Also called `from_pretrained`.
        """
        from eligo.tokens import plan_files

        return plan_files.load(find_model(name, plan_files.PLAN), reducers or {})

    save_pretrained, from_pretrained = save, load


def _target(stage: Stage1 | Cut, full: int) -> int:
    of_ratio = None if stage.ratio is None else max(1, math.floor(stage.ratio * full + 0.5))
    if stage.budget is None:
        assert of_ratio is not None
        return of_ratio
    if of_ratio is not None and of_ratio != stage.budget:
        raise InputError(
            f"Plan: {_name(stage)} has budget {stage.budget} and ratio {stage.ratio}, which is "
            f"{of_ratio} of {full} tokens; expected them to agree: give one of them"
        )
    return stage.budget


def _name(stage: Stage1 | Cut) -> str:
    return "stage 1" if isinstance(stage, Stage1) else f"the cut at layer {stage.layer}"


def _check_stage(stage: Stage1 | Cut, where: Where) -> None:
    name, budget, ratio, reducer = _name(stage), stage.budget, stage.ratio, stage.reducer
    if budget is None and ratio is None:
        raise InputError(f"Plan: {name} has neither budget nor ratio; expected one of them")
    if budget is not None and check_count(f"Plan: {name}: budget", budget, least=0) < 1:
        raise InputError(
            f"Plan: {name} has budget {budget}; expected at least 1: without vision tokens, a "
            "model cannot answer questions about an image"
        )
    if ratio is not None and not 0 < ratio <= 1:
        raise InputError(f"Plan: {name} has ratio {ratio}; expected a number above 0, at most 1")
    if where not in reducer.where:
        raise InputError(
            f"Plan: {name} uses {reducer.name!r}, which works only {' and '.join(reducer.where)} "
            f"the language model; expected a method that works {where} it"
        )


def _check_order(layers: Sequence[int | float], note: str = "") -> None:
    if len({isinstance(layer, float) for layer in layers}) > 1:
        raise InputError(
            f"Plan: got layers {list(layers)}; expected all indices or all depths, as they can "
            "be ordered only among themselves"
        )
    if any(later <= earlier for earlier, later in pairwise(layers)):
        raise InputError(
            f"Plan: got cuts at layers {list(layers)}{note}; expected each one above the one "
            "before it"
        )
