"""Graphs give what the plain path gives; on a CPU, frozen operators stand in for them.

`pytest -m gpu tests/tokens/test_graphs.py` runs the same tests with CUDA graphs.
"""

import gc
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from weakref import ref

import pytest
import torch
from frozen import FrozenRecorder
from hosts import IMAGE, TinyHost, build
from test_integration_restore import assert_same_picture, picture
from tiny_models import PAD
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from eligo import selection
from eligo.ops import masked as ragged
from eligo.ops import topk
from eligo.tokens.hooks import context as hooks_context
from eligo.tokens.hooks import model_graphs, step_graphs
from eligo.tokens.hooks.model_graphs import ModelGraphs, drop_graphs, graph_stats
from eligo.tokens.hooks.packed import PackedTensors
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.hosts.llava import Llava
from eligo.tokens.model.layer_pruners import LayerPruners, PrunersShape
from eligo.tokens.model.token_merger import MergerShape, TokenMerger
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.tokens.trace import Trace

NEW = 6
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@dataclass
class Answer:
    """What a call leaves behind."""

    tokens: Tensor
    logits: Tensor
    trace: Trace
    cache: Any


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without checks of values, which read tensors on a CPU."""
    for module in (ragged, topk, selection, hooks_context):
        monkeypatch.setattr(module, "values_are_free", lambda *_: False)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "cpu":
        monkeypatch.setattr(model_graphs, "make_recorder", lambda _: FrozenRecorder())
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield request.param


@pytest.fixture
def host(device: str) -> TinyHost:
    found = build("llava")
    found.model.to(device)
    return found


def make_plan(kind: str, device: str) -> Plan:
    """Learned parts with random weights; "none" is the unpruned model."""
    torch.manual_seed(3)
    merger = TokenMerger(MergerShape(width=16, dim=8))
    asking = TokenMerger(MergerShape(kind="question_aware", width=16, question_width=32, dim=8))
    pruners = LayerPruners(PrunersShape(layers=(1, 3), width=32, dim=8, num_heads=2))
    for part in (merger, asking, pruners):
        part.eval().requires_grad_(False).to(device)
    cuts = [Cut(1, pruners[1], 6), Cut(3, pruners[3], 2)]
    return {
        "none": lambda: Plan(),
        "stage1": lambda: Plan(Stage1(asking, 9)),
        "cuts": lambda: Plan(cuts=cuts),
        "both": lambda: Plan(Stage1(merger, 10), cuts),
        "no bias": lambda: Plan(Stage1(asking, 10), cuts, size_bias=False),
    }[kind]()


def batch(host: TinyHost, rows: Any, seed: int) -> dict[str, Any]:
    device = host.model.device
    return {name: x.to(device) for name, x in host.batch(rows, seed=seed).items()}


def prompts(host: TinyHost, count: int) -> list[dict[str, Any]]:
    """Prompts of one bucket: other images, words, lengths, and places of the image."""
    rows = [[3, IMAGE, 5], [4, IMAGE, 3], [2, IMAGE, 9], [7, IMAGE, 1]]
    return [batch(host, [rows[number % 4]], number) for number in range(count)]


def answer(host: TinyHost, plan: Plan, inputs: dict[str, Any], **options: Any) -> Answer:
    with pruning(host.model, plan, graphs=True) as trace:
        return _generate(host, inputs, trace, **options)


def plain(host: TinyHost, plan: Plan, inputs: dict[str, Any], **options: Any) -> Answer:
    with pruning(host.model, plan) as trace:
        return _generate(host, inputs, trace, **options)


def _generate(host: TinyHost, inputs: dict[str, Any], trace: Trace, **options: Any) -> Answer:
    output = host.model.generate(
        **inputs, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False,
        output_logits=True, return_dict_in_generate=True, **options,
    )  # fmt: skip
    logits = torch.stack(output.logits, 1)
    shown = Trace()
    for name in ("stages", "grid", "rows", "columns", "num_columns"):
        setattr(shown, name, getattr(trace, name))
    return Answer(output.sequences, logits, shown, output.past_key_values)


def assert_same(found: Answer, expected: Answer) -> None:
    assert torch.equal(found.tokens, expected.tokens)
    assert (found.logits - expected.logits).abs().max() < 5e-4
    assert len(found.trace.stages) == len(expected.trace.stages)
    for one, other in zip(found.trace.stages, expected.trace.stages, strict=True):
        assert torch.equal(one.positions, other.positions)
        assert torch.equal(one.selection.indices, other.selection.indices)
        assert torch.allclose(one.selection.scores, other.selection.scores, atol=1e-4)
        weights = one.selection.assignment, other.selection.assignment
        assert (weights[0] is None) == (weights[1] is None)
        if weights[0] is not None and weights[1] is not None:
            assert torch.allclose(weights[0], weights[1], atol=1e-4)
    assert len(found.trace.columns) == len(expected.trace.columns)
    for one, other in zip(found.trace.columns, expected.trace.columns, strict=True):
        assert torch.equal(one, other)
    for name in ("grid", "rows"):
        assert torch.equal(getattr(found.trace, name), getattr(expected.trace, name))
    assert found.trace.num_columns == expected.trace.num_columns
    layers = zip(found.cache.layers, expected.cache.layers, expected.trace.columns, strict=True)
    for one, other, columns in layers:
        assert one.keys.shape == other.keys.shape
        hidden = nn.functional.pad(expected.tokens.gather(1, columns.clamp_min(0)) == PAD, (0, 1))
        hidden = nn.functional.pad(hidden, (0, one.keys.shape[2] - hidden.shape[1]))
        for x, y in ((one.keys, other.keys), (one.values, other.values)):
            difference = (x - y).abs().amax((1, 3)).masked_fill(hidden, 0)
            assert difference.max() < 5e-4


def layers_of(host: TinyHost) -> Any:
    return host.text.layers


def graphs_of(host: TinyHost, plan: Plan) -> ModelGraphs:
    return model_graphs._GRAPHS[host.model.model][id(plan)]


def counts(graphs: ModelGraphs) -> tuple[int, int, int, int]:
    """Graphs of towers, prompts and steps, and replayed prompts."""
    tables = (graphs.towers, graphs.prompts, graphs.steps)
    sizes = [len(table.graphs()) for table in tables]
    return (sizes[0], sizes[1], sizes[2], graphs.replays)


@pytest.mark.parametrize("kind", ["none", "stage1", "cuts", "both", "no bias"])
def test_replays_of_other_prompts_are_exact(host: TinyHost, device: str, kind: str) -> None:
    """The first prompt runs as it is, the second is recorded; later ones have other lengths."""
    plan, given = make_plan(kind, device), prompts(host, 6)
    expected = [plain(host, plan, one) for one in given]
    found = [answer(host, plan, one) for one in given]
    assert counts(graphs_of(host, plan)) == (1, 1, 1, 5)
    for one, other in zip(found, expected, strict=True):  # last: replays leave results alone
        assert_same(one, other)
    assert len({one.tokens.tolist()[0][-NEW:].__repr__() for one in expected}) > 1


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padded_batches_are_exact(device: str, attention: str) -> None:
    host = build("llava", attention)
    host.model.to(device)
    plan = make_plan("both", device)
    rows = [[[3, IMAGE, 8], [2, IMAGE, 3]], [[4, IMAGE, 1], [9, IMAGE, 2]]]
    given = [batch(host, rows[number % 2], number) for number in range(4)]
    expected = [plain(host, plan, one) for one in given]
    found = [answer(host, plan, one) for one in given]
    assert counts(graphs_of(host, plan)) == (1, 1, 1, 3)
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


def test_uneven_rows_decode_from_graphs(host: TinyHost, device: str) -> None:
    """Prompts of several images run as they are."""
    plan = make_plan("both", device)
    rows = [[3, IMAGE, 2, IMAGE, 3], [2, IMAGE, 9]]
    given = [batch(host, rows, seed) for seed in range(3)]
    for one in given:
        assert_same(answer(host, plan, one), plain(host, plan, one))
    assert counts(graphs_of(host, plan))[1:] == (0, 1, 0)


class ByRow(nn.Module):
    """Keeps what [CLS] attends to."""

    name, capturable = "row", True
    where: Any = frozenset({"before"})
    needs: Any = frozenset({"cls_row", "object_row"})

    def select(self, context: Any, budget: Tensor) -> selection.Selection:
        scores = context.cls_row + context.object_row
        return selection.Selection.top_k(scores, int(budget[0]), context.mask)


ByRow.__module__ = "eligo.tests"


def test_attention_rows_of_the_tower_are_replayed(host: TinyHost, device: str) -> None:
    plan = Plan(Stage1(ByRow(), 5))
    for one in prompts(host, 4):
        assert_same(answer(host, plan, one), plain(host, plan, one))
    assert counts(graphs_of(host, plan)) == (1, 1, 1, 3)


def test_attention_rows_of_a_failed_recording_are_dropped(
    host: TinyHost, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fails(PackedTensors):
        def add(self, tensor: Tensor, is_columns: bool = False) -> Tensor:
            return super().add(tensor.fill_(torch.nan))  # as if nothing had been computed

        def pack(self) -> None:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(model_graphs, "PackedTensors", Fails)
    plan = Plan(Stage1(ByRow(), 5))
    for one in prompts(host, 4):
        assert_same(answer(host, plan, one), plain(host, plan, one))
    assert counts(graphs_of(host, plan))[0] == 0


def test_buckets_answer_most_questions(host: TinyHost, device: str) -> None:
    """500 questions of usual lengths need few graphs, and long ones have their own."""
    plan = make_plan("both", device)
    source = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 40, (24,), generator=source).tolist()
    with pruning(host.model, plan, graphs=True), torch.no_grad():
        for seed, length in enumerate(lengths):
            host.model(**batch(host, [[3, IMAGE, length]], seed), past_key_values=DynamicCache())
    graphs = graphs_of(host, plan)
    assert len(graphs.prompts.graphs()) == 2
    assert graphs.replays == len(lengths) - 2


def test_conversations_are_interleaved(host: TinyHost, device: str) -> None:
    """They share a graph, whose memory holds one of them at a time."""
    plan, given = make_plan("both", device), prompts(host, 4)

    def talk(**options: Any) -> list[Tensor]:
        with pruning(host.model, plan, **options), torch.no_grad():
            caches = [DynamicCache() for _ in given]
            steps = [
                host.model(**one, past_key_values=cache).logits[:, -1:]
                for one, cache in zip(given, caches, strict=True)
            ]
            logits = [steps]
            for turn in range(NEW):
                length = 2 if turn == 3 else 1  # once, several tokens at a time
                steps = [
                    host.model(
                        input_ids=last.argmax(-1).repeat(1, length), past_key_values=cache
                    ).logits[:, -1:]
                    for last, cache in zip(steps, caches, strict=True)
                ]
                logits.append(steps)
        return [torch.cat(one, 1) for one in zip(*logits, strict=True)]

    expected = talk()
    talk(graphs=True)
    for one, other in zip(talk(graphs=True), expected, strict=True):
        assert (one - other).abs().max() < 5e-4
    assert counts(graphs_of(host, plan))[1:3] == (1, 1)


def test_a_turn_of_several_tokens_does_not_end_replays(host: TinyHost, device: str) -> None:
    plan, given = make_plan("both", device), prompts(host, 1)[0]
    found = []
    for graphs in (False, True):
        with pruning(host.model, plan, graphs=graphs), torch.no_grad():
            cache, token = DynamicCache(), given["input_ids"][:, :1]
            host.model(**given, past_key_values=cache)
            steps = [
                host.model(input_ids=token.repeat(1, length), past_key_values=cache).logits
                for length in (1, 1, 1, 2, 1, 1)
            ]
        found.append(torch.cat(steps, 1))
    assert (found[1] - found[0]).abs().max() < 5e-4
    assert cache not in graphs_of(host, plan)._swapped


def test_numbers_of_one_conversation_stay_there(host: TinyHost, device: str) -> None:
    """Also NaN, in columns that the next one hides: zero times NaN is NaN."""
    plan, broken = make_plan("both", device), batch(host, [[14, IMAGE, 1]], 9)
    for _ in range(3):
        answer(host, plan, broken)
    broken["pixel_values"] = broken["pixel_values"] * torch.nan
    assert answer(host, plan, broken).logits.isnan().all()
    for one in prompts(host, 4):
        assert_same(answer(host, plan, one), plain(host, plan, one))
    assert counts(graphs_of(host, plan))[:3] == (1, 1, 1)


def test_a_long_answer_outgrows_its_graph(
    host: TinyHost, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_graphs, "_ROOM", 8)
    plan, given = make_plan("both", device), prompts(host, 2)
    options = {"max_new_tokens": 12, "min_new_tokens": 12}

    caches = []  # they stay, so that it shows whether replays ended

    def run(one: dict[str, Any], **graphs: Any) -> Tensor:
        with pruning(host.model, plan, **graphs):
            output = host.model.generate(
                **one, do_sample=False, return_dict_in_generate=True, **options
            )
            caches.append(output.past_key_values)
            return output.sequences

    expected = [run(one) for one in given]
    for _ in range(2):
        assert all(
            torch.equal(run(a, graphs=True), b) for a, b in zip(given, expected, strict=True)
        )
    assert len(graphs_of(host, plan).steps.graphs()) == 2
    assert not graphs_of(host, plan)._swapped


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"use_cache": False}])
def test_beams_and_prompts_without_a_cache_are_exact(
    host: TinyHost, device: str, options: dict[str, Any]
) -> None:
    plan, given = make_plan("both", device), prompts(host, 4)
    for one in given:
        with pruning(host.model, plan):
            expected = host.model.generate(**one, max_new_tokens=NEW, do_sample=False, **options)
        with pruning(host.model, plan, graphs=True):
            found = host.model.generate(**one, max_new_tokens=NEW, do_sample=False, **options)
        assert torch.equal(found, expected)
    if "use_cache" in options:  # for beams, some versions repeat images before the tower
        assert counts(graphs_of(host, plan))[1:3] == (0, 0)


class _Passes(TorchDispatchMode):
    """Changes nothing."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def test_hooks_and_modes_of_others_turn_graphs_off(host: TinyHost, device: str) -> None:
    plan, given = make_plan("both", device), prompts(host, 1)[0]
    for _ in range(3):
        answer(host, plan, given)
    before = graphs_of(host, plan).replays
    seen: list[int] = []
    layer = layers_of(host)[2].mlp
    handle = layer.register_forward_hook(lambda *_: seen.append(1))
    answer(host, plan, given)
    handle.remove()
    assert len(seen) == NEW
    with FlopCounterMode(display=False) as counter:
        answer(host, plan, given)
    assert counter.get_total_flops() > 0
    with _Passes():
        answer(host, plan, given)
    with torch.enable_grad(), pruning(host.model, plan, graphs=True):
        assert host.model(**given).logits.requires_grad
    assert graphs_of(host, plan).replays == before
    answer(host, plan, given)
    assert graphs_of(host, plan).replays == before + 1


