"""Unsupported plans, calls and models are refused with a helpful message."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hosts import IMAGE, build, shared
from test_integration import make_plan
from token_truth import ByContent
from torch import nn
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    StaticCache,
)

from eligo.errors import EligoError, InputError
from eligo.selection import Selection
from eligo.tokens.hooks.masking import masking
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.hosts.llava import Llava
from eligo.tokens.methods import build as build_method
from eligo.tokens.plan import Cut, Plan, Stage1
from strategies import production

HERE = ByContent()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stage1(HERE, 0), "at least 1"),
        (lambda: Stage1(HERE), "neither budget nor ratio"),
        (lambda: Cut(1, HERE, ratio=1.5), "above 0, at most 1"),
        (lambda: Cut(0, HERE, 4), "layer 0 is never cut"),
        (lambda: Cut(1.5, HERE, 4), "a depth between"),
        (lambda: Plan(Stage1(HERE, 4), [Cut(1, HERE, 8)]), "none above the one before it"),
        (lambda: Plan(None, [Cut(1, HERE, 4), Cut(2, HERE, 8)]), "none above"),
        (lambda: Plan(None, [Cut(1, HERE, ratio=0.1), Cut(2, HERE, ratio=0.2)]), "none above"),
        (lambda: Plan(None, [Cut(3, HERE, 8), Cut(2, HERE, 4)]), "each one above"),
        (lambda: Plan(None, [Cut(2, HERE, 8), Cut(2, HERE, 4)]), "each one above"),
        (lambda: Plan(None, [Cut(2, HERE, 8), Cut(0.9, HERE, 4)]), "all indices or all depths"),
        (lambda: Plan(None, [Cut(4, HERE, 8)]).resolve(4), "below 4"),
        (lambda: Plan(None, [Cut(0.01, HERE, 8), Cut(0.1, HERE, 8)]).resolve(4), "depths"),
        (lambda: Plan(Stage1(HERE, 600)).resolve(4, 576), "at most 576"),
        (lambda: Plan(Stage1(HERE, 200, 0.5)).resolve(4, 576), "to agree"),
        (lambda: Plan(Stage1(HERE, 8), [Cut(1, HERE, ratio=0.9)]).counts((4, 4)), "amounts that"),
        (lambda: Plan(None, [Cut(0.5, HERE, 8)]).layers, "plan.resolve"),
    ],
)
def test_invalid_plans_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_reducer_in_the_wrong_place_is_refused() -> None:
    class OnlyBefore(ByContent):
        where = frozenset({"before"})

    with pytest.raises(InputError, match="works only before"):
        Cut(1, OnlyBefore(), 4)


def test_token_counts_of_a_plan() -> None:
    plan = Plan(Stage1(HERE, ratio=0.6), [Cut(1 / 16, HERE, 200), Cut(0.5, HERE, ratio=0.1)])
    assert plan.counts((24, 24)) == (346, 200, 58)
    assert plan.count((24, 24)) == 346
    assert plan.counts((4, 4)) == (10, 10, 2), "an image with fewer tokens keeps them"
    assert Plan().count((24, 24)) == 576
    depths = [Cut(depth, HERE, 8) for depth in (1 / 16, 1 / 4, 1 / 2)]
    assert Plan(None, depths).resolve(32).layers == (2, 8, 16)
    assert Plan(None, depths).resolve(12).layers == (1, 3, 6)
    both = Plan(Stage1(HERE, 288, 0.5))
    assert both.resolve(4, 576).counts((24, 24)) == (288,)


def run(host: Any, plan: Plan | None = None, **changed: Any) -> Any:
    inputs = {**host.batch([[3, IMAGE, 5]]), **changed}
    inputs = {name: value for name, value in inputs.items() if value is not None}
    with pruning(host.model, plan or make_plan("both")), torch.no_grad():
        return host.model(**inputs)


def test_unsupported_calls_are_refused() -> None:
    host = shared("llava")
    inputs = host.batch([[3, IMAGE, 5]])
    ids = inputs["input_ids"]
    with pytest.raises(InputError, match="image tokens without an image"):
        run(host, pixel_values=None)
    with pytest.raises(InputError, match="without image tokens"):
        run(host, input_ids=torch.full_like(ids, 7))
    with pytest.raises(InputError, match=r"\[15\] image tokens .* \[16\]"):
        run(host, input_ids=ids.scatter(1, torch.tensor([[6]]), 7))
    with pytest.raises(InputError, match="inputs_embeds without input_ids"):
        run(host, input_ids=None, inputs_embeds=torch.zeros(1, 24, 32))
    with pytest.raises(InputError, match="labels"):
        run(host, labels=ids)
    with pytest.raises(InputError, match="indices"):
        run(host, logits_to_keep=torch.tensor([3]))
    with pytest.raises(InputError, match="video"):
        run(shared("qwen"), pixel_values_videos=torch.zeros(4, 96), video_grid_thw=[[1, 2, 2]])
    cache = StaticCache(config=host.model.config.text_config, max_cache_len=64)
    with pytest.raises(InputError, match="static cache"):
        run(host, past_key_values=cache)
    kinds = ["full_attention", "sliding_attention"] * 2
    sliding = Qwen2Config(
        num_hidden_layers=4, layer_types=kinds, use_sliding_window=True, sliding_window=4
    )
    with pytest.raises(InputError, match="sliding-window layers"):
        run(host, past_key_values=DynamicCache(config=sliding))


def test_invalid_masks_are_refused() -> None:
    host = shared("llava")
    inputs = host.batch([[3, IMAGE, 5]])

    def refused(message: str, **options: Any) -> None:
        with (
            pruning(host.model, make_plan("both"), **options),
            pytest.raises(InputError, match=message),
        ):
            host.model(**inputs)

    refused(r"shape \(1, 23\)", question_mask=torch.ones(1, 23, dtype=torch.bool))
    refused(r"rows \[0\] without a word", question_mask=inputs["input_ids"] == 60)
    refused("a row per", scene=torch.ones(1, 9, dtype=torch.bool))


@pytest.mark.parametrize("place", ["before", "inside"])
def test_empty_question_is_refused_if_the_reducer_reads_it(place: str) -> None:
    """A prompt without text is an error only for reducers that read the question."""
    host = shared("llava")
    inputs = host.batch([[3, IMAGE, 5], [IMAGE]])

    def run_with(reducer: Any) -> None:
        plan = Plan(Stage1(reducer, 4)) if place == "before" else Plan(None, [Cut(1, reducer, 4)])
        with pruning(host.model, plan), torch.no_grad():
            host.model(**inputs)

    with pytest.raises(InputError, match=r"rows \[1\] of the prompt have no text"):
        run_with(ByContent())
    run_with(build_method("divprune"))


def test_right_padding_is_refused_in_generation() -> None:
    host = shared("llava")
    inputs = host.batch([[3, IMAGE, 8], [2, IMAGE, 3]], padding="right")
    with pruning(host.model, make_plan("both")):
        with pytest.raises(InputError, match="padding_side = 'left'"):
            host.model.generate(**inputs, max_new_tokens=2)
        with torch.no_grad():  # training accepts padding on either side
            right = host.model(**inputs, use_cache=False).logits
            left = host.model(**host.batch([[3, IMAGE, 8], [2, IMAGE, 3]]), use_cache=False).logits
    assert torch.allclose(right[1, :-6], left[1, 6:], atol=1e-4)


def test_unsupported_generation_is_refused() -> None:
    host = shared("llava")
    inputs = host.batch([[3, IMAGE, 5]])
    with pruning(host.model, make_plan("both")):
        with pytest.raises(InputError, match="static cache"):
            host.model.generate(**inputs, max_new_tokens=2, cache_implementation="static")
        with pytest.raises(InputError, match="chunked prefill"):
            host.model.generate(**inputs, max_new_tokens=2, prefill_chunk_size=8)
        with pytest.raises(InputError, match="assisted decoding"):
            host.model.generate(**inputs, max_new_tokens=6, prompt_lookup_num_tokens=3)
        assistant = shared("llava", "eager").model
        with pytest.raises(InputError, match="assisted decoding"):
            host.model.generate(**inputs, max_new_tokens=6, assistant_model=assistant)


def test_unsupported_caches_are_refused() -> None:
    host = shared("llava")
    inputs = host.batch([[3, IMAGE, 5]])
    word = torch.tensor([[7]])
    with torch.no_grad():
        foreign = host.model(**inputs).past_key_values
    with pruning(host.model, make_plan("both")), torch.no_grad():
        with pytest.raises(InputError, match="not filled inside this context"):
            host.model(input_ids=word, past_key_values=foreign)
        cache = host.model(**inputs).past_key_values
        with pytest.raises(InputError, match="not a copy"):
            host.model(input_ids=word, past_key_values=copy.deepcopy(cache))
        with pytest.raises(InputError, match="images of later turns"):
            host.model(**inputs, past_key_values=cache)
        doubled = host.model(**host.batch([[3, IMAGE, 5]] * 2)).past_key_values
        with pytest.raises(InputError, match="a multiple"):
            host.model(input_ids=word.expand(3, 1), past_key_values=doubled)
        with pytest.raises(InputError, match="are cached"):
            host.model(
                input_ids=word.expand(1, 3),
                attention_mask=torch.ones(1, 26),
                past_key_values=cache,
            )
        layer = cache.layers[-1]
        layer.keys, layer.values = layer.keys[:, :, :-1], layer.values[:, :, :-1]
        with pytest.raises(InputError, match="changed outside"):
            host.model(input_ids=word, past_key_values=cache)
    with masking(host.model, make_plan("both")), pytest.raises(EligoError, match="use pruning"):
        host.model.generate(**inputs, max_new_tokens=2)


def test_unsupported_models_are_refused() -> None:
    plan = make_plan("both")

    def refused(model: nn.Module, message: str, plan: Plan = plan) -> None:
        with pytest.raises(InputError, match=message), pruning(model, plan):
            pass

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    llama = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, vocab_size=8))
    refused(llama, r"LlamaForCausalLM .*internvl, llava, .*smolvlm.*host=")
    host = build("llava")
    refused(torch.compile(host.model), "torch.compile")  # pyright: ignore[reportArgumentType]
    host.text.layers[0].compile()
    refused(host.model, "torch.compile")
    host = build("llava")
    host.text.config.layer_types = ["full_attention", "sliding_attention"] * 2
    refused(host.model, "sliding")
    host.text.config.layer_types = ["full_attention", "chunked_attention"] * 2
    refused(host.model, "layers of kind chunked_attention")
    with pytest.raises(InputError, match="layers of kind"), pruning(host.model, plan, host=Llava):
        pass
    del host.text.config.layer_types
    refused(build("qwen3_vl", num_layers=2).model, "DeepStack features for 2 layers of 2")
    gemma = build("gemma3").model
    gemma.model.language_model.config._attn_implementation = "flash_attention_2"
    refused(gemma, "attn_implementation='sdpa'", Plan(Stage1(HERE, 4), size_bias=False))
    host.text.config._attn_implementation = "flash_attention_2"
    refused(host.model, "size_bias=False")
    rows = Plan(None, [Cut(1, ByContent(needs=("attention_row",)), 4)], size_bias=False)
    refused(host.model, "gives no attention rows", rows)
    host.text.config._attn_implementation = "flex_attention"
    refused(host.model, "expected sdpa, eager or flash")
    qwen = shared("qwen").model
    refused(qwen, "three axes", make_plan("both", positions="reindex"))
    refused(shared("llava").model, "below 4", Plan(None, [Cut(9, HERE, 4)]))
    refused(shared("llava").model, "at most 16", Plan(Stage1(HERE, 17)))

    class Wide(ByContent):
        width = 99

    refused(shared("llava").model, "made for a width of 99", Plan(Stage1(Wide(), 4)))
    refused(shared("llava").model, "made for a width of 99", Plan(None, [Cut(1, Wide(), 4)]))


def test_nested_contexts_are_refused() -> None:
    host = shared("llava")
    with (
        pruning(host.model, make_plan("both")),
        pytest.raises(EligoError, match="nesting is not supported"),
        pruning(host.model, make_plan("1")),
    ):
        pass


class Broken(ByContent):
    """A reducer that returns invalid selections."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def select(self, context: Any, budget: torch.Tensor) -> Selection:
        chosen = super().select(context, budget - 1 if self.how == "budget" else budget)
        scores = chosen.scores
        if self.how == "inf":
            scores = scores + torch.inf
        if self.how == "shape":
            return Selection.top_k(scores[:, :8], budget, context.mask[:, :8])
        return Selection(chosen.indices, scores, chosen.mask)


