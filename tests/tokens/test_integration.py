"""Pruned `generate` equals a full recompute without cache, with masked keys, on every host."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hosts import ENCODES_FIRST, FAMILIES, IMAGE, NEWER_ONLY, TinyHost, shared
from tiny_models import BUILDERS, TEXT
from token_truth import ByContent, truth
from torch import Tensor

from eligo.errors import InputError
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.plan import Cut, Plan, Stage1

NEW = 3
STAGES = ("1", "2", "both")
BATCHES = ("one", "padded", "ragged")


def make_plan(stages: str, *, folds: bool = False, **options: Any) -> Plan:
    stage1 = Stage1(ByContent(folds=folds, seed=1), ratio=0.625)
    cuts = [Cut(1, ByContent(seed=2), ratio=0.375), Cut(3, ByContent(seed=3), ratio=0.125)]
    return Plan(
        stage1 if stages in ("1", "both") else None,
        cuts if stages in ("2", "both") else [],
        **options,
    )


def rows_of(kind: str, family: str) -> list[list[Any]]:
    style = shared(family).style
    small, large = {"grid": ((2, 4), (4, 6)), "sizes": ((2, 4), (4, 6)),
                    "tiles": ((16, 32), (24, 30))}.get(style, (IMAGE, IMAGE))  # fmt: skip
    return {
        "one": [[3, IMAGE, 5]],
        "padded": [[3, IMAGE, 8], [2, IMAGE, 3]],
        "ragged": [[3, small, 2, large, 3], [2, small, 9], [4, large, 2]],
    }[kind]


def generate(host: TinyHost, inputs: dict[str, Any], **options: Any) -> tuple[Tensor, Tensor]:
    """New tokens, and the logits of each: (batch, new, vocabulary)."""
    output = host.model.generate(
        **inputs,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    return output.sequences[:, -NEW:], torch.stack(output.logits, dim=1)


def assert_same(found: Tensor, expected: Tensor) -> None:
    assert (found - expected).abs().max() < 5e-4
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_equals_recompute(family: str, attention: str, kind: str, stages: str) -> None:
    host, rows = shared(family, attention), rows_of(kind, family)
    plan, inputs = make_plan(stages), host.batch(rows)
    with pruning(host.model, plan) as trace:
        tokens, logits = generate(host, inputs)
    _, unpruned = generate(host, inputs)
    assert (logits[:, 0] - unpruned[:, 0]).abs().max() > 1e-2
    for number in range(len(rows)):
        alone = host.alone(rows, number)
        expected = truth(host, plan, alone, tokens[number, :-1])
        assert_same(logits[number], expected.logits[-NEW:])
        left = trace.num_columns - alone["input_ids"].shape[1]
        for layer, kept in enumerate(expected.kept):
            found = [column for column in trace.columns[layer][number].tolist() if column >= left]
            assert [column - left for column in found] == kept


@pytest.mark.parametrize("family", NEWER_ONLY)
def test_hosts_of_newer_transformers(family: str) -> None:
    """With an older version they are refused in one line."""
    model, plan = BUILDERS[family](TEXT)[0], make_plan("both")
    expected = nullcontext()
    if not ENCODES_FIRST:
        expected = pytest.raises(InputError, match="is not supported with transformers 5")
    with expected, pruning(model, plan) as trace:
        assert trace is not None


def test_a_trace_prints_how_many_tokens_were_kept() -> None:
    host = shared("llava", "sdpa")
    with pruning(host.model, make_plan("both")) as trace:
        assert str(trace) == "<Trace: empty>"
        generate(host, host.batch(rows_of("padded", "llava")))
    vision, first = trace.stages[0].selection.scores.shape[1], trace.stages[0].selection
    kept = int(first.num_kept[0])
    assert f"{trace.num_columns} tokens, {trace.lengths[-1]} in the last layer" in str(trace)
    assert f"kept {kept} of {vision} vision tokens before layer 0" in str(trace)
    assert str(trace).count("vision tokens before layer") == 3
