"""What pruning adds to the host's work: kernels to launch, and waiting for the device.

Operators that reach the dispatcher stand for kernels; views launch nothing. Values are not looked
at, as on a GPU. Bounds are what is needed today and a little more: at about 20 microseconds each on
a host that a 7B model keeps busy, a hundred more would eat the savings of a cut.
"""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from benchmarks.tokens.speed import PARTS, default_plan, random_inputs, random_llava
from eligo import selection
from eligo.ops import ragged, topk
from eligo.tokens.hooks import checks
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.model.modules import LayerPruner, MergerShape, TokenMerger
from eligo.tokens.plan import Plan
from eligo.tokens.reducer import ReducerContext

VIEWS = {
    "alias", "as_strided", "detach", "diagonal", "empty", "empty_like", "expand", "lift_fresh",
    "new_empty", "permute", "select", "slice", "split", "split_with_sizes", "squeeze", "t",
    "transpose", "unbind", "unsqueeze", "view", "_unsafe_view",
}  # fmt: skip
WAITS = {"_local_scalar_dense", "nonzero", "item", "equal", "is_nonzero", "masked_select"}


class Launches(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.seen[func.__name__.split(".")[0]] += 1
        return func(*args, **(kwargs or {}))

    @property
    def count(self) -> int:
        return sum(number for name, number in self.seen.items() if name not in VIEWS)

    @property
    def waits(self) -> int:
        return sum(self.seen[name] for name in WAITS)


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ragged, topk, selection, checks):
        monkeypatch.setattr(module, "values_are_free", lambda *_: False)


def a_context(images: int = 2) -> ReducerContext:
    return ReducerContext(
        features=torch.randn(images, 16, 8),
        mask=torch.ones(images, 16, dtype=torch.bool),
        positions=torch.arange(16).expand(images, 16),
        grid=torch.tensor([[4, 4]] * images),
        question=torch.randn(images, 5, 8),
        question_mask=torch.ones(images, 5, dtype=torch.bool),
        padded=False,
        question_padded=False,
    )


@pytest.mark.parametrize(
    ("reducer", "bound"),
    [
        (LayerPruner(8, 8, 2), 46),
        (TokenMerger(MergerShape(width=8, dim=8)), 62),
        (TokenMerger(MergerShape(kind="question_aware", width=8, question_width=8, dim=8)), 74),
    ],
)
def test_choosing(reducer: Any, bound: int) -> None:
    """And what is known to be unpadded gives what would be found out."""
    context, budget = a_context(), torch.tensor([6, 6])
    with torch.no_grad():
        reducer.select(context, budget)  # what is made once
        with Launches() as launches:
            found = reducer.select(context, budget)
        careful = reducer.select(replace(context, padded=True, question_padded=True), budget)
    assert launches.count <= bound, launches.seen
    assert launches.waits == 0
    assert found.indices.equal(careful.indices)
    assert found.scores.equal(careful.scores)
    if careful.assignment is not None:
        assert found.assignment is not None
        assert found.assignment.equal(careful.assignment)


def run(
    model: Any, plan: Plan | None, inputs: dict[str, Tensor]
) -> tuple[Launches, list[Launches]]:
    """A prompt, and three tokens after it."""
    mask = inputs["attention_mask"]
    with torch.no_grad(), nullcontext() if plan is None else pruning(model, plan):
        cache = DynamicCache()
        with Launches() as prefill:
            output = model(**inputs, past_key_values=cache, use_cache=True)
        decode = []
        for _ in range(3):
            token = output.logits[:, -1:].argmax(-1)
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            with Launches() as step:
                output = model(
                    input_ids=token, attention_mask=mask, past_key_values=cache, use_cache=True
                )
            decode.append(step)
    return prefill, decode


@pytest.mark.parametrize("batch", [1, 3])
def test_a_prompt_and_the_tokens_after_it(batch: int) -> None:
    model = random_llava("narrow", torch.device("cpu"))
    plan = default_plan(model, PARTS["narrow"], 8)
    inputs = random_inputs(model, batch, 8)
    run(model, plan, inputs)  # what is made once
    full, full_steps = run(model, None, inputs)
    pruned, steps = run(model, plan, inputs)
    per_stage = (pruned.count - full.count) / len(plan.stages)
    assert per_stage <= 72, pruned.seen - full.seen
    assert pruned.waits == 0, "all that is read is read before the tower, in one list"
    added = [step.count - other.count for step, other in zip(steps, full_steps, strict=True)]
    # The first step makes the masks of all stretches; then they only grow.
    assert added[0] <= len(plan.stages) + 2, steps[0].seen - full_steps[0].seen
    assert max(added[1:]) <= 2, steps[1].seen - full_steps[1].seen
    assert all(step.waits <= other.waits for step, other in zip(steps, full_steps, strict=True))