@pytest.mark.parametrize(
    ("how", "message"), [("budget", "exactly"), ("inf", "not finite"), ("shape", "candidates")]
)
@pytest.mark.parametrize("place", ["before", "inside"])
def test_invalid_selections_are_refused(how: str, message: str, place: str) -> None:
    broken = Broken(how)
    plan = Plan(Stage1(broken, 4)) if place == "before" else Plan(None, [Cut(1, broken, 4)])
    with pytest.raises(EligoError, match=message):
        run(shared("llava"), plan)


def _compiled_call(model: Any) -> Any:
    return torch.compile(model, backend="eager")


def _compiled_forward(model: Any) -> Any:
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def _compiled_in_place(part: Callable[[Any], nn.Module]) -> Callable[[Any], Any]:
    def compile_part(model: Any) -> Any:
        part(model).compile(backend="eager")
        return model

    return compile_part


FORMS = {
    "call": _compiled_call,
    "forward": _compiled_forward,
    "in place": _compiled_in_place(lambda model: model),
    "core": _compiled_in_place(lambda model: model.model),
    "projector": _compiled_in_place(lambda model: model.model.multi_modal_projector),
    "tower": _compiled_in_place(lambda model: model.model.vision_tower),
    "language model": _compiled_in_place(lambda model: model.model.language_model),
    "layer": _compiled_in_place(lambda model: model.model.language_model.layers[1]),
}


@pytest.mark.parametrize("form", FORMS)
def test_compiling_inside_a_block_is_exact_or_refused(form: str) -> None:
    """No form of torch.compile gives other answers than the plain model, or an obscure error."""
    host = build("llava")
    inputs = host.batch([[3, IMAGE, 5], [2, IMAGE, 3]])
    torch.compiler.reset()
    # Annotation checks cannot be traced.
    with torch.no_grad(), production(), pruning(host.model, make_plan("both")):
        plain = host.model(**inputs).logits
        try:
            found = FORMS[form](host.model)(**inputs).logits
        except EligoError as error:
            assert "torch.compile" in str(error)  # noqa: PT017
        else:
            torch.testing.assert_close(found, plain)
