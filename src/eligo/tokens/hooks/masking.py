"""`with masking(model, plan, ...):` the training form: cuts mask keys, and scores get gradients.

Stage 1 acts as at inference. After it nothing is removed: in every layer from a cut on,
`log(m_bar + 1e-9)` is added to the logits of vision keys, except on the diagonal, with `m_bar` the
product of the masks so far. Departures from the two-stage pruning design (docs/sources.md):
- hidden states are not scaled, since the norm at the start of every block cancels it
  (`acts_on="states"` scales them, for comparison);
- the floor is 1e-9: 1e-4 leaks, and 0 has no gradient;
- the gradient of a dropped entry is e^a / Z, a thousand times that of a kept one: it is clamped to
  ten times the RMS of the kept ones, per image.
With hard masks this equals `pruning`. float16 cannot hold attention weights of 1e-9: train in
bfloat16 or float32.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eligo.errors import EligoError
from eligo.tokens.hooks.context import (
    ForwardPass,
    Kwargs,
    MergedTokens,
    PromptState,
    check_selection,
    run_reducer,
)
from eligo.tokens.hooks.layout import add_bias, arrange, causal_mask, put, take_index
from eligo.tokens.hooks.pruning import TokenRemoval
from eligo.tokens.hosts import Host
from eligo.tokens.plan import Plan
from eligo.tokens.reducer import Budget, Reducer, ReducerContext, Relaxer, SoftCut
from eligo.tokens.trace import StageTrace, Stopwatch, Trace

FLOOR = 1e-9
"""Attention weight that a dropped key keeps."""
_CLAMP = 10.0  # times the RMS of the kept entries' gradients


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
    """Inside, forward passes act as under `pruning`, but with gradients to the stages.

    Logits and hidden states are as long as the merged prompt in every layer; `trace.output_columns`
    holds its columns, and `tokens.answer_loss` reads it. Without `relaxer`, the plan's reducers
    select and the masks are constants. `question_mask` is True on prompt words: not on answers, not
    on padding. There is no cache, hence no `generate`. With gradient checkpointing (not reentrant),
    backward must run inside.
    """
    session = TokenMasking(model, plan, question_mask, scene, host)
    session.relaxer, session.acts_on = relaxer, acts_on
    with session:
        yield session.trace


@dataclass(eq=False)
class _Survivors:
    """Vision tokens after a cut."""

    mask: Float[Tensor, "images tokens"]  # m_bar
    alive: Bool[Tensor, "images tokens"]  # tokens that `pruning` would keep
    counts: list[int]  # their number per image
    lengths: list[int]  # columns per row under `pruning`


class TokenMasking(TokenRemoval):
    """A session in which cuts hide columns."""

    relaxer: Relaxer | None = None
    acts_on: Literal["keys", "states"] = "keys"

    def merge(self, reducer: Reducer, context: ReducerContext, budget: Budget) -> MergedTokens:
        """Run the relaxed stage 1, if there is a relaxer."""
        if self.relaxer is None:
            return super().merge(reducer, context, budget)
        soft = self.relaxer.merge(context, budget)
        check_selection(reducer, soft.selection, context, budget)
        sizes = soft.selection.sizes.detach()
        return MergedTokens(soft.selection, soft.features, sizes, soft.key_bias)

    def begin(self, kwargs: Kwargs) -> tuple[ForwardPass, Kwargs]:
        """Start a pass without a cache."""
        if kwargs.get("past_key_values") is not None:
            raise EligoError(
                "masking: got a cache; expected none: the training form removes no tokens; to "
                "generate, use pruning"
            )
        forward, kwargs = super().begin(kwargs)
        forward.state.trace.merged_columns = forward.state.kept
        return forward, {**kwargs, "use_cache": False}

    def adapt_inputs(
        self, layer: int, forward: ForwardPass, hidden: Tensor, kwargs: Kwargs
    ) -> tuple[Tensor, Kwargs]:
        """Hide dropped tokens."""
        state = forward.state
        if layer in self.cuts:
            survivors = self._hide(layer, forward, hidden)
        else:
            survivors = self._latest(layer, state)
        if len(state.trace.columns) == layer:
            state.trace.columns.append(self._pruned_columns(state, survivors))
        if self.acts_on == "states" and survivors is not None:
            if layer in self.cuts:
                hidden = self._scale(hidden, state, survivors)
            survivors = None
        if survivors is None and state.base.bias is None and not self.host.has_windows:
            return hidden, {}
        mask = kwargs.get("attention_mask")
        key = (survivors, self.host.windows[layer])
        cached = forward.adapted.get(key)
        # A checkpointed layer must repeat exactly the same operations in backward.
        recompute = self.is_checkpointed() and forward.has_grad
        if cached is None or cached[0] is not mask or recompute:
            shown = self.layer_mask(layer, forward, state.base, hidden, kwargs)
            cached = (mask, None, self._hidden_mask(shown, state, survivors, hidden))
            forward.adapted[key] = cached
        changed: dict[str, Any] = {"attention_mask": cached[2]}
        if cached[2] is not None and cached[2].requires_grad and not hidden.requires_grad:
            # If only the mask requires grad, CUDA's fused attention does not save its log-sum-exp.
            hidden = hidden.detach().requires_grad_()
        if survivors is not None and self.plan.positions == "reindex":
            real = state.base.images.to(survivors.alive.device) >= 0
            dropped = self._put((~survivors.alive & real).long(), state)
            positions: Tensor = kwargs["position_ids"]
            positions = positions - dropped.cumsum(-1).to(positions.device)
            changed["position_embeddings"] = self.host.rotary(layer, hidden, positions)
        return hidden, changed

    def _latest(self, layer: int, state: PromptState) -> _Survivors | None:
        done = [cut for cut in state.cuts if cut <= layer]
        return state.cuts[max(done)] if done else None

    def _hide(self, layer: int, forward: ForwardPass, hidden: Tensor) -> _Survivors:
        """Run a cut; a second run in backward repeats it without side effects."""
        lacks_grad = not torch.is_grad_enabled() or _is_reentrant(self.host.layers[layer])
        if forward.has_grad and lacks_grad:
            raise EligoError(
                "masking: reentrant gradient checkpointing loses the gradients of masks; expected "
                "gradient_checkpointing_enable({'use_reentrant': False})"
            )
        state, reducer = forward.state, self.cuts[layer].reducer
        before, base = self._latest(layer - 1, state), state.base
        counts = self.budgets(layer, state)
        watch = Stopwatch(hidden.device)
        context = self.contexts.for_cut(reducer, layer, state, base, hidden)
        if before is not None:
            context = replace(context, mask=before.alive.to(hidden.device), padded=True)
        budget = torch.tensor(counts)
        if self.relaxer is None:
            selection = run_reducer(reducer, context, budget)
            soft = SoftCut(selection, selection.kept_mask.float())
        else:
            soft = self.relaxer.cut(layer, context, budget)
            check_selection(reducer, soft.selection, context, budget)
        watch.stop()
        if soft.selection.assignment is not None:
            raise EligoError(
                f"masking: {reducer.name} merges tokens at layer {layer}; expected a method that "
                "drops: the training form keeps every column"
            )
        alive = soft.selection.kept_mask
        mask = soft.mask.float().masked_fill(~context.mask, 0.0)
        mask = ClampDropped.apply(mask, alive, context.mask)
        assert isinstance(mask, Tensor)
        if before is not None:
            mask = before.mask.to(mask.device) * mask
        last = base if before is None else before
        lengths = state.prompt.row_index.reduced_lengths(last.lengths, last.counts, counts)
        survivors = _Survivors(mask, alive, counts, lengths)
        if layer not in state.cuts:
            state.cuts[layer] = survivors
            kept = soft.selection.in_order()
            positions = take_index(context.positions, kept.indices)
            state.trace.stages.append(StageTrace(layer, reducer.name, kept, positions, watch))
        return survivors

    def _hidden_mask(
        self, mask: Tensor | None, state: PromptState, survivors: _Survivors | None, hidden: Tensor
    ) -> Tensor | None:
        """Return the mask with the logits of dropped tokens lowered."""
        base = state.base
        if survivors is None:
            return mask
        if mask is None:
            mask = causal_mask(base.width, base.width, hidden.device)
        bias = self._put((survivors.mask + FLOOR).log(), state)[:, None, None]
        diagonal = torch.eye(base.width, dtype=torch.bool, device=bias.device)
        return add_bias(mask, torch.where(diagonal, 0.0, bias).to(mask.device), hidden)

    def _scale(self, hidden: Tensor, state: PromptState, survivors: _Survivors) -> Tensor:
        """Multiply states by m_bar, as the two-stage pruning design does."""
        dropped = self._put(1 - survivors.mask, state).to(hidden.device)
        return hidden * (1 - dropped).unsqueeze(-1).to(hidden.dtype)

    def _put(self, values: Tensor, state: PromptState) -> Tensor:
        """Return values of vision tokens at their columns, zeros elsewhere."""
        base, device = state.base, values.device
        columns, rows = base.images.to(device), state.prompt.rows.to(device)
        return put(values.new_zeros((base.batch, base.width)), values, columns, rows)

    def _pruned_columns(self, state: PromptState, survivors: _Survivors | None) -> Tensor:
        """Return the columns that a layer would have under `pruning`."""
        if survivors is None:
            return state.kept
        images = state.base.images
        images = images.masked_fill(~survivors.alive.to(images.device), -1)
        images = state.prompt.row_index.by_row(images, -1)
        index, _, _ = arrange(state.base.words, images, survivors.lengths)
        return take_index(state.kept, index)


def _is_reentrant(layer: nn.Module) -> bool:
    """Whether transformers checkpoints a layer in the reentrant form, torch's default."""
    if not (getattr(layer, "gradient_checkpointing", False) and layer.training):
        return False
    options = getattr(getattr(layer, "_gradient_checkpointing_func", None), "keywords", None)
    return options is not None and options.get("use_reentrant") is not False


class ClampDropped(torch.autograd.Function):
    """Identity; backward clamps gradients of dropped entries to ten times the kept ones' RMS."""

    @staticmethod
    def forward(ctx: Any, mask: Tensor, kept: Tensor, real: Tensor) -> Tensor:
        """Return the mask."""
        ctx.save_for_backward(kept, real & ~kept)
        return mask.view_as(mask)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the clamped gradient."""
        (gradient,) = gradients
        kept, dropped = ctx.saved_tensors
        power = torch.where(kept, gradient, 0.0).square().sum(-1, keepdim=True)
        limit = _CLAMP * (power / kept.sum(-1, keepdim=True).clamp_min(1)).sqrt()
        clamped = torch.minimum(torch.maximum(gradient, -limit), limit)
        return torch.where(dropped, clamped, gradient), None, None