def test_outputs_that_graphs_do_not_compute(host: TinyHost, device: str) -> None:
    plan, given = make_plan("both", device), prompts(host, 1)[0]
    for _ in range(3):
        answer(host, plan, given)
    with pruning(host.model, plan, graphs=True), torch.no_grad():
        output = host.model(**given, past_key_values=DynamicCache(), output_hidden_states=True)
        host.model.model.language_model.config.output_hidden_states = True
        same = host.model(**given, past_key_values=DynamicCache())
    assert len(output.hidden_states) == len(same.hidden_states) == len(layers_of(host)) + 1


@pytest.mark.parametrize("part", ["text", "tower", "projector", "reducer", "structure"])
def test_new_weights_are_recorded_anew(host: TinyHost, device: str, part: str) -> None:
    plan, given = make_plan("both", device), prompts(host, 1)[0]
    before = [answer(host, plan, given) for _ in range(3)][-1]
    module: Any = {
        "text": layers_of(host)[1].mlp,
        "tower": host.model.model.vision_tower,
        "projector": host.model.model.multi_modal_projector,
        "reducer": plan.cuts[0].reducer,
        "structure": layers_of(host)[1].mlp,
    }[part]
    with torch.no_grad():
        if part == "structure":
            fresh = nn.Linear(*reversed(module.up_proj.weight.shape), bias=False, device=device)
            module.up_proj = fresh.requires_grad_(False)
        for parameter in module.parameters():
            parameter.data = parameter.data * 1.5
    found, expected = answer(host, plan, given), plain(host, plan, given)
    assert_same(found, expected)
    assert (found.logits - before.logits).abs().max() > 1e-3 or part == "reducer"
    for _ in range(2):
        assert_same(answer(host, plan, given), expected)


