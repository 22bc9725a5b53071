"""Merging, reindexed positions, beams, several turns, no cache, plain forward passes."""

import gc
import math
from typing import Any

import pytest
import torch
from hosts import ENCODES_FIRST, FAMILIES, IMAGE, STYLES, build, shared
from test_integration import NEW, assert_same, generate, make_plan, rows_of
from tiny_models import NUM_LAYERS
from token_truth import ByContent, truth

from eligo.errors import InputError
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.methods import build as build_method
from eligo.tokens.plan import Cut, Plan, Stage1


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_merged_tokens_are_weighted_by_size(family: str, attention: str) -> None:
    host, rows = shared(family, attention), rows_of("ragged", family)
    inputs = host.batch(rows)
    plan = make_plan("both", folds=True)
    with pruning(host.model, plan):
        tokens, logits = generate(host, inputs)
    with pruning(host.model, make_plan("both", folds=True, size_bias=False)):
        _, unweighted = generate(host, inputs)
    assert (logits - unweighted).abs().max() > 1e-3
    for number in range(len(rows)):
        expected = truth(host, plan, host.alone(rows, number), tokens[number, :-1])
        assert_same(logits[number], expected.logits[-NEW:])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_merging_inside_the_model(attention: str) -> None:
    host, rows = shared("llava", attention), rows_of("ragged", "llava")
    plan = Plan(None, [Cut(1, ByContent(folds=True), ratio=0.5), Cut(2, ByContent(), ratio=0.25)])
    with pruning(host.model, plan):
        tokens, logits = generate(host, host.batch(rows))
    for number in range(len(rows)):
        expected = truth(host, plan, host.alone(rows, number), tokens[number, :-1])
        assert_same(logits[number], expected.logits[-NEW:])


@pytest.mark.parametrize("stages", ["1", "both"])
@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in STYLES["grid"]])
def test_reindexed_positions_match_the_oracle(family: str, stages: str) -> None:
    host, rows = shared(family), rows_of("ragged", family)
    plan, inputs = make_plan(stages, positions="reindex"), host.batch(rows)
    with pruning(host.model, plan):
        tokens, logits = generate(host, inputs)
    with pruning(host.model, make_plan(stages)):
        _, original = generate(host, inputs)
    assert (logits - original).abs().max() > 1e-2
    for number in range(len(rows)):
        expected = truth(host, plan, host.alone(rows, number), tokens[number, :-1])
        assert_same(logits[number], expected.logits[-NEW:])


@pytest.mark.parametrize("kind", ["padded", "ragged"])
@pytest.mark.parametrize("family", FAMILIES)
def test_beam_search_is_pruned(family: str, kind: str) -> None:
    if not ENCODES_FIRST and kind == "ragged" and family not in STYLES["grid"]:
        pytest.skip("these transformers mix up the images of a row with several, pruned or not")
    host, rows = shared(family), rows_of(kind, family)
    plan, inputs = make_plan("both", folds=True), host.batch(rows)
    with pruning(host.model, plan):
        output = host.model.generate(
            **inputs,
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            num_beams=3,
            length_penalty=0.0,
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
        )
    for number in range(len(rows)):
        tokens = output.sequences[number, -NEW:]
        logits = truth(host, plan, host.alone(rows, number), tokens[:-1]).logits[-NEW:]
        likelihood = logits.log_softmax(-1).gather(-1, tokens[:, None]).sum()
        assert abs(likelihood - output.sequences_scores[number]) < 1e-3


@pytest.mark.parametrize("kind", ["one", "padded", "ragged"])
@pytest.mark.parametrize("family", FAMILIES)
def test_second_turn_of_a_conversation(family: str, kind: str) -> None:
    host, rows = shared(family), rows_of(kind, family)
    plan, inputs = make_plan("both", folds=True), host.batch(rows)
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    options |= {"output_logits": True, "return_dict_in_generate": True}
    with pruning(host.model, plan) as trace:
        first = host.model.generate(**inputs, **options)
        lengths = trace.lengths
        sequences = first.sequences
        more = torch.randint(5, 55, (len(rows), 4))
        ids = torch.cat([sequences, more], dim=1)
        extra = torch.ones(len(rows), ids.shape[1] - inputs["input_ids"].shape[1])
        mask = torch.cat([inputs["attention_mask"], extra.long()], dim=1)
        second = host.model.generate(
            input_ids=ids,
            attention_mask=mask,
            past_key_values=first.past_key_values,
            **options,
        )
        assert trace.lengths == lengths, "dropped tokens stay dropped"
    tokens, logits = second.sequences[:, -NEW:], torch.stack(second.logits, dim=1)
    for number in range(len(rows)):
        answer = torch.cat([sequences[number, -NEW:], more[number], tokens[number, :-1]])
        expected = truth(host, plan, host.alone(rows, number), answer)
        assert_same(logits[number], expected.logits[-NEW:])


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_without_cache(family: str) -> None:
    if not ENCODES_FIRST and family.startswith("paligemma"):
        pytest.skip("these transformers count generated tokens to the prefix, pruned or not")
    host, inputs = shared(family), shared(family).batch(rows_of("ragged", family))
    plan = make_plan("both")
    with pruning(host.model, plan):
        tokens, logits = generate(host, inputs)
        same, recomputed = generate(host, inputs, use_cache=False)
    assert torch.equal(tokens, same)
    assert_same(recomputed, logits)


