"""FLOPs of the methods against torch's counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from eligo.tokens.cost.flops import SelectorCost
from eligo.tokens.cost.plan_cost import plan_cost
from eligo.tokens.cost.shapes import LLAVA_7B
from eligo.tokens.hooks.attention import attention_of_rows
from eligo.tokens.methods import METHODS, build
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.tokens.reducer import ReducerContext

TOKENS, WORDS, WIDTH = 36, 5, 16
ROWS = {  # what is read: keys of a row, and how many rows
    "attention_row": (TOKENS + WORDS, 1),
    "question_rows": (TOKENS + WORDS, WORDS),
    "cls_row": (TOKENS + 1, 1),
    "object_row": (TOKENS + 1, 1),
}
VARIANTS = [
    *(build(name) for name in METHODS),
    build("tome", rounds=1),
    build("tome", rounds=9),
    build("cdpruner", relevance="attention_row"),
    build("cdpruner", relevance="cls_row"),
    build("dart", word_pivots=0),
    build("holov", crops=5),
]


def whole_image() -> ReducerContext:
    generator = torch.Generator().manual_seed(0)
    return ReducerContext(
        features=torch.randn(1, TOKENS, WIDTH, generator=generator),
        mask=torch.ones(1, TOKENS, dtype=torch.bool),
        positions=torch.arange(TOKENS)[None],
        grid=torch.tensor([[6, 6]]),
        question=torch.randn(1, WORDS, WIDTH, generator=generator),
        question_mask=torch.ones(1, WORDS, dtype=torch.bool),
        attention_row=torch.rand(1, TOKENS, generator=generator),
        question_rows=torch.rand(1, WORDS, TOKENS, generator=generator),
        cls_row=torch.rand(1, TOKENS, generator=generator),
        object_row=torch.rand(1, TOKENS, generator=generator),
        scene=torch.rand(1, TOKENS, generator=generator) < 0.3,
    )


def counted_rows(keys: int, rows: int) -> int:
    """FLOPs of the attention rows, in four heads of total width `WIDTH`."""
    query, key = torch.randn(1, 4, rows, WIDTH // 4), torch.randn(1, 4, keys, WIDTH // 4)
    with FlopCounterMode(display=False) as counter:
        attention_of_rows(query, key, None, 1.0, torch.zeros(1, rows, dtype=torch.long))
    return counter.get_total_flops()


@pytest.mark.parametrize("budget", [1, 7, 18, TOKENS])
@pytest.mark.parametrize(
    "method", VARIANTS, ids=lambda m: "-".join(str(v) for v in m.describe().values())
)
def test_flops_equal_torchs_counter(method, budget):
    if method.name == "none" and budget < TOKENS:
        return
    assert isinstance(method, SelectorCost)
    context = whole_image()
    with FlopCounterMode(display=False) as counter:
        selection = method.select(context, torch.tensor([budget]))
        selection.fold(context.features)
    rows = sum(counted_rows(*ROWS[need]) for need in method.needs if need in ROWS)
    counted = method.flops(TOKENS, WORDS, WIDTH, WIDTH, budget)
    assert counted == counter.get_total_flops() + rows


def test_every_method_is_counted_in_a_plan():
    for name, cls in METHODS.items():
        method = build(name)
        budget = 576 if name == "none" else 64
        before = "before" in method.where
        plan = Plan(Stage1(method, budget)) if before else Plan(cuts=[Cut(2, method, budget)])
        cost = plan_cost(LLAVA_7B, plan, 100)
        assert cost.uncounted == (), cls
        assert cost.selector is not None
        # A selector that is no bargain would not be called one.
        assert cost.selector < 0.02 * cost.llm_full