def test_a_step_notices_a_moved_model(host: TinyHost, device: str) -> None:
    """Its graph would read memory that was given back."""
    plan, given = make_plan("both", device), prompts(host, 1)[0]
    token, found = given["input_ids"][:, :1], []
    for graphs in (False, True, True):
        with pruning(host.model, plan, graphs=graphs), torch.no_grad():
            cache = DynamicCache()
            host.model(**given, past_key_values=cache)
            for _ in range(3):
                host.model(input_ids=token, past_key_values=cache)
            before = {name: x.data for name, x in host.model.named_parameters()}
            for parameter in host.model.parameters():  # as `model.to` does
                parameter.data = parameter.data * 1.1
            found.append(host.model(input_ids=token, past_key_values=cache).logits)
            for name, parameter in host.model.named_parameters():
                parameter.data = before[name]
    assert torch.allclose(found[1], found[0], atol=5e-4)
    assert torch.allclose(found[2], found[0], atol=5e-4)


@pytest.mark.parametrize("part", ["layer", "projector", "text", "tower"])
def test_forwards_of_others_are_called(host: TinyHost, device: str, part: str) -> None:
    plan, given = make_plan("both", device), prompts(host, 1)[0]
    before = [answer(host, plan, given) for _ in range(3)][-1]
    module: Any = {
        "layer": layers_of(host)[1].mlp,
        "projector": host.model.model.multi_modal_projector,
        "text": host.text,
        "tower": host.model.model.vision_tower,
    }[part]
    seen: list[int] = []
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        return original(*args, **kwargs)

    module.forward = forward
    expected, count = plain(host, plan, given), len(seen)
    for _ in range(3):
        assert_same(answer(host, plan, given), expected)
    assert len(seen) == 4 * count
    del module.forward
    for _ in range(3):
        assert_same(answer(host, plan, given), before)
    assert len(seen) == 4 * count


