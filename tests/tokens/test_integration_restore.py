"""Models are restored on exit; LoRA and quantised models work."""

import copy
from typing import Any

import pytest
import torch
from hosts import FAMILIES, IMAGE, build
from test_integration import NEW, assert_same, generate, make_plan, rows_of
from token_truth import ByContent, truth
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from eligo.tokens.hooks.masking import masking
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.hosts import Host
from eligo.tokens.hosts.llava import Llava
from eligo.tokens.plan import Cut, Plan, Stage1


def picture(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that could be left behind."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    rest = {}
    for name, module in model.named_modules():
        kept = {
            key: list(value) if isinstance(value, dict) else value
            for key, value in vars(module).items()
            if key not in ("_parameters", "_buffers", "_modules")
        }
        rest[name] = copy.deepcopy({key: repr(value) for key, value in kept.items()})
    config: Any = model.config
    registry = (sorted(ALL_ATTENTION_FUNCTIONS), sorted(ALL_MASK_ATTENTION_FUNCTIONS))
    implementations = [
        getattr(getattr(module, "config", None), "_attn_implementation", None)
        for module in model.modules()
    ]
    return {"state": state, "rest": rest, "config": config.to_dict(), "registry": registry,
            "attention": implementations}  # fmt: skip


def assert_same_picture(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name, value in before["state"].items():
        assert torch.equal(value, after["state"][name]), name
    for key in ("rest", "config", "registry", "attention"):
        assert before[key] == after[key], key


def all_needs(size_bias: bool = True) -> Plan:
    rows = ByContent(needs=("attention_row",))
    return Plan(
        Stage1(ByContent(folds=True, needs=("cls_row",)), 10),
        [Cut(1, rows, 6), Cut(3, ByContent(), 2)],
        size_bias=size_bias,
    )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_model_is_restored_on_exit(family: str, attention: str) -> None:
    host = build(family, attention)
    inputs = host.batch(rows_of("one", family))
    before_logits = generate(host, inputs)[1]  # installs what transformers itself leaves
    if host.style == "grid":
        host.model.model.rope_deltas = None
    before = picture(host.model)
    for context in (pruning, masking):
        with context(host.model, all_needs()):
            host.model(**inputs, use_cache=False)
        assert_same_picture(before, picture(host.model))
        with pytest.raises(ZeroDivisionError), context(host.model, all_needs()):
            assert host.model(**inputs, use_cache=False).logits.shape[1] / 0
        assert_same_picture(before, picture(host.model))
    with pruning(host.model, all_needs()):
        generate(host, inputs)
    assert_same_picture(before, picture(host.model))
    assert torch.equal(generate(host, inputs)[1], before_logits)


def test_model_is_restored_after_an_error() -> None:
    host = build("llava")
    inputs = host.batch([[3, IMAGE, 5]])
    generate(host, inputs)
    before = picture(host.model)

    class Failing(ByContent):
        def select(self, context: Any, budget: Tensor) -> Any:
            raise RuntimeError("in a layer")

    plan = Plan(None, [Cut(2, Failing(), 4)])
    with pytest.raises(RuntimeError, match="in a layer"), pruning(host.model, plan):
        host.model(**inputs)
    assert_same_picture(before, picture(host.model))


@pytest.mark.parametrize("family", ["llava", "qwen"])
def test_lora_adapters_are_supported(family: str) -> None:
    peft = pytest.importorskip("peft")
    host, rows = build(family), rows_of("ragged", family)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    wrapped = peft.get_peft_model(host.model, config).eval()
    inputs, plan = host.batch(rows), make_plan("both")
    with pruning(wrapped, plan) as trace, torch.no_grad():
        direct = wrapped(**inputs, use_cache=False).logits
        assert direct.shape[1] == trace.lengths[-1]
        host.model = wrapped
        tokens, logits = generate(host, inputs)
    host.model = wrapped.get_base_model()
    for number in range(len(rows)):
        expected = truth(host, plan, host.alone(rows, number), tokens[number, :-1])
        assert_same(logits[number], expected.logits[-NEW:])
        assert_same(direct[number, -1], expected.logits[-NEW])


class Int8Linear(nn.Module):
    """A quantised linear layer, without a floating-point weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight = nn.Parameter((linear.weight.detach() / scale).round().char(), False)
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


def test_quantised_models_are_supported() -> None:
    """Hooks only use activations, so quantised weights work."""
    host, rows = build("llava"), rows_of("ragged", "llava")
    for module in list(host.model.model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Linear(child))
    inputs, plan = host.batch(rows), make_plan("both", folds=True)
    with pruning(host.model, plan):
        tokens, logits = generate(host, inputs)
    for number in range(len(rows)):
        expected = truth(host, plan, host.alone(rows, number), tokens[number, :-1])
        assert_same(logits[number], expected.logits[-NEW:])


def test_bfloat16_models_are_supported() -> None:
    host = build("llava")
    host.model.bfloat16()
    inputs = host.batch(rows_of("ragged", "llava"))
    inputs["pixel_values"] = inputs["pixel_values"].bfloat16()
    with pruning(host.model, make_plan("both", folds=True)):
        _, logits = generate(host, inputs)
    assert logits.isfinite().all()


def test_custom_host_class_is_used() -> None:
    """The core alone, and an unknown family with an adapter."""
    host = build("llava")
    inputs = host.batch([[3, IMAGE, 5]])
    with pruning(host.model, make_plan("both")), torch.no_grad():
        hidden = host.model(**inputs, use_cache=False, output_hidden_states=True).hidden_states[-1]
    with pruning(host.model.model, make_plan("both")), torch.no_grad():
        assert torch.equal(host.model.model(**inputs, use_cache=False)[0], hidden)
        positional = host.model.model(inputs["input_ids"], inputs["pixel_values"], use_cache=False)
        assert torch.allclose(positional[0], hidden, atol=1e-5)

    class Mine(Llava):
        family = "Mine"

    hosts: list[Host] = []

    def make(model: nn.Module) -> Host:
        hosts.append(Mine(model))
        return hosts[0]

    host.model.config.model_type = "mine"
    with pruning(host.model, make_plan("both"), host=make) as trace, torch.no_grad():
        host.model(**inputs)
    assert hosts
    assert len(trace.stages) == 3


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_pruning_on_a_gpu(family: str) -> None:
    host = build(family)
    inputs, plan = host.batch(rows_of("ragged", family)), all_needs()
    with pruning(host.model, plan):
        _, expected = generate(host, inputs)
    host.model.cuda()
    moved = {name: value.cuda() for name, value in inputs.items()}
    # Towers begin with a convolution, for which cuDNN would take TF32.
    with torch.backends.cudnn.flags(allow_tf32=False), pruning(host.model, plan) as trace:
        _, logits = generate(host, moved)
    assert trace.selector_ms > 0
    assert torch.allclose(logits.cpu(), expected, atol=5e-3)
