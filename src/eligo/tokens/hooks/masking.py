"""`with masking(model, plan, ...):` the training form: cuts mask keys, and scores get gradients.

Two-stage pruning guide; spec section 2, "How a mask acts". Stage 1 acts as at inference. After it
nothing is removed: in every layer from a cut on, `log(m_bar + 1e-9)` is added to the logits of
vision keys, their diagonal apart, with `m_bar` the product of the masks so far. Departures:
- hidden states are not scaled: the norm at the entrance of every block cancels it
  (`acts_on="states"` does it all the same, for the exam to show);
- the floor is 1e-9: 1e-4 leaks, and at 0 the gradient would be dead;
- the gradient of a dropped entry is e^a / Z, a thousandfold of a kept one's: it is clamped to ten
  times the RMS of the kept ones, per image.
With hard masks this equals `pruning`. float16 cannot hold attention weights of 1e-9: train in
bfloat16 or float32.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eligo.errors import EligoError
from eligo.selection import Selection
from eligo.tokens.hooks.checks import check_selection
from eligo.tokens.hooks.frame import Frame, Step, ask, fewer
from eligo.tokens.hooks.layout import add_bias, arrange, follow, prompt_mask, spread
from eligo.tokens.hooks.pruning import Removal
from eligo.tokens.hosts import Host
from eligo.tokens.plan import Plan
from eligo.tokens.reducer import Reducer, ReducerContext, Relaxer, SoftCut
from eligo.tokens.trace import StageTrace, Stopwatch, Trace

FLOOR = 1e-9
"""What is left of a dropped key."""
_CLAMP = 10.0  # times the RMS of the kept


@contextmanager
def masking(
    model: nn.Module,
    plan: Plan,
    question_mask: Bool[Tensor, "batch length"] | None = None,
    *,
    relaxer: Relaxer | None = None,
    acts_on: Literal["keys", "states"] = "keys",
    scene: Bool[Tensor, "images tokens"] | None = None,
    host: Callable[[nn.Module], Host] | None = None,
) -> Iterator[Trace]:
    """Inside, forward passes of `model` act as under `pruning`, but with gradients to the stages.

    Logits and hidden states are as long as the merged prompt in every layer:
    `trace.output_columns` says which columns of the prompt these are, and `tokens.answer_loss`
    reads it. Without `relaxer`, the plan's reducers choose (`select`) and the masks are constants.
    `question_mask` is True on prompt words: not on answers, not on padding. Budgets are CPU
    tensors. There is no cache, hence no `generate`. With gradient checkpointing (not the reentrant
    kind), backward must run inside.
    """
    session = Masks(model, plan, question_mask, scene, host)
    session.relaxer, session.acts_on = relaxer, acts_on
    with session:
        yield session.trace


@dataclass(eq=False)
class _Survivors:
    """Vision tokens after a cut."""

    mask: Float[Tensor, "images tokens"]
    """m_bar."""
    alive: Bool[Tensor, "images tokens"]
    """What the hard form would still have."""
    counts: list[int]
    """How many of them, per image."""
    lengths: list[int]
    """Columns per row that it would have."""


class Masks(Removal):
    """Cuts hide columns."""

    relaxer: Relaxer | None = None
    acts_on: Literal["keys", "states"] = "keys"

    def merge(
        self, reducer: Reducer, context: ReducerContext, budget: Int[Tensor, " images"]
    ) -> tuple[Selection, Tensor, Tensor | None, Tensor | None]:
        """The relaxed merge, if there is one."""
        if self.relaxer is None:
            return super().merge(reducer, context, budget)
        soft = self.relaxer.merge(context, budget)
        check_selection(reducer, soft.selection, context, budget)
        sizes = soft.selection.sizes.detach()
        return soft.selection, soft.features, sizes, soft.key_bias

    def begin(self, kwargs: dict[str, Any]) -> tuple[Step, dict[str, Any]]:
        """As in the other form, without a cache."""
        if kwargs.get("past_key_values") is not None:
            raise EligoError(
                "masking: got a cache; expected none: the training form removes nothing, so there "
                "is nothing to generate with; use pruning"
            )
        step, kwargs = super().begin(kwargs)
        step.frame.trace.merged_columns = step.frame.kept
        return step, {**kwargs, "use_cache": False}

    def dress(
        self, layer: int, step: Step, hidden: Tensor, kwargs: Mapping[str, Any]
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Hide what was dropped."""
        frame = step.frame
        if layer in self.cuts:
            survivors = self._hide(layer, step, hidden)
        else:
            survivors = self._latest(layer, frame)
        if len(frame.trace.columns) == layer:
            frame.trace.columns.append(self._would_see(frame, survivors))
        if self.acts_on == "states" and survivors is not None:
            if layer in self.cuts:
                hidden = self._scale(hidden, frame, survivors)
            survivors = None
        if survivors is None and frame.base.bias is None:
            return hidden, {}
        mask = kwargs.get("attention_mask")
        known = step.made.get(survivors)
        # A checkpointed layer must do again in backward exactly what it did before.
        again = self.is_checkpointed() and step.has_grad
        if known is None or known[0] is not mask or again:
            known = (mask, None, self._fit(mask, frame, survivors, hidden))
            step.made[survivors] = known
        changed: dict[str, Any] = {"attention_mask": known[2]}
        if known[2] is not None and known[2].requires_grad and not hidden.requires_grad:
            # Where the mask alone wants gradients, CUDA's fused attention forgets its log-sum-exp.
            hidden = hidden.detach().requires_grad_()
        if survivors is not None and self.plan.positions == "reindex":
            positions: Tensor = kwargs["position_ids"]
            positions = positions - self._gone(frame, survivors).cumsum(-1).to(positions.device)
            changed["position_embeddings"] = self.host.text.rotary_emb(hidden, positions)
        return hidden, changed

    def _latest(self, layer: int, frame: Frame) -> _Survivors | None:
        done = [cut for cut in frame.moves if cut <= layer]
        return frame.moves[max(done)] if done else None

    def _hide(self, layer: int, step: Step, hidden: Tensor) -> _Survivors:
        """Choose among survivors. A second run in backward repeats it, but changes nothing."""
        if step.has_grad and not torch.is_grad_enabled():
            raise EligoError(
                "masking: reentrant gradient checkpointing runs layers without gradients; expected "
                "gradient_checkpointing_enable({'use_reentrant': False})"
            )
        frame, reducer = step.frame, self.cuts[layer].reducer
        before, base = self._latest(layer - 1, frame), frame.base
        wanted = self.budgets(layer, frame)
        watch = Stopwatch(hidden.device)
        context = self.views.inside(reducer, layer, frame, base, hidden)
        if before is not None:
            context = replace(context, mask=before.alive.to(hidden.device), padded=True)
        budget = torch.tensor(wanted)
        if self.relaxer is None:
            selection = ask(reducer, context, budget)
            soft = SoftCut(selection, selection.kept_mask.float())
        else:
            soft = self.relaxer.cut(layer, context, budget)
            check_selection(reducer, soft.selection, context, budget)
        watch.stop()
        if soft.selection.assignment is not None:
            raise EligoError(
                f"masking: {reducer.name} folds at layer {layer}; expected a method that drops: "
                "the training form keeps every column"
            )
        alive = soft.selection.kept_mask
        mask = soft.mask.float().masked_fill(~context.mask, 0.0)
        mask = ClampDropped.apply(mask, alive, context.mask)
        assert isinstance(mask, Tensor)
        lengths, counts = base.lengths, base.counts
        if before is not None:
            mask = before.mask.to(mask.device) * mask
            lengths, counts = before.lengths, before.counts
        lengths = fewer(lengths, frame.prompt.seats.rows, counts, wanted)
        survivors = _Survivors(mask, alive, wanted, lengths)
        if layer not in frame.moves:
            frame.moves[layer] = survivors
            kept = soft.selection.in_order()
            positions = follow(context.positions, kept.indices)
            frame.trace.stages.append(StageTrace(layer, reducer.name, kept, positions, watch))
        return survivors

    def _fit(
        self, mask: Tensor | None, frame: Frame, survivors: _Survivors | None, hidden: Tensor
    ) -> Tensor | None:
        base = frame.base
        mask = prompt_mask(mask, base, base.width, hidden, flat=False)
        if survivors is None:
            return mask
        if mask is None:
            shape = (base.width, base.width)
            mask = torch.ones(shape, dtype=torch.bool, device=hidden.device).tril()[None, None]
        bias = self._spread((survivors.mask + FLOOR).log(), frame)[:, None, None]
        own = torch.eye(base.width, dtype=torch.bool, device=bias.device)
        return add_bias(mask, torch.where(own, 0.0, bias).to(mask.device), hidden)

    def _scale(self, hidden: Tensor, frame: Frame, survivors: _Survivors) -> Tensor:
        """The guide's way: states times m_bar, once per cut."""
        gone = self._spread(1 - survivors.mask, frame).to(hidden.device)
        return hidden * (1 - gone).unsqueeze(-1).to(hidden.dtype)

    def _spread(self, values: Tensor, frame: Frame) -> Tensor:
        base, device = frame.base, values.device
        columns, rows = base.images.to(device), frame.prompt.rows.to(device)
        return spread(values, columns, rows, base.batch, base.width)

    def _gone(self, frame: Frame, survivors: _Survivors) -> Tensor:
        """Columns that the hard form would not have."""
        real = frame.base.images.to(survivors.alive.device) >= 0
        return self._spread((~survivors.alive & real).long(), frame)

    def _would_see(self, frame: Frame, survivors: _Survivors | None) -> Tensor:
        if survivors is None:
            return frame.kept
        images = frame.base.images
        images = images.masked_fill(~survivors.alive.to(images.device), -1)
        images = frame.prompt.seats.by_row(images, -1)
        index, _, _ = arrange(frame.base.words, images, survivors.lengths)
        return follow(frame.kept, index)


class ClampDropped(torch.autograd.Function):
    """The identity; backward, what was dropped gets no more than ten times the kept ones' RMS."""

    @staticmethod
    def forward(ctx: Any, mask: Tensor, kept: Tensor, real: Tensor) -> Tensor:
        """The mask as it is."""
        ctx.save_for_backward(kept, real & ~kept)
        return mask.view_as(mask)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The clamped gradient."""
        (gradient,) = gradients
        kept, dropped = ctx.saved_tensors
        power = torch.where(kept, gradient, 0.0).square().sum(-1, keepdim=True)
        limit = _CLAMP * (power / kept.sum(-1, keepdim=True).clamp_min(1)).sqrt()
        clamped = torch.minimum(torch.maximum(gradient, -limit), limit)
        return torch.where(dropped, clamped, gradient), None, None
