"""Details of masks, positions and caches that would fail silently."""

from typing import Any

import pytest
import torch
from hosts import FAMILIES, IMAGE, build, shared
from test_integration import NEW, assert_same, generate, make_plan, rows_of
from token_truth import ByContent, truth
from torch.utils.checkpoint import checkpoint

from eligo.errors import EligoError, InputError
from eligo.tokens.hooks.layout import (
    Layout,
    add_bias,
    later_mask,
    prompt_mask,
    take,
    take_last,
    take_rotary,
)
from eligo.tokens.hooks.masking import masking
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.tokens.trace import answer_loss


def layout(index: torch.Tensor | None, lengths: list[int], **options: Any) -> Layout:
    nothing = torch.zeros(len(lengths), 1, dtype=torch.long) - 1
    return Layout(
        index=index,
        images=options.pop("images", nothing),
        words=nothing,
        positions=nothing,
        sizes=None,
        counts=[0] * len(lengths),
        lengths=lengths,
        **options,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_gaps_in_positions_are_not_packed_sequences(family: str) -> None:
    """Without mask and cache, the host looks for jumps in the positions."""
    host = shared(family)
    inputs = host.batch([[3, IMAGE, 5]])
    del inputs["attention_mask"]
    plan = make_plan("1")
    with pruning(host.model, plan), torch.no_grad():
        logits = host.model(**inputs, use_cache=False).logits
    expected = truth(host, plan, host.alone([[3, IMAGE, 5]], 0), torch.tensor([], dtype=torch.long))
    assert_same(logits[0, -5:], expected.logits[-5:])


def test_rotary_tables_follow_hidden_states() -> None:
    host = shared("llava")
    inputs = host.batch([[3, IMAGE, 5]])
    recorded: dict[str, Any] = {}

    def look(_module: Any, args: Any, kwargs: Any) -> None:
        recorded["hidden"], recorded["cos"] = args[0].shape[1], kwargs["position_embeddings"][0]

    with pruning(host.model, make_plan("both")) as trace, torch.no_grad():
        handle = host.text.layers[3].register_forward_pre_hook(look, with_kwargs=True)
        host.model(**inputs)
        handle.remove()
    full, _ = host.text.rotary_emb(torch.zeros(1, 1, 1), torch.arange(24)[None])
    assert recorded["hidden"] == recorded["cos"].shape[1] == trace.lengths[3]
    assert torch.equal(recorded["cos"][0], full[0, trace.columns[3][0]])


def test_decode_masks_follow_padding() -> None:
    """The mask of layer 0 would fit a batch of one, but not a padded one."""
    mask = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    mask[1, ..., :2] = False
    index = torch.tensor([[0, 2, 4], [2, 3, 4]])
    found = later_mask(mask, layout(index, [3, 3]), 5, 1, torch.zeros(2, 1, 4), flat=False)
    assert found is not None
    assert found[:, 0, 0].tolist() == [[True] * 4, [True] * 4]
    index = torch.tensor([[0, 2, 4], [0, 1, 4]])
    found = later_mask(mask, layout(index, [3, 3]), 5, 1, torch.zeros(2, 1, 4), flat=False)
    assert found is not None
    assert found[1, 0, 0].tolist() == [False, False, True, True]


def test_masks_stay_causal() -> None:
    """As with compact causal indices: columns 0, 3, 5 are rows 0, 1, 2."""
    causal = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    index = torch.tensor([[0, 3, 5]])
    found = prompt_mask(causal, layout(index, [3]), torch.zeros(1, 3, 4), flat=False)
    assert found is not None
    assert found[0, 0].tolist() == [[True, False, False], [True, True, False], [True] * 3]


def test_mask_bias_is_never_added_twice() -> None:
    lowest = torch.finfo(torch.float32).min
    mask = torch.tensor([[0.0, lowest], [0.0, 0.0]])[None, None]
    biased = add_bias(mask, torch.tensor([[[[1.0, -20.7]]]]), torch.zeros(1))
    assert biased.isfinite().all()
    assert biased[0, 0, 0].tolist() == [1.0, lowest]
    padded = layout(torch.tensor([[-1, 1], [0, 1]]), [1, 2])
    found = prompt_mask(mask, padded, torch.zeros(2, 2, 4), flat=False)
    assert found is not None
    assert found.isfinite().all()
    assert (found.softmax(-1).sum(-1) - 1).abs().max() < 1e-6, "padded queries see themselves"


def test_several_queries_on_a_filled_cache_get_a_mask() -> None:
    """SDPA reads "no mask" as causal from the first key on, and cuts the keys off."""
    found = later_mask(None, layout(None, [4]), 4, 3, torch.zeros(1, 2, 8), flat=False)
    assert found is not None
    assert found[0, 0].tolist() == [[True] * 6 + [False], [True] * 7]


def test_trace_holds_the_length_of_each_layer() -> None:
    host = shared("llava")
    inputs = host.batch(rows_of("ragged", "llava"))
    with pruning(host.model, make_plan("both")) as trace, torch.no_grad():
        output = host.model(**inputs, output_hidden_states=True, use_cache=False)
    assert output.logits.shape[1] == trace.lengths[-1] == trace.output_columns.shape[1]
    assert [state.shape[1] for state in output.hidden_states[1:]] == trace.lengths
    assert len(set(trace.lengths)) == 3


def test_question_mask_differs_by_row() -> None:
    """Answers of different length: the scores of each row ignore exactly its own answer."""
    host = shared("llava")
    inputs = host.batch([[3, IMAGE, 9], [3, IMAGE, 9]])
    question_mask = torch.ones(2, 28, dtype=torch.bool)
    question_mask[0, -1:] = False
    question_mask[1, -5:] = False

    def scores(**changed: Any) -> torch.Tensor:
        with pruning(host.model, make_plan("2"), question_mask) as trace, torch.no_grad():
            host.model(**{**inputs, **changed})
        return trace.stages[0].selection.scores

    base = scores()
    ids = inputs["input_ids"].clone()
    ids[0, -1:], ids[1, -5:] = 33, 33
    assert torch.equal(scores(input_ids=ids), base)
    ids = inputs["input_ids"].clone()
    ids[:, -3] = 33  # part of the question in row 0, of the answer in row 1
    changed = scores(input_ids=ids)
    assert not torch.equal(changed[0], base[0])
    assert torch.equal(changed[1], base[1])


@pytest.mark.parametrize("family", ["llava", "qwen3_vl", "gemma3", "llava_next"])
@pytest.mark.parametrize("form", ["pruning", "masking"])
def test_gradient_checkpointing_runs_hooks_again(form: str, family: str) -> None:
    gradients, traces = [], []
    for checkpointed in (False, True):
        host = build(family)
        host.model.train()
        if checkpointed:
            host.model.gradient_checkpointing_enable({"use_reentrant": False})
        inputs = host.batch(rows_of("ragged", family))
        context = pruning if form == "pruning" else masking
        with context(host.model, make_plan("both")) as trace:
            host.model(**inputs, use_cache=False).logits.square().mean().backward()
        gradients.append(host.text.layers[0].self_attn.q_proj.weight.grad)
        traces.append([len(trace.stages), *trace.lengths])
    assert torch.allclose(gradients[0], gradients[1], atol=1e-6)
    assert traces[0] == traces[1]


def test_backward_outside_and_reentrant_checkpointing_are_refused() -> None:
    host = build("llava")
    host.model.train()
    host.model.gradient_checkpointing_enable({"use_reentrant": False})
    inputs = host.batch([[3, IMAGE, 5]])
    with masking(host.model, make_plan("2")):
        loss = host.model(**inputs, use_cache=False).logits.sum()
    with pytest.raises(EligoError, match="inside the `with` block"):
        loss.backward()
    host.model.gradient_checkpointing_enable({"use_reentrant": True})
    host.model.enable_input_require_grads()
    with masking(host.model, make_plan("2")), pytest.raises(EligoError, match="use_reentrant"):
        host.model(**inputs, use_cache=False)
    for layer in host.text.layers:  # a function of one's own, whose form is not known
        layer._gradient_checkpointing_func = lambda *args: checkpoint(*args, use_reentrant=False)
    with masking(host.model, make_plan("2")):
        host.model(**inputs, use_cache=False).logits.sum().backward()


def test_packed_questions_are_refused() -> None:
    host = shared("llava")
    inputs = host.batch([[3, IMAGE, 5]])
    inputs["attention_mask"] = torch.ones(24, 24, dtype=torch.bool).tril()[None, None]
    with (
        pruning(host.model, make_plan("both")),
        pytest.raises(InputError, match="packed behind one image"),
    ):
        host.model(**inputs)


def test_indices_move_to_the_device_of_their_values() -> None:
    """With a device_map, hidden states, tables and masks are on the device of their layer."""
    index = torch.tensor([[0, 2]])
    assert take(torch.zeros(1, 3, 4, device="meta"), index).device.type == "meta"
    assert take_last(torch.zeros(3, 1, 3, device="meta"), index).shape == (3, 1, 2)
    tables = (torch.zeros(3, 1, 3, 4, device="meta"), torch.zeros(1, 3, 4, device="meta"))
    assert [t.shape for t in take_rotary(tables, index)] == [(3, 1, 2, 4), (1, 2, 4)]
    mask = torch.ones(1, 1, 3, 3, dtype=torch.bool, device="meta")
    like = torch.zeros(1, 2, 4, device="meta")
    ragged = layout(torch.tensor([[-1, 2], [0, 1]]), [1, 2])
    assert prompt_mask(mask, ragged, like, flat=False).shape == (2, 1, 2, 2)  # pyright: ignore


def test_models_dispatched_over_devices() -> None:
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    host = build("llava")
    inputs, plan = host.batch(rows_of("ragged", "llava")), make_plan("both")
    with pruning(host.model, plan):
        _, expected = generate(host, inputs)
    for module in (host.model, host.text, *host.text.layers, host.model.model.vision_tower):
        add_hook_to_module(module, AlignDevicesHook("cpu", io_same_device=True))
    with pruning(host.model, plan):
        _, logits = generate(host, inputs)
    assert torch.equal(logits, expected)


def test_flash_masks_are_flat() -> None:
    """Flash attention takes masks of keys; None stays None."""
    like = torch.zeros(2, 1, 4)
    even, ragged = torch.tensor([[0, 2], [1, 2]]), torch.tensor([[-1, 2], [1, 2]])
    assert prompt_mask(None, layout(even, [2, 2]), like, flat=True) is None
    found = prompt_mask(torch.ones(2, 3), layout(ragged, [1, 2]), like, flat=True)
    assert found is not None
    assert found.tolist() == [[False, True], [True, True]]
    assert later_mask(None, layout(even, [2, 2]), 3, 1, like, flat=True) is None
    found = later_mask(None, layout(ragged, [1, 2]), 3, 1, like, flat=True)
    assert found is not None
    assert found.tolist() == [[False, True, True], [True, True, True]]


def test_answer_loss_gathers_labels() -> None:
    host, rows = shared("llava"), rows_of("ragged", "llava")
    inputs = host.batch(rows)
    labels = inputs["input_ids"].clone()
    labels[:, :-1] = -100
    plan = make_plan("both")
    with pruning(host.model, plan) as trace, torch.no_grad():
        output = host.model(**inputs, use_cache=False)
        with pytest.raises(InputError, match="answer_loss"):
            host.model(**inputs, labels=labels)
        with pytest.raises(InputError, match="columns of labels"):
            answer_loss(output, labels[:, 1:], trace)
    expected = []
    for number in range(len(rows)):
        alone = host.alone(rows, number)
        question_mask = torch.ones(alone["input_ids"].shape[1], dtype=torch.bool)
        logits = truth(
            host, plan, alone, torch.tensor([], dtype=torch.long), question_mask=question_mask
        ).logits
        expected.append(-logits[-2].log_softmax(-1)[alone["input_ids"][0, -1]])
    assert abs(answer_loss(output, labels, trace) - torch.stack(expected).mean()) < 1e-4
    with pytest.raises(InputError, match="empty"):
        answer_loss(output, labels, type(trace)())


def test_generated_placeholders_are_not_images() -> None:
    """A model may generate the placeholder."""
    host = build("llava")
    with torch.no_grad():
        host.model.lm_head.weight[60] = 30 * host.model.lm_head.weight.mean(0)
    inputs = host.batch([[3, IMAGE, 5]])
    with pruning(host.model, Plan(Stage1(ByContent(), 8), [Cut(2, ByContent(), 4)])):
        tokens, logits = generate(host, inputs)
        _, again = generate(host, inputs, use_cache=False)
    assert tokens.shape[1] == NEW
    assert_same(again, logits)
