"""The lmms-eval plug-in: against the real interface if it is installed, else a stand-in.

A request is what lmms-eval gives a chat model: `args` are context, document -> messages, generation
settings, document id, task, split.
"""

import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmms_eval_fake
import pytest
import torch
from PIL import Image

from eligo.errors import InputError
from eligo.scenes.vlm import VlmConfig, build_processor, build_vlm, load_vlm, save_vlm
from eligo.tokens import Cut, Plan, Stage1, TokenMerger
from eligo.tokens.inference.lmms_eval import manifest
from eligo.tokens.inference.predict import predict
from eligo.tokens.methods import build
from eligo.tokens.model.token_merger import MergerShape

PLUGIN = "eligo.tokens.inference.lmms_eval"
GREEDY = {"max_new_tokens": 5, "temperature": 0, "until": ["\n\n"]}
QUESTIONS = ["is there any red ball?", "what is the colour of the box?", "how many?", "is it?"]


@pytest.fixture(scope="module", autouse=True)
def interface() -> Iterator[None]:
    """lmms-eval, or what stands in for it."""
    if importlib.util.find_spec("lmms_eval") is not None:
        yield
        return
    fakes = lmms_eval_fake.modules()
    sys.modules.update(fakes)
    yield
    for name in [*fakes, PLUGIN]:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A narrow LLaVA with random weights: 36 vision tokens, 4 layers."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("host")
    sizes = VlmConfig(
        image_size=84, vision_layers=2, vision_width=16, layers=4, width=16, hidden=32, heads=2
    )
    save_vlm(build_vlm(sizes), build_processor(sizes), path)
    return path


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Metrics that were logged in the results of lmms-eval."""
    found: list[dict[str, Any]] = []
    metrics = import_module("lmms_eval.models.model_utils.gen_metrics")
    monkeypatch.setattr(metrics, "log_metrics", lambda *numbers: found.append(numbers[-1]))
    return found


@pytest.fixture
def make(folder: Path, logged: list) -> Any:
    """`make(method="uniform", budget=9)`: the model, as lmms-eval builds it."""
    return lambda **given: import_module(PLUGIN).PrunedModel(
        pretrained=str(folder), device="cpu", **given
    )


def picture(seed: int, size: tuple[int, int] = (100, 80)) -> Image.Image:
    noise = torch.randint(256, (*size, 3), generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(noise.byte().numpy())


def user(*parts: str | Image.Image) -> list[dict[str, Any]]:
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "url": part}
        for part in parts
    ]
    return [{"role": "user", "content": content}]


def ask(model: Any, messages: list, settings: list[dict] | None = None) -> list[str]:
    """One request for each document, as a task makes them."""
    model.task_dict["task"] = {"test": messages}
    every = settings or [GREEDY] * len(messages)
    return model.generate_until(
        [
            SimpleNamespace(args=("context", lambda doc: doc, dict(one), place, "task", "test"))
            for place, one in enumerate(every)
        ]
    )


def documents() -> list:
    return [user(picture(n), text) for n, text in enumerate(QUESTIONS)]


def expected(folder: Path, plan: Plan) -> list[str]:
    model, processor = load_vlm(folder)
    return [
        predict(
            picture(n), text, model=model, processor=processor, plan=plan, max_new_tokens=5
        ).answer
        for n, text in enumerate(QUESTIONS)
    ]


def test_lmms_eval_finds_the_plugin():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    entry = project["project"]["entry-points"]["lmms_eval.models"]["eligo"]
    assert entry == "eligo.tokens.inference.lmms_eval:manifest"
    found = manifest()
    assert found.model_id == "eligo"
    assert found.simple_class_path is None
    module, _, name = found.chat_class_path.rpartition(".")
    kind = getattr(import_module(module), name)
    assert issubclass(kind, import_module("lmms_eval.api.model").lmms)
    assert kind.is_simple is False


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(
    ("given", "plan"),
    [
        ({"method": "none"}, Plan()),
        ({"method": "uniform", "budget": 9}, Plan(Stage1(build("uniform"), 9))),
        ({"method": "fastv", "budget": 0.25}, Plan(cuts=[Cut(2, build("fastv"), ratio=0.25)])),
        (
            {"method": "fastv", "budget": "20+4", "layer": "1+3"},
            Plan(cuts=[Cut(1, build("fastv"), 20), Cut(3, build("fastv"), 4)]),
        ),
    ],
)
def test_answers_equal_those_of_predict(make, folder, given, plan, batch_size):
    assert ask(make(batch_size=batch_size, **given), documents()) == expected(folder, plan)


def test_plan_from_a_folder(make, folder, logged, tmp_path):
    merger = TokenMerger(MergerShape(width=16, dim=8)).eval()
    plan = Plan(Stage1(merger, 12), [Cut(2, build("uniform"), 6)])
    plan.save_pretrained(tmp_path)
    assert ask(make(plan=str(tmp_path), batch_size=2), documents()) == expected(folder, plan)
    assert logged[0]["vision_keep_mean"] == pytest.approx((12 + 12 + 6 + 6) / 4 / 36)
    assert 0 < logged[0]["flops_reduction_with_selector"] < logged[0]["flops_reduction_llm"] < 1


def test_answers_keep_the_order_of_requests(make, logged):
    model = make(method="uniform", budget=9, batch_size=2)
    short = {**GREEDY, "max_new_tokens": 1}
    settings = [GREEDY, short, GREEDY, short]
    pairs = zip(documents(), settings, strict=True)
    alone = [ask(model, [document], [own])[0] for document, own in pairs]
    assert ask(model, documents(), settings) == alone
    assert len(set(map(len, alone))) > 1


def test_prompts_without_images_and_with_two(make, folder):
    model = make(method="uniform", budget=9, batch_size=4)
    mixed = [user("is it?"), user(picture(0), "is it?"), user(picture(1), picture(2), "how many?")]
    alone = [ask(model, [one])[0] for one in mixed]
    assert ask(model, mixed) == alone
    host, processor = load_vlm(folder)
    inputs = processor(text="USER: is it? ASSISTANT:", return_tensors="pt")
    output = host.generate(**inputs, max_new_tokens=5, do_sample=False)
    answer = processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert alone[0] == answer.strip()


def test_images_are_opened_lazily(make, monkeypatch):
    model = make(method="uniform", budget=9)
    events = []
    generate = model._generate
    monkeypatch.setattr(model, "_generate", lambda b: (events.append("answer"), generate(b))[1])
    model.task_dict["task"] = {"test": documents()[:2]}

    def read(document: Any) -> Any:
        events.append("read")
        return document

    requests = [SimpleNamespace(args=("", read, GREEDY, n, "task", "test")) for n in range(2)]
    model.generate_until(requests)
    assert events == ["read", "answer"] * 2


def test_image_files_and_transparent_images(make, tmp_path):
    model = make(method="uniform", budget=9)
    picture(0).save(tmp_path / "a.png")
    answers = ask(model, [user(picture(0), "is it?"), user(picture(0).convert("RGBA"), "is it?")])
    content = [
        {"type": "image", "url": str(tmp_path / "a.png")},
        {"type": "text", "text": "is it?"},
    ]
    assert ask(model, [[{"role": "user", "content": content}]]) == answers[:1] == answers[1:]


def test_processors_without_a_template(make):
    model = make(method="uniform", budget=9)
    usual = ask(model, documents())
    model.processor.chat_template = None
    assert len(ask(model, documents())) == len(usual)
    with pytest.raises(InputError, match="document 0 has 2 images; expected one"):
        ask(model, [user(picture(0), picture(1), "is it?")])


def test_generation_settings():
    plugin = import_module(PLUGIN)
    greedy = {"max_new_tokens": 7, "num_beams": 1, "do_sample": False}
    assert plugin.generation({"max_new_tokens": 7, "temperature": 0, "top_p": 1.0}) == greedy
    assert plugin.generation({})["max_new_tokens"] == 1024
    sampled = plugin.generation({"temperature": 0.7, "top_p": 0.9, "num_beams": 2})
    assert sampled["do_sample"] is True
    assert (sampled["temperature"], sampled["top_p"], sampled["num_beams"]) == (0.7, 0.9, 2)
    assert plugin.truncate(" a\n\nb. c", ["\n\n"]) == "a\n\nb. c"  # the default of lmms-eval
    assert plugin.truncate(" a\n\nb. c", ["b", "\n\n", ""]) == "a"
    assert plugin.truncate("a.b", ".") == "a"
    assert plugin.truncate("a", None) == "a"


def test_batch_size_is_checked_before_the_model_is_loaded(make, monkeypatch):
    monkeypatch.setattr(import_module(PLUGIN), "load_host", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(InputError, match="batch_size: got -1"):
        make(method="none", batch_size=-1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "expected either a plan"),
        ({"method": "uniform"}, "needs a budget"),
        ({"method": "uniform", "budget": "many"}, "budget: got 'many'"),
        ({"method": "uniform", "budget": 99}, "at most 36"),
        ({"method": "fastv", "budget": 9, "layer": 7}, "below 4"),
        ({"method": "none", "batch_size": 0}, "batch_size: got 0"),
        ({"method": "none", "batch_size": "auto"}, "batch_size: got 'auto'"),
        ({"method": "none", "batch_size": "1.5"}, "batch_size: got 1.5, expected a whole"),
        ({"plan": "nowhere"}, "expected a folder"),
        ({"method": "none", "dtype": "int4"}, "dtype"),
    ],
)
def test_invalid_arguments_are_refused_before_any_request(make, given, message):
    with pytest.raises(InputError, match=message):
        make(**given)


def test_unsupported_requests_are_refused(make):
    model = make(method="none")
    content = [{"type": "video", "url": "x.mp4"}]
    with pytest.raises(InputError, match="document 0 has video, expected text and images"):
        ask(model, [[{"role": "user", "content": content}]])
    for refuse in (model.loglikelihood, model.generate_until_multi_round):
        with pytest.raises(NotImplementedError, match="choose one of those"):
            refuse([])