def test_graphs_belong_to_a_device(host: TinyHost, device: str) -> None:
    """A recorder records nothing of another device, and so its graphs would do nothing."""
    plan, given = make_plan("both", device), prompts(host, 2)
    for _ in range(3):
        answer(host, plan, given[0])
    old = graphs_of(host, plan)
    old.device = torch.device("cuda", 7)  # as if the model had been there
    assert_same(answer(host, plan, given[1]), plain(host, plan, given[1]))
    assert graphs_of(host, plan) is not old
    assert graphs_of(host, plan).device == host.model.device
    host.model.model.vision_tower.register_buffer("spare", torch.empty(1, device="meta"))
    for _ in range(3):  # parts of the model are elsewhere
        assert_same(answer(host, plan, given[0]), plain(host, plan, given[0]))
    assert counts(graphs_of(host, plan)) == (0, 0, 0, 0)


def test_adapters_have_graphs_of_their_own(host: TinyHost, device: str) -> None:
    class Louder(Llava):
        def embed(self, input_ids: Any) -> Any:
            return 2 * super().embed(input_ids)

    plan, given = make_plan("both", device), prompts(host, 1)[0]
    for _ in range(3):
        answer(host, plan, given)
    found = []
    for graphs in (False, True):
        with pruning(host.model, plan, host=Louder, graphs=graphs) as trace:
            found.append(_generate(host, given, trace))
    assert_same(found[1], found[0])