@pytest.mark.parametrize("stages", ["1", "2", "both"])
@pytest.mark.parametrize("family", FAMILIES)
def test_plain_forward_and_manual_decoding(family: str, stages: str) -> None:
    """Without mask, positions or `generate`, the defaults of the host apply."""
    host = shared(family)
    inputs = host.batch([[3, IMAGE, 5]])
    del inputs["attention_mask"]
    plan = make_plan(stages)
    with pruning(host.model, plan) as trace, torch.no_grad():
        uncached = host.model(**inputs, use_cache=False)
        output = host.model(**inputs, use_cache=True)
        assert output.logits.shape[1] == trace.lengths[-1]
        logits, tokens = [output.logits[:, -1]], [output.logits[:, -1].argmax(-1)]
        for _ in range(2):
            output = host.model(
                input_ids=tokens[-1][:, None], past_key_values=output.past_key_values
            )
            logits.append(output.logits[:, -1])
            tokens.append(output.logits[:, -1].argmax(-1))
        two = host.model(  # several tokens onto a filled cache
            input_ids=torch.tensor([[7, 9]]), past_key_values=output.past_key_values
        ).logits
    alone = host.alone([[3, IMAGE, 5]], 0)
    answer = torch.cat([*tokens[:2], torch.tensor([7, 9])])
    expected = truth(host, plan, alone, answer).logits
    assert_same(torch.cat(logits), expected[-5:-2])
    assert_same(two[0], expected[-2:])
    assert_same(uncached.logits[0, -1], expected[-5])


@pytest.mark.parametrize("family", FAMILIES)
def test_cache_lengths_and_counts(family: str) -> None:
    host = shared(family)
    inputs = host.batch([[3, IMAGE, 5], [2, IMAGE, 6]])
    plan = make_plan("both")
    grids = host.grids(IMAGE)
    counts = [plan.counts(grid) for grid in grids]
    totals = [sum(stage) for stage in zip(*counts, strict=True)]
    text = inputs["input_ids"].shape[1] - sum(map(math.prod, grids))
    expected = [text + totals[0], text + totals[1], text + totals[1], text + totals[2]]
    with pruning(host.model, plan) as trace:
        output = host.model.generate(
            **inputs, max_new_tokens=3, min_new_tokens=3, return_dict_in_generate=True
        )
    assert trace.grid is not None
    assert [tuple(grid) for grid in trace.grid.tolist()] == grids * 2
    assert trace.lengths == expected
    cached = [output.past_key_values.get_seq_length(layer) for layer in range(NUM_LAYERS)]
    assert cached == [length + 2 for length in expected]
    assert [stage.layer for stage in trace.stages] == [0, 1, 3]
    assert [selection.num_kept.tolist() for selection in trace.selections] == [
        list(stage) * 2 for stage in zip(*counts, strict=True)
    ]
    assert trace.selector_ms > 0
    # Nested: what a stage keeps was kept by the one before it.
    for before, after in zip(trace.stages, trace.stages[1:], strict=False):
        for early, late in zip(before.positions, after.positions, strict=True):
            assert set(late.tolist()) - {-1} <= set(early.tolist())


def test_rows_are_independent_of_the_batch() -> None:
    host, rows = shared("qwen"), rows_of("ragged", "qwen")
    plan = make_plan("both", folds=True)
    with pruning(host.model, plan):
        together = generate(host, host.batch(rows))[1]
        alone = [generate(host, _with_kinds(host.alone(rows, n)))[1][0] for n in range(len(rows))]
    assert_same(together, torch.stack(alone))


