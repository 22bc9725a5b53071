"""Threads that share a model: each call gets its own image, its own plan, its own trace."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import pytest
import torch
from hosts import IMAGE, TinyHost, build
from test_integration import make_plan
from token_truth import ByContent
from torch import Tensor, nn

from eligo.errors import EligoError
from eligo.report.pictures import rgb_picture
from eligo.scenes import SceneConfig, SceneDataset, load_vlm
from eligo.tokens.hooks.cuda_graphs import _GRAPHS
from eligo.tokens.hooks.masking import masking
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.tokens.trace import Trace

THREADS, CALLS, MANY = 4, 16, 64
NEW = 2
FAMILIES = ("llava", "qwen", "internvl")


@pytest.fixture(autouse=True)
def _contention() -> Iterator[None]:
    """Switch threads as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(interval)


def attention_plan(budget: int = 10) -> Plan:
    """Every kind of attention that a reducer may need."""
    return Plan(
        Stage1(ByContent(folds=True, needs=("cls_row",)), budget),
        [
            Cut(1, ByContent(needs=("attention_row",)), 6),
            Cut(3, ByContent(needs=("question_rows",)), 2),
        ],
    )


PLANS: dict[str, Callable[[], Plan]] = {
    "stage1": lambda: make_plan("1", folds=True),
    "cuts": lambda: make_plan("2"),
    "both": lambda: make_plan("both"),
    "attention": attention_plan,
}


def prompts(host: TinyHost, count: int = 6) -> list[dict[str, Any]]:
    """Prompts of different images, words, lengths and batch sizes."""
    rows = [[[3, IMAGE, 5]], [[4, IMAGE, 2]], [[2, IMAGE, 6], [3, IMAGE, 4]]]
    return [
        host.batch(row, seed=seed) for seed, row in zip(range(count), cycle(rows), strict=False)
    ]


def answer(host: TinyHost, inputs: dict[str, Any], **options: Any) -> Tensor:
    output = host.model.generate(
        **inputs, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False,
        output_logits=True, return_dict_in_generate=True, **options,
    )  # fmt: skip
    return torch.stack(output.logits, 1)


def in_threads(work: Callable[[int], Any], calls: int = CALLS) -> list[Any]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(calls)))


def kept(trace: Trace) -> list[list[int]]:
    return [stage.positions.flatten().tolist() for stage in trace.stages]


@pytest.mark.parametrize(
    ("family", "kind", "calls"),
    [
        ("llava", "attention", MANY),
        ("llava", "stage1", CALLS),
        ("llava", "cuts", CALLS),
        ("llava", "both", CALLS),
        ("qwen", "attention", CALLS),
        ("qwen", "both", CALLS),
        ("internvl", "attention", CALLS),
        ("llava_next", "attention", CALLS),
        ("qwen3_vl", "attention", CALLS),
        ("gemma3", "attention", CALLS),
        ("mistral3", "attention", CALLS),
    ],
)
def test_threads_share_one_context(family: str, kind: str, calls: int) -> None:
    host, plan = build(family), PLANS[kind]()
    inputs, expected = prompts(host), []
    for one in inputs:
        with pruning(host.model, plan) as trace:
            expected.append((answer(host, one), kept(trace)))
    with pruning(host.model, plan) as trace:
        found = in_threads(
            lambda n: (answer(host, inputs[n % len(inputs)]), kept(trace)), calls=calls
        )
    for number, (logits, positions) in enumerate(found):
        alone, positions_alone = expected[number % len(inputs)]
        assert torch.equal(logits, alone), number
        assert positions == positions_alone, number