def test_weights_changed_in_place_are_read(host: TinyHost, device: str) -> None:
    plan, given = make_plan("both", device), prompts(host, 1)[0]
    for _ in range(3):
        answer(host, plan, given)
    replays = graphs_of(host, plan).replays
    with torch.no_grad():
        layers_of(host)[1].mlp.up_proj.weight.mul_(1.5)
    assert_same(answer(host, plan, given), plain(host, plan, given))
    assert graphs_of(host, plan).replays == replays + 1


def test_model_is_restored(host: TinyHost, device: str) -> None:
    plan, given = make_plan("both", device), prompts(host, 1)[0]
    plain(host, plan, given)  # installs what transformers itself leaves
    before = picture(host.model)
    for _ in range(3):
        answer(host, plan, given)
        assert_same_picture(before, picture(host.model))
    with pytest.raises(ZeroDivisionError), pruning(host.model, plan, graphs=True):
        assert host.model(**given).logits.shape[1] / 0
    assert_same_picture(before, picture(host.model))


def test_memory_is_bounded_told_and_given_back(
    host: TinyHost, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_graphs, "MAX_GRAPHS", 2)
    plan = make_plan("both", device)
    assert graph_stats(host.model) == {"graphs": 0, "bytes": 0, "replays": 0}
    for length in (5, 40, 75, 110):
        for seed in range(3):
            answer(host, plan, batch(host, [[3, IMAGE, length]], seed))
    assert counts(graphs_of(host, plan))[:3] == (1, 2, 2)
    found = graph_stats(host.model)
    assert found["graphs"] == 5
    assert found["bytes"] > 0
    drop_graphs(host.model)
    assert graph_stats(host.model)["graphs"] == 0
    given = prompts(host, 1)[0]
    assert_same(answer(host, plan, given), plain(host, plan, given))


