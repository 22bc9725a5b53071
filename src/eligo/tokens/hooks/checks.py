"""What pruning refuses, before it goes wrong silently. Spec: "Clear error for", "Bad input"."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from eligo.errors import EligoError, InputError
from eligo.ops._checks import values_are_free
from eligo.selection import Selection
from eligo.tokens.hosts import Host
from eligo.tokens.plan import Plan
from eligo.tokens.reducer import Reducer, ReducerContext


def check_call(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, any_stage: bool
) -> None:
    """Arguments of a forward pass that pruning cannot follow."""
    if torch.compiler.is_compiling():
        raise EligoError(
            "pruning: the model is being compiled; expected plain execution: lengths change from "
            "layer to layer"
        )
    if args:
        names = list(inspect.signature(module.forward).parameters)
        kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
    if kwargs.get("labels") is not None and any_stage:
        raise InputError(
            "pruning: got labels, which are longer than the logits will be; call the model "
            "without them and use eligo.tokens.answer_loss(outputs, labels, trace)"
        )
    cache = kwargs.get("past_key_values")
    if cache is not None and getattr(cache, "is_compileable", False):
        raise InputError(
            "pruning: got a static cache; expected a dynamic one (the default): its layers have "
            "one length each"
        )
    if cache is not None and any(getattr(cache, "is_sliding", [])):
        raise InputError(
            "pruning: got a cache with sliding-window layers; expected full attention in all"
        )
    keep = kwargs.get("logits_to_keep", 0)
    if isinstance(keep, Tensor):
        raise InputError(
            "pruning: got logits_to_keep as indices, which count columns that may be gone; "
            "expected a number: so many from the end"
        )
    if cache is not None and keep is not None and keep > 1:
        raise InputError(
            f"pruning: got logits_to_keep={keep} together with a cache, as assisted decoding "
            "does; expected plain generation: a cache that is cropped cannot be followed"
        )


def check_reducers(host: Host, plan: Plan) -> None:
    """A plan against a host, before anything runs."""
    if plan.host is not None:
        plan.host.check(host)
    if plan.positions == "reindex" and host.mrope:
        raise InputError(
            f"{host.family}: got positions='reindex'; expected 'original': its positions have "
            "three axes, which cannot be closed up"
        )
    attention = host.attention
    flash = attention.startswith("flash")
    if not flash and attention not in ("sdpa", "eager"):
        raise InputError(
            f"{host.family}: got attention {attention!r}; expected sdpa, eager or flash attention: "
            "load the model with attn_implementation='sdpa'"
        )
    if flash and plan.size_bias and plan.stages:
        raise InputError(
            "pruning: flash attention takes no key bias; expected size_bias=False in the plan, or "
            "attn_implementation='sdpa'"
        )
    if plan.stage1 is not None:
        _check_width(plan.stage1.reducer, host.feature_width, "tower features")
    for cut in plan.cuts:
        _check_width(cut.reducer, host.text_width, "the language model's states")


def _check_width(reducer: Reducer, width: int, what: str) -> None:
    expected = _width_of(reducer)
    if expected is not None and expected != width:
        raise InputError(
            f"{reducer.name}: was made for a width of {expected}, but {what} are {width} wide; "
            "expected a part that was trained on this host"
        )


def _width_of(reducer: Reducer) -> int | None:
    """The width that a learned part says it was made for."""
    for owner, name in (
        (reducer, "width"),
        (getattr(reducer, "shape", None), "width"),
        (getattr(getattr(reducer, "scorer", None), "vision_norm", None), "normalized_shape"),
    ):
        found = getattr(owner, name, None)
        if isinstance(found, int):
            return found
        if isinstance(found, tuple) and len(found) == 1:
            return found[0]
    return None


def check_selection(
    reducer: Reducer,
    selection: Selection,
    context: ReducerContext,
    budget: Int[Tensor, " images"],
) -> None:
    """What a reducer promised; values only where looking at them is free."""
    if selection.scores.shape != context.mask.shape:
        raise EligoError(
            f"{reducer.name}: chose among {tuple(selection.scores.shape)} candidates, expected "
            f"{tuple(context.mask.shape)}, those it was given"
        )
    if not values_are_free(selection.scores, selection.indices):
        return
    if not bool((selection.scores.isfinite() | ~context.mask).all()):
        raise EligoError(
            f"{reducer.name}: got scores that are not finite; expected numbers: look for NaN in "
            "its weights or in the model's states (half precision overflows)"
        )
    if not torch.equal(selection.num_kept, budget):
        raise EligoError(
            f"{reducer.name}: kept {selection.num_kept.tolist()} tokens, expected exactly "
            f"{budget.tolist()}: all lengths follow from the budgets"
        )
