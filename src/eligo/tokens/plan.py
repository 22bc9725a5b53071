"""What is kept where: one reduction before the language model, and cuts between its layers.

Two-stage pruning guide, "merge_ratio" and "pruning_layers"; a plan says it once, for training, cost
and inference alike. A plan knows no model: `resolve` fits it to a number of layers, `counts` to an
image. Departs from the guide in that budgets are exact counts, so that lengths, and so costs, are
known before a model runs; engines that size placeholders beforehand ask `count`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from eligo.config.bounds import check_count
from eligo.errors import InputError
from eligo.pretrained.load import find_model
from eligo.tokens.host_mark import HostMark
from eligo.tokens.reducer import Reducer

if TYPE_CHECKING:
    import torch

Positions = Literal["original", "reindex"]
"""What survivors keep: their place in the full sequence, or their place among the survivors."""


@dataclass(frozen=True)
class Stage1:
    """The reduction before the language model: `budget` tokens of every image, or a `ratio`.

    Both may be given if they agree. A ratio is of the image's own tokens, rounded to the nearest
    count. An image that has fewer tokens than the budget keeps them all.
    """

    reducer: Reducer
    budget: int | None = None
    ratio: float | None = None

    def __post_init__(self) -> None:
        _check_amount("stage 1", self.budget, self.ratio)
        _check_reducer("stage 1", self.reducer, "before")


@dataclass(frozen=True)
class Cut:
    """A cut acts on the **input** of `layer`: later layers see only what it kept.

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
        _check_amount(f"the cut at layer {self.layer}", self.budget, self.ratio)
        _check_reducer(f"the cut at layer {self.layer}", self.reducer, "inside")