def test_large_caches_decode_as_they_are(
    host: TinyHost, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, given = make_plan("both", device), prompts(host, 3)
    expected = [plain(host, plan, one) for one in given]
    monkeypatch.setattr(model_graphs, "MAX_BYTES", 1000)
    for one, other in zip(given, expected, strict=True):
        assert_same(answer(host, plan, one), other)
    assert counts(graphs_of(host, plan)) == (1, 1, 0, 2)


def test_hidden_states_of_steps_keep_their_values(host: TinyHost, device: str) -> None:
    plan, given = make_plan("both", device), prompts(host, 1)[0]
    found = []
    for graphs in (False, True, True):
        with pruning(host.model, plan, graphs=graphs), torch.no_grad():
            cache = DynamicCache()
            host.model(**given, past_key_values=cache)
            token = given["input_ids"][:, :1]
            found.append(
                [host.model.model(input_ids=token, past_key_values=cache)[0] for _ in range(3)]
            )
    assert len(graphs_of(host, plan).steps.graphs()) == 1
    assert torch.allclose(torch.cat(found[2]), torch.cat(found[0]), atol=1e-4)


def test_graphs_end_with_plan_and_model(host: TinyHost, device: str) -> None:
    given = prompts(host, 1)[0]
    plans = [make_plan("both", device) for _ in range(2)]
    for number in (0, 0, 0, 1, 1, 1):
        answer(host, plans[number], given)
    gone = [ref(graphs_of(host, plans[number])) for number in (0, 1)]
    del plans[0]
    gc.collect()
    assert [one() is None for one in gone] == [True, False]
    del host.model
    gc.collect()
    assert gone[1]() is None


def test_threads_share_graphs(host: TinyHost, device: str) -> None:
    plan, given = make_plan("both", device), prompts(host, 8)
    expected = [plain(host, plan, one) for one in given]
    for one in given[:2]:
        answer(host, plan, one)
    found: dict[int, Answer] = {}

    def work(number: int) -> None:
        found[number] = answer(host, plan, given[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, other in enumerate(expected):
        assert_same(found[number], other)


def test_the_first_thread_is_the_first_that_runs(host: TinyHost, device: str) -> None:
    """Not the one that opened the context."""
    plan, given = make_plan("both", device), prompts(host, 1)[0]

    def work() -> None:
        for _ in range(3):
            host.model.generate(**given, max_new_tokens=NEW, do_sample=False)

    with pruning(host.model, plan, graphs=True):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert counts(graphs_of(host, plan)) == (1, 1, 1, 2)


def test_a_second_thread_ends_recording(host: TinyHost, device: str) -> None:
    plan, given = make_plan("both", device), prompts(host, 1)[0]
    thread = threading.Thread(target=answer, args=(host, plan, given))
    for _ in range(2):
        answer(host, plan, given)
    thread.start()
    thread.join()
    for seed in range(3):
        answer(host, plan, batch(host, [[3, IMAGE, 40]], seed))
    assert counts(graphs_of(host, plan))[1] == 1


def test_a_failed_recording_is_logged_once(
    host: TinyHost, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Waits(nn.Module):
        """Reads a value on the device."""

        name, capturable = "waits", True
        where: Any = frozenset({"before"})
        needs: Any = frozenset()

        def select(self, context: Any, budget: Tensor) -> selection.Selection:
            scores = context.features.float().sum(-1)
            scores = scores * (1 if float(scores[0, 0]) > 0 else -1)
            return selection.Selection.top_k(scores, int(budget[0]), context.mask)

    Waits.__module__ = "eligo.tests"
    plan = Plan(Stage1(Waits(), 5))
    for one in prompts(host, 4):
        assert_same(answer(host, plan, one), plain(host, plan, one))
    assert counts(graphs_of(host, plan))[1] == 0
    assert len([text for text in caplog.messages if "could not be recorded" in text]) == 1


def test_parts_that_cannot_be_recorded_are_left_alone(host: TinyHost, device: str) -> None:
    plan = make_plan("both", device)
    assert plan.stage1 is not None
    reindexed = replace(plan, positions="reindex")
    for one in prompts(host, 3):
        assert_same(answer(host, reindexed, one), plain(host, reindexed, one))
    assert host.model.model not in model_graphs._GRAPHS


@pytest.mark.parametrize("first", [0, 1])
def test_graphs_are_used_in_every_mode(host: TinyHost, device: str, first: int) -> None:
    """The first answer records steps, the second one prompts."""
    plan, given = make_plan("both", device), prompts(host, 5)
    for number, one in enumerate(given):
        with torch.inference_mode() if number % 2 == first else torch.no_grad():
            found = answer(host, plan, one)
        assert_same(found, plain(host, plan, one))
    assert graphs_of(host, plan).replays == 4


def test_question_masks_are_read(host: TinyHost, device: str) -> None:
    plan = make_plan("stage1", device)
    for number, one in enumerate(prompts(host, 5)):
        mask = torch.zeros_like(one["input_ids"], dtype=torch.bool)
        mask[:, -1 - number % 2 :] = True
        found = []
        for graphs in (False, True):
            with pruning(host.model, plan, mask, graphs=graphs) as trace:
                found.append(_generate(host, one, trace))
        assert_same(found[1], found[0])
    assert graphs_of(host, plan).replays == 4


def test_nothing_is_recorded_without_a_gpu_or_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    host, plan = build("llava"), make_plan("both", "cpu")
    given = prompts(host, 1)[0]
    for _ in range(3):
        answer(host, plan, given)
    monkeypatch.setattr(model_graphs, "make_recorder", lambda _: pytest.fail("unasked"))
    plain(host, plan, given)
    assert graph_stats(host.model) == {"graphs": 0, "bytes": 0, "replays": 0}