def _with_kinds(inputs: dict[str, Any]) -> dict[str, Any]:
    return {**inputs, "mm_token_type_ids": (inputs["input_ids"] == 60).long()}


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_do_not_change_the_selection(family: str) -> None:
    """Teacher forcing: earlier logits and all selections stay when later tokens change."""
    host = shared(family)
    inputs = host.batch([[3, IMAGE, 9], [2, IMAGE, 7]])
    question_mask = inputs["attention_mask"].bool().clone()
    question_mask[:, -4:] = False
    if family.startswith("paligemma"):
        inputs["token_type_ids"][:, -4:] = 1  # the suffix is causal
    plan = make_plan("both")
    with pruning(host.model, plan, question_mask) as trace, torch.no_grad():
        logits = host.model(**inputs, use_cache=False).logits
        chosen = [stage.positions for stage in trace.stages]
        changed = {**inputs, "input_ids": inputs["input_ids"].clone()}
        changed["input_ids"][:, -2:] = 11
        after = host.model(**changed, use_cache=False).logits
        assert all(
            torch.equal(old, new.positions) for old, new in zip(chosen, trace.stages, strict=True)
        )
    assert torch.equal(logits[:, :-2], after[:, :-2])
    assert not torch.equal(logits[:, -1], after[:, -1])


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_with_different_numbers_of_images_or_none(family: str) -> None:
    host, rows = shared(family), [[3, IMAGE, 2, IMAGE, 1, IMAGE, 2], [6], [4, IMAGE, 3]]
    inputs, plan = host.batch(rows), make_plan("both")
    with pruning(host.model, plan) as trace:
        tokens, logits = generate(host, inputs)
    assert trace.rows is not None
    grids = [len(host.row_grids(row)) for row in rows]
    assert trace.rows.tolist() == [0] * grids[0] + [2] * grids[2]
    for number in (0, 2):
        expected = truth(host, plan, host.alone(rows, number), tokens[number, :-1])
        assert_same(logits[number], expected.logits[-NEW:])
    assert_same(logits[1], generate(host, host.alone(rows, 1))[1][0])


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_without_an_image_run_as_they_are(family: str) -> None:
    """Among prompts with images, with and without a cache, and in later turns."""
    host, plan = shared(family), make_plan("both")
    text, other = host.batch([[7], [5]]), host.batch([[3, IMAGE, 5]])
    more = torch.tensor([[9, 11]])
    with torch.no_grad():
        expected = [generate(host, text), generate(host, text, use_cache=False)]
        alone = host.batch([[7]])
        if host.style == "grid":  # transformers would shift positions as in the latest prompt
            host.model.model.rope_deltas = None
        first = host.model(**alone)
        second = host.model(input_ids=more, past_key_values=first.past_key_values).logits
    with pruning(host.model, plan) as trace, torch.no_grad():
        image = generate(host, other)[1]
        found = [generate(host, text), generate(host, text, use_cache=False)]
        assert not trace.stages
        again = host.model(**alone)
        assert torch.equal(again.logits, first.logits)
        later = host.model(input_ids=more, past_key_values=again.past_key_values)
        assert torch.equal(later.logits, second)
        with pytest.raises(InputError, match="images of later turns"):
            host.model(**other, past_key_values=again.past_key_values)
        assert torch.equal(generate(host, other)[1], image)
    for (tokens, logits), (tokens_alone, logits_alone) in zip(found, expected, strict=True):
        assert torch.equal(tokens, tokens_alone)
        assert torch.equal(logits, logits_alone)


@pytest.mark.parametrize("family", FAMILIES)
def test_keeping_everything_equals_the_host(family: str) -> None:
    host = shared(family)
    inputs = host.batch(rows_of("ragged", family))
    with pruning(host.model, Plan(Stage1(ByContent(), ratio=1.0))):
        tokens, logits = generate(host, inputs)
    expected_tokens, expected = generate(host, inputs)
    assert torch.equal(tokens, expected_tokens)
    assert (logits - expected).abs().max() < 1e-4


def test_repeated_rows_after_the_prompt() -> None:
    """A cache whose rows were repeated manually continues with the columns of each row."""
    host, rows = shared("llava"), rows_of("ragged", "llava")
    inputs, plan = host.batch(rows), make_plan("both", folds=True)
    with pruning(host.model, plan), torch.no_grad():
        cache = host.model(**inputs, use_cache=True).past_key_values
        mask = torch.cat([inputs["attention_mask"], torch.ones(3, 1, dtype=torch.long)], 1)
        cache.batch_repeat_interleave(2)
        words = torch.tensor([[5], [6], [7], [8], [9], [10]])
        logits = host.model(
            input_ids=words,
            attention_mask=mask.repeat_interleave(2, 0),
            past_key_values=cache,
            # The prompt ran without positions, which then count padding too.
            position_ids=torch.full((6, 1), mask.shape[1] - 1),
        ).logits
    for number in range(6):
        expected = truth(host, plan, host.alone(rows, number // 2), words[number])
        assert_same(logits[number, -1], expected.logits[-1])


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_memory_does_not_grow_with_calls(family: str) -> None:
    """One object that stays behind in every call would show."""
    host = build(family, num_layers=3)
    plan = Plan(Stage1(ByContent(folds=True), 8), [Cut(1, build_method("random"), 4)])
    image, text = host.batch([[3, IMAGE, 5]]), host.batch([[7]])
    word = torch.tensor([[7]])

    def count() -> int:
        gc.collect()
        return len(gc.get_objects())

    with pruning(host.model, plan), torch.no_grad():

        def call(number: int) -> None:
            plan.stage1.reducer.seen.clear()  # pyright: ignore
            if number % 4 == 3:
                host.model(**text)
                return
            cache = host.model(**image, use_cache=number % 2 == 0).past_key_values
            if cache is not None:
                host.model(input_ids=word, past_key_values=cache)

        for number in range(20):
            call(number)
        before = count()
        for number in range(20, 100):
            call(number)
        assert count() - before < 20