@dataclass(frozen=True)
class Plan:
    """Stage 1 (or none), cuts in the order of their layers, and how survivors are treated.

    >>> from eligo.tokens.methods import build
    >>> plan = Plan(Stage1(build("uniform"), 288), [Cut(1 / 4, build("uniform"), 150)])
    >>> plan.counts((24, 24))
    (288, 150)
    """

    stage1: Stage1 | None = None
    cuts: Sequence[Cut] = ()
    positions: Positions = "original"
    size_bias: bool = True
    """Keys that stand for z tokens get `log z` in every layer of the language model."""
    host: HostMark | None = None
    """The host that the learned parts were trained in; None: fits every host."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cuts", tuple(self.cuts))
        if self.positions not in ("original", "reindex"):
            raise InputError(
                f"Plan: got positions={self.positions!r}; expected 'original' or 'reindex'"
            )
        _check_order([cut.layer for cut in self.cuts])
        for name in ("budget", "ratio"):
            given = [getattr(stage, name) for stage in self.stages]
            known = [amount for amount in given if amount is not None]
            if any(later > earlier for earlier, later in pairwise(known)):
                raise InputError(
                    f"Plan: got {name}s {known}; expected none above the one before it: what was "
                    "dropped stays dropped"
                )

    @property
    def stages(self) -> tuple[Stage1 | Cut, ...]:
        """Stage 1, if there is one, then the cuts."""
        return (*([self.stage1] if self.stage1 else []), *self.cuts)

    @property
    def layers(self) -> tuple[int, ...]:
        """Where the cuts are; the plan must be resolved (or have been given indices)."""
        return tuple(_index(cut.layer) for cut in self.cuts)

    def resolve(self, num_layers: int, supply: int | None = None) -> "Plan":
        """The same plan with layer indices, checked against a model of `num_layers` layers.

        `supply`: tokens of an image, where all images have equally many; then budgets above it,
        and budgets that disagree with their ratios, are errors before any image is seen. A depth
        is rounded to the nearest layer, and to 1 if that would be 0.
        """
        layers = [_nearest_layer(cut.layer, num_layers) for cut in self.cuts]
        if any(layer >= num_layers for layer in layers):
            raise InputError(
                f"Plan: got cuts at layers {layers}; expected them below {num_layers}, the number "
                "of layers of this language model"
            )
        _check_order(layers, f" (depths {[cut.layer for cut in self.cuts]} of {num_layers} layers)")
        cuts = [replace(cut, layer=layer) for cut, layer in zip(self.cuts, layers, strict=True)]
        plan = replace(self, cuts=cuts)
        if supply is not None:
            budgets = [stage.budget for stage in self.stages if stage.budget is not None]
            if budgets and max(budgets) > supply:
                raise InputError(
                    f"Plan: got a budget of {max(budgets)}; expected at most {supply}, the number "
                    "of vision tokens that this model makes of an image"
                )
            plan.counts((supply,))
        return plan

    def count(self, grid: Sequence[int]) -> int:
        """Tokens of an image that enter the language model; `grid` is rows x columns.

        Pure Python: for engines that need the number of placeholders before features exist.
        """
        return self.counts(grid)[0] if self.stage1 else math.prod(grid)

    def counts(self, grid: Sequence[int]) -> tuple[int, ...]:
        """Tokens of an image after each of `stages`."""
        full = math.prod(grid)
        reached, counts = full, []
        for stage in self.stages:
            wanted = _wanted(stage, full)
            if stage.budget is None and wanted > reached:
                raise InputError(
                    f"Plan: {_name(stage)} keeps {wanted} of {full} tokens (ratio {stage.ratio}) "
                    f"but only {reached} reach it; expected amounts that fall from stage to stage"
                )
            reached = min(wanted, reached)
            counts.append(reached)
        return tuple(counts)

    def save(self, folder: str | Path, *, dtype: "torch.dtype | None" = None) -> None:
        """Write `plan.json` and whatever files the reducers have (weights, as `dtype`) to a folder.

        Also called `save_pretrained`, as for all that is trained.
        """
        from eligo.tokens import plan_files

        plan_files.save(self, Path(folder), dtype)

    @classmethod
    def load(
        cls,
        name: str | Path,
        reducers: "Mapping[str, Callable[..., Reducer]] | None" = None,
    ) -> "Plan":
        """Read what `save` wrote: by its folder, a shipped one's name, or a name on the hub.

        A run gives the parts of its best checkpoint; one of `RUN/checkpoints`, `RUN/best` and
        `RUN/last` gives its own, with the plan of the run it lies in.

        `reducers` adds methods of one's own: name -> what builds it from its settings. Also called
        `from_pretrained`, as for all that is trained.
        """
        from eligo.tokens import plan_files

        return plan_files.load(find_model(name, plan_files.PLAN), reducers or {})

    save_pretrained, from_pretrained = save, load


def _wanted(stage: Stage1 | Cut, full: int) -> int:
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


def _index(layer: int | float) -> int:
    if isinstance(layer, float):
        raise InputError(
            f"Plan: got depth {layer} where a layer index is needed; call plan.resolve(num_layers)"
        )
    return layer


def _nearest_layer(layer: int | float, num_layers: int) -> int:
    if isinstance(layer, int):
        return layer
    return max(1, math.floor(layer * num_layers + 0.5))


def _check_amount(name: str, budget: int | None, ratio: float | None) -> None:
    if budget is None and ratio is None:
        raise InputError(f"Plan: {name} has neither budget nor ratio; expected one of them")
    if budget is not None and check_count(f"Plan: {name}: budget", budget, least=0) < 1:
        raise InputError(
            f"Plan: {name} has budget {budget}; expected at least 1: a model asked about an image "
            "of which it sees nothing answers blindly"
        )
    if ratio is not None and not 0 < ratio <= 1:
        raise InputError(f"Plan: {name} has ratio {ratio}; expected a number above 0, at most 1")


def _check_reducer(name: str, reducer: Reducer, place: Literal["before", "inside"]) -> None:
    if place not in reducer.where:
        raise InputError(
            f"Plan: {name} uses {reducer.name!r}, which works only {' and '.join(reducer.where)} "
            f"the language model; expected a method that can stand {place} it"
        )


def _check_order(layers: Sequence[int | float], note: str = "") -> None:
    kinds = {isinstance(layer, float) for layer in layers}
    if len(kinds) > 1:
        raise InputError(
            f"Plan: got layers {list(layers)}; expected all indices or all depths, as they can "
            "be ordered only among themselves"
        )
    if any(later <= earlier for earlier, later in pairwise(layers)):
        raise InputError(
            f"Plan: got cuts at layers {list(layers)}{note}; expected each one above the one "
            "before it"
        )