@pytest.mark.parametrize(
    ("family", "attention", "calls"),
    [
        ("qwen", "sdpa", MANY),
        ("llava", "sdpa", CALLS),
        ("llava", "eager", CALLS),
        ("internvl", "sdpa", CALLS),
        ("llava_onevision", "sdpa", CALLS),
        ("qwen3_vl", "sdpa", CALLS),
        ("pixtral", "eager", CALLS),
    ],
)
def test_each_thread_has_its_own_context(family: str, attention: str, calls: int) -> None:
    host = build(family, attention)
    inputs = prompts(host)
    plans = [attention_plan(10), make_plan("1"), attention_plan(8), make_plan("both", folds=True)]
    cases = [(n % len(inputs), n % len(plans)) for n in range(12)]

    def work(number: int) -> tuple[Tensor, list[list[int]]]:
        one, plan = cases[number % len(cases)]
        with pruning(host.model, plans[plan]) as trace:
            return answer(host, inputs[one]), kept(trace)

    alone = [work(number) for number in range(len(cases))]
    for number, (logits, positions) in enumerate(in_threads(work, calls)):
        assert torch.equal(logits, alone[number % len(cases)][0]), number
        assert positions == alone[number % len(cases)][1], number
    assert host.model.model.language_model.config._attn_implementation == attention
    assert not any(module._forward_pre_hooks for module in host.model.modules())


@pytest.mark.parametrize("family", ["llava", "qwen"])
def test_forward_and_uncached_generation_in_threads(family: str) -> None:
    host, plan = build(family), attention_plan()
    inputs = prompts(host)

    def work(number: int) -> Tensor:
        one = inputs[number % len(inputs)]
        if number % 2:
            return answer(host, one, use_cache=False)
        with torch.no_grad():
            return host.model(**one).logits

    with pruning(host.model, plan):
        alone = [work(number) for number in range(len(inputs))]
        for number, found in enumerate(in_threads(work, calls=CALLS)):
            assert torch.equal(found, alone[number % len(inputs)]), number


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3_vl", "gemma3", "llava_next"])
def test_later_turns_in_threads(family: str) -> None:
    """A conversation may continue in another thread while others begin."""
    host, plan = build(family), make_plan("both")
    inputs = [host.batch([[3 + n, IMAGE, 5]], seed=n) for n in range(4)]
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}

    def first(number: int) -> Any:
        return host.model.generate(**inputs[number], **options, return_dict_in_generate=True)

    def second(number: int, turn: Any) -> Tensor:
        ids = torch.cat([turn.sequences, torch.tensor([[7, 9, 11 + number]])], dim=1)
        output = host.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=turn.past_key_values,
            output_logits=True,
            return_dict_in_generate=True,
            **options,
        )
        return torch.stack(output.logits, 1)

    alone = []
    for number in range(len(inputs)):
        with pruning(host.model, plan):
            alone.append(second(number, first(number)))
    with pruning(host.model, plan):
        turns = in_threads(lambda n: first(n % len(inputs)), calls=16)
        found = in_threads(lambda n: second(n % len(inputs), turns[n]), calls=16)
    for number, logits in enumerate(found):
        assert torch.equal(logits, alone[number % len(inputs)]), number


def test_features_of_another_thread_are_found() -> None:
    """Features encoded inside the context may be used later, in any order and thread."""
    host, plan = build("llava"), attention_plan()
    inputs = prompts(host)
    with pruning(host.model, plan), torch.no_grad():
        alone = [host.model(**one).logits for one in inputs]
        encoded = in_threads(
            lambda n: host.model.model.get_image_features(
                inputs[n]["pixel_values"], return_dict=True
            ),
            calls=len(inputs),
        )

        def work(number: int) -> Tensor:
            one = {k: v for k, v in inputs[number].items() if k != "pixel_values"}
            with torch.no_grad():
                return host.model(**one, mm_encoder_outputs={"image": encoded[number]}).logits

        found = in_threads(work, calls=len(inputs))
    assert all(torch.equal(a, b) for a, b in zip(alone, found, strict=True))


def test_streaming_from_a_thread_is_pruned() -> None:
    host, plan = build("llava"), make_plan("both")
    inputs, answers = prompts(host)[0], []
    with pruning(host.model, plan) as trace:
        thread = threading.Thread(target=lambda: answers.append(answer(host, inputs)))
        thread.start()
        thread.join()
        assert len(trace.stages) == 3, "the only trace, read by another thread"
    with pruning(host.model, plan):
        assert torch.equal(answers[0], answer(host, inputs))


def test_thread_without_context_is_refused_if_several_are_open() -> None:
    host = build("llava")
    inputs = prompts(host)[0]
    opened, done = threading.Barrier(2), threading.Event()

    def other() -> None:
        with pruning(host.model, make_plan("1")):
            opened.wait()
            done.wait()

    thread = threading.Thread(target=other)
    thread.start()
    try:
        with pruning(host.model, make_plan("both")) as trace:
            opened.wait()
            answer(host, inputs)
            assert len(trace.stages) == 3, "this thread has its own context"
            with ThreadPoolExecutor(1) as pool:
                for call in (answer, lambda host, inputs: host.model(**inputs)):
                    with pytest.raises(EligoError, match="2 contexts are open on this model"):
                        pool.submit(call, host, inputs).result()
        answer(host, inputs)  # one context is left
    finally:
        done.set()
        thread.join()


def test_stream_continues_when_another_context_opens() -> None:
    """The cache identifies its context."""
    host, plan = build("llava"), attention_plan()
    inputs = prompts(host)[0]
    with pruning(host.model, plan):
        alone = answer(host, inputs)
    begun, opened = threading.Event(), threading.Event()

    class Streamer:
        """Waits after the first token until another context is open."""

        words = 0

        def put(self, _value: Tensor) -> None:
            self.words += 1
            if self.words == 2:  # the prompt comes first
                begun.set()
                opened.wait()

        def end(self) -> None: ...

    def other() -> Tensor:
        begun.wait()
        with pruning(host.model, make_plan("1")):
            opened.set()
            return running.result()

    with pruning(host.model, plan), ThreadPoolExecutor(2) as pool:
        running = pool.submit(answer, host, inputs, streamer=Streamer())
        assert torch.equal(pool.submit(other).result(), alone)


def test_generation_that_outlives_its_context_ends_with_an_error() -> None:
    host, inputs = build("llava"), prompts(build("llava"))[0]
    begun, left = threading.Event(), threading.Event()

    class Streamer:
        """Waits after the first token until the context is left."""

        words = 0

        def put(self, _value: Tensor) -> None:
            self.words += 1
            if self.words == 2:  # the prompt comes first
                begun.set()
                left.wait()

        def end(self) -> None: ...

    with ThreadPoolExecutor(1) as pool:
        with pruning(host.model, make_plan("1")):
            running = pool.submit(answer, host, inputs, streamer=Streamer())
            begun.wait()
        left.set()
        with pytest.raises(EligoError, match="join its thread there"):
            running.result()


def test_exit_waits_for_passes_of_other_threads() -> None:
    """A pass that began inside is completed, with all its cuts."""
    host = build("llava")
    inside, leaving = threading.Event(), threading.Event()

    class Slow(ByContent):
        def select(self, context: Any, budget: Tensor) -> Any:
            inside.set()
            leaving.wait()
            return super().select(context, budget)

    plan = Plan(None, [Cut(1, Slow(), 6), Cut(3, ByContent(), 2)])
    with ThreadPoolExecutor(1) as pool, torch.no_grad():
        with pruning(host.model, plan) as trace:
            running = pool.submit(host.model, **prompts(host)[0])
            inside.wait()
            threading.Timer(0.05, leaving.set).start()
        assert [stage.layer for stage in trace.stages] == [1, 3]
        assert running.result().logits.shape[1] == trace.lengths[-1]


def test_failed_pass_leaves_no_state() -> None:
    host = build("llava")
    answer(host, prompts(host)[0])  # transformers installs its own hooks
    hooks = [len(module._forward_hooks) for module in host.model.modules()]

    class Failing(ByContent):
        def select(self, context: Any, budget: Tensor) -> Any:
            raise RuntimeError("in a layer")

    with pruning(host.model, Plan(None, [Cut(2, Failing(), 4)])):
        for _ in range(3):
            with pytest.raises(RuntimeError, match="in a layer"):
                host.model(**prompts(host)[0])
    with pruning(host.model, make_plan("both")):
        bad = {**prompts(host)[0], "pixel_values": None}
        with pytest.raises(EligoError, match="without an image"):
            host.model(**bad)
    assert hooks == [len(module._forward_hooks) for module in host.model.modules()]


def checkpointed_gradients(device: str) -> None:
    """Layers run again in autograd threads; gradients equal those without checkpointing."""
    host = build("llava")
    host.model.to(device).train()
    inputs = [{name: value.to(device) for name, value in one.items()} for one in prompts(host, 4)]
    plan = Plan(None, [Cut(1, ByContent(needs=("attention_row",)), 6), Cut(3, ByContent(), 2)])

    def gradient(number: int, context: Any) -> Tensor:
        embeddings: nn.Module = host.model.get_input_embeddings()
        with context(host.model, plan):
            logits = host.model(**inputs[number % len(inputs)], use_cache=False).logits
            (found,) = torch.autograd.grad(logits.float().square().mean(), embeddings.weight)
        return found

    for context in (pruning, masking):
        host.model.gradient_checkpointing_disable()
        plain = [gradient(number, context) for number in range(len(inputs))]
        host.model.gradient_checkpointing_enable({"use_reentrant": False})
        found = in_threads(lambda n, c=context: gradient(n, c), calls=16)
        for number, one in enumerate(found):
            assert torch.allclose(one, plain[number % len(inputs)], atol=1e-6, rtol=1e-4), number


def test_checkpointed_backward_in_threads() -> None:
    checkpointed_gradients("cpu")


@pytest.mark.gpu
def test_checkpointed_backward_in_threads_on_a_gpu() -> None:
    with torch.backends.cudnn.flags(allow_tf32=False):
        checkpointed_gradients("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_threads_on_a_gpu(family: str) -> None:
    host, plan = build(family), attention_plan()
    host.model.cuda()
    inputs = [{name: value.cuda() for name, value in one.items()} for one in prompts(host)]
    with pruning(host.model, plan):
        alone = [answer(host, one) for one in inputs]
        found = in_threads(lambda n: answer(host, inputs[n % len(inputs)]), calls=MANY)
    for number, logits in enumerate(found):
        assert torch.allclose(logits, alone[number % len(inputs)], atol=1e-4), number


@pytest.mark.gpu
def test_cuda_graphs_in_threads() -> None:
    """CUDA graphs of learned modules have inputs and outputs at fixed addresses."""
    model, processor = load_vlm()
    model.cuda()
    plan = Plan.from_pretrained("tokens_default")
    for stage in plan.stages:
        stage.reducer.cuda()
    scenes = SceneDataset(SceneConfig(), "validation", 6)
    question = "<image>\nwhat is there?"
    inputs = [
        processor(images=rgb_picture(scene.rgb), text=question, return_tensors="pt").to("cuda")
        for scene in scenes
    ]

    def work(number: int) -> tuple[Tensor, list[list[int]]]:
        with torch.no_grad():
            return model(**inputs[number % 6]).logits[:, -1], kept(trace)

    with pruning(model, plan) as trace:
        alone = [work(number) for number in range(6)]  # this also records the graphs
        assert any(module_graphs.graphs for module_graphs in _GRAPHS.values())
        for number, (logits, positions) in enumerate(in_threads(work, calls=MANY)):
            assert torch.allclose(logits, alone[number % 6][0], atol=1e-3), number
            assert positions == alone[number % 6][1], number
