"""The tools of the live explorer, with tiny random models in place of the shipped ones."""

import gc
import json
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from PIL import Image

from eligo.cli.explorer import live_tools
from eligo.cli.explorer.tokens_tool import plan_at
from eligo.errors import InputError
from eligo.explorer.inline import inline
from eligo.explorer.tools import LiveImage, LiveRequest, LiveTool, describe
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.pretrained import load as pretrained
from eligo.shots.config import PointerSelectorV1Config
from eligo.shots.inference.learned_selector import LearnedSelector
from eligo.shots.model.pretrained import build_model
from eligo.shots.pool.pool import Pool
from eligo.tokens.methods import METHODS, VIDEO_METHODS, build
from eligo.tokens.plan import Cut, Plan, Stage1
from shipped_models import LEARNER, VLM, make_models, vlm


def selector(folder: Path) -> None:
    width = LEARNER.width
    pool = Pool(["a", "b"], {"image": torch.eye(2, width), "text": torch.eye(2, width)})
    model = build_model(PointerSelectorV1Config(d_model=width, hidden_dim=8, K=4, shot_num=2))
    LearnedSelector.of(model, pool).save(folder)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    make_models(root, "vlm", "patches", "pixels", "shots_learner")
    selector(root / "shots_v1")  # has its own pool, as a user's selector may
    (root / "shots_v1" / "README.md").write_text("# shots_v1\n")
    return root


@pytest.fixture(scope="module")
def tools(shipped: Path) -> Mapping[str, LiveTool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrained, "SHIPPED", shipped)
        loaded = {tool.name: tool for tool in live_tools("cpu")}
        for tool in loaded.values():  # loads the models while SHIPPED is patched
            ask(tool)
        return loaded


def ask(tool: LiveTool, example: int = 0, budget: float | None = None, **changes: object):
    """The record of an example as the page gets it; `changes` override fields of the request."""
    one = tool.examples[example]
    usual = budget if tool.budget is None or budget is not None else tool.budget.default
    choices = {choice.name: choice.options[0] for choice in tool.choices}
    fields = {"text": one.text, "image": one.image, "depth": one.depth, "budget": usual,
              "choices": choices, **changes}  # fmt: skip
    shown = inline(tool.run(LiveRequest(**fields)))  # pyright: ignore[reportArgumentType]
    json.dumps(shown, allow_nan=False)
    return shown


def kept(stage: dict) -> int:
    return len(stage["chosen"][0]["kept"])


def answers_by_name(shown: dict) -> dict[str, str]:
    return {answer["who"]: answer["text"] for answer in shown["answers"]}


def uploaded(size: tuple[int, int] = (90, 70)) -> LiveImage:
    return LiveImage("upload", Image.effect_noise(size, 80).convert("RGB"))


# ------------------------------------------------------------------ all tools


def test_models_without_a_card_are_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path)
    assert live_tools("cpu") == []
    vlm(tmp_path / "vlm", VLM)
    assert live_tools("cpu") == []  # no card: not (yet) a model
    (tmp_path / "vlm" / "README.md").write_text("# tiny\n")
    assert [tool.name for tool in live_tools("cpu")] == ["tokens"]


def test_models_are_loaded_on_first_use(shipped: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pretrained, "SHIPPED", shipped)
    monkeypatch.setattr(torch.nn.Module, "__init__", None)
    found = live_tools("cpu")
    assert [tool.name for tool in found] == ["tokens", "patches", "pixels", "shots"]
    assert len(json.dumps(describe(found))) < 400_000


def test_examples_of_every_tool_run(tools: Mapping[str, LiveTool]):
    for tool in tools.values():
        assert len({one.id for one in tool.examples}) == len(tool.examples)
        for number in (0, len(tool.examples) - 1):
            shown = ask(tool, number)
            assert shown["kind"] == tool.name
            assert shown["stages"]


def test_smallest_and_largest_budget_of_every_tool(tools: Mapping[str, LiveTool]):
    for tool in tools.values():
        if tool.budget is not None:
            for budget in (tool.budget.min, tool.budget.max):
                ask(tool, budget=budget)


def test_uploaded_images_of_any_shape(tools: Mapping[str, LiveTool]):
    for tool in tools.values():
        for size in ((90, 70), (1024, 128), (128, 1024)):
            shown = ask(tool, image=uploaded(size), depth=None)
            assert all(answer["right"] is None for answer in shown["answers"])


def test_empty_text_is_refused(tools: Mapping[str, LiveTool]):
    for name in ("tokens", "patches", "shots"):
        with pytest.raises(InputError, match="text: is empty"):
            ask(tools[name], text="")


def test_any_text_gives_an_answer_or_an_input_error(tools: Mapping[str, LiveTool]):
    """Any text gives an answer or an `InputError`, no other exception."""
    for tool in tools.values():
        for text in ("<pad> ?", "🙂 {question}", "x" * 1000, "[CLS] \0", "a " * 400):
            with suppress(InputError):
                ask(tool, text=text)
    for name in ("tokens", "shots"):
        with pytest.raises(InputError, match="text: got 2 <image>"):
            ask(tools[name], text="what is <image> <image> ?")


# ------------------------------------------------------------------ tokens


def test_tokens_tool(tools: Mapping[str, LiveTool]):
    tool = tools["tokens"]
    assert tool.budget is not None
    assert (tool.budget.min, tool.budget.max, tool.budget.default) == (1, 36, 18)
    shown = ask(tool, budget=12)
    # In the proportions of 18, 12, 9 at layers 1 and 2 of 4.
    assert [kept(stage) for stage in shown["stages"]] == [12, 8, 6]
    assert [stage["layer"] for stage in shown["stages"]] == [0, 1, 2]
    assert set(answers_by_name(shown)) == {"all tokens", "divprune, then fastv"}
    assert all(isinstance(answer["right"], bool) for answer in shown["answers"])
    whole = ask(tool, budget=36)
    assert kept(whole["stages"][0]) == 36
    other = ask(tool, text="is there any red ball?")
    assert all(answer["right"] is None for answer in other["answers"])
    assert other["note"] == ""
    assert "means little" in ask(tool, text="is there any zebra?")["note"]
    assert "generated scenes only" in ask(tool, image=uploaded())["note"]


def test_any_two_methods_are_shown_side_by_side(tools: Mapping[str, LiveTool]):
    tool = tools["tokens"]
    offered = {choice.name: choice.options for choice in tool.choices}
    methods = set(METHODS) - {"none", "oracle", *VIDEO_METHODS}
    assert set(offered["method"]) == methods | {"plan"}
    assert set(offered["beside"]) == methods | {"plan", "nothing"}
    shown = ask(tool, budget=12, choices={"method": "mmr", "beside": "fastv"})
    assert [(stage["name"], stage["layer"]) for stage in shown["stages"]] == [
        ("mmr", 0), ("fastv", 2)
    ]  # fmt: skip
    assert [kept(stage) for stage in shown["stages"]] == [12, 12]
    assert list(answers_by_name(shown)) == ["all tokens", "mmr", "fastv"]
    assert shown["cost"]["mmr: vision tokens"] == "36 > 12"
    assert shown["cost"]["fastv: vision tokens"] == "36 > 36 > 12"
    beside_plan = ask(tool, budget=12, choices={"method": "tome", "beside": "plan"})
    assert [kept(stage) for stage in beside_plan["stages"]] == [12, 12, 8, 6]
    for name in methods:  # each of them runs here
        ask(tool, budget=6, choices={"method": name, "beside": "nothing"})


def test_answer_of_the_whole_model_is_cached(tools: Mapping[str, LiveTool], monkeypatch):
    from eligo.cli.explorer import tokens_tool as tokens

    calls = []
    real = tokens.predict

    def counted(*args, plan, **options):
        calls.append(len(plan.stages))
        return real(*args, plan=plan, **options)

    monkeypatch.setattr(tokens, "predict", counted)
    first, again = (ask(tools["tokens"], text="what is red?", budget=n) for n in (6, 30))
    assert calls == [0, 3, 3]
    assert answers_by_name(first)["all tokens"] == answers_by_name(again)["all tokens"]
    ask(tools["tokens"], text="what is red?", image=uploaded())
    assert calls == [0, 3, 3, 0, 3]


def test_uploaded_images_are_released(tools: Mapping[str, LiveTool]):
    for tool in tools.values():
        image = uploaded()
        gone = weakref.ref(image.picture)
        ask(tool, image=image, depth=None)
        del image
        gc.collect()
        assert gone() is None, tool.name


def test_requests_leave_no_reference_cycles(tools: Mapping[str, LiveTool]):
    """Reference cycles would pile up: the collector runs rarely with a model in memory."""
    for tool in tools.values():
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            ask(tool)
            gc.collect()
            left = [one for one in gc.garbage if isinstance(one, torch.Tensor | Image.Image)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert left == [], tool.name


def test_number_of_cached_answers_is_limited(tools: Mapping[str, LiveTool], monkeypatch):
    from eligo.cli.explorer import tokens_tool as tokens

    monkeypatch.setattr(tokens, "_CACHED", 3)
    pruner = tools["tokens"].run.__self__  # pyright: ignore[reportFunctionMemberAccess]
    pruner._answers.clear()
    for count in range(1, 6):
        ask(tools["tokens"], text="red " * count)
        assert len(pruner._answers) == min(3, count)


def test_nearest_shipped_plan_is_used(shipped: Path, tmp_path: Path, monkeypatch):
    near = Plan(Stage1(build("uniform"), 20), [Cut(2, build("fastv"), 10)])
    far = Plan(Stage1(build("divprune"), 4))
    for name, plan in (("tokens_a", near), ("tokens_b", far)):
        plan.save(tmp_path / name)
        (tmp_path / name / "README.md").write_text("# plan\n")
    (tmp_path / "vlm").symlink_to(shipped / "vlm")
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path)
    (tool,) = live_tools("cpu")
    assert tool.budget is not None
    assert tool.budget.default == 20
    few, many = (ask(tool, budget=budget)["stages"] for budget in (10, 36))
    assert [stage["name"] for stage in few] == ["divprune"]
    assert [stage["name"] for stage in many] == ["uniform", "fastv"]
    assert [kept(stage) for stage in many] == [36, 18]


def test_plans_scale_to_the_budget():
    by_share = Plan(Stage1(build("uniform"), ratio=0.5), [Cut(0.5, build("fastv"), ratio=0.25)])
    inside = Plan(cuts=[Cut(2, build("fastv"), 100), Cut(5, build("fastv"), 50)])
    for plan, budget, counts in (
        (by_share, 288, (288, 144)), (by_share, 576, (576, 288)), (by_share, 1, (1, 1)),
        (inside, 100, (100, 50)), (inside, 576, (576, 288)), (inside, 3, (3, 2)),
    ):  # fmt: skip
        scaled = plan_at([plan], budget, 576)
        assert scaled.counts((24, 24)) == counts
        assert (scaled.stage1 is None) == (plan.stage1 is None)


# ------------------------------------------------------------------ patches


def test_patches_tool(tools: Mapping[str, LiveTool]):
    tool = tools["patches"]
    assert tool.budget is not None
    assert tool.budget.default == 50
    stayed, words, found = ask(tool, budget=20)["stages"]
    assert kept(stayed) == 10  # a fifth of 7 x 7
    assert len(words["rows"]) == len(words["chosen"]) > 3
    assert len(found["items"]) == len(tool.examples)
    scores = found["chosen"][0]["scores"]
    assert scores == sorted(scores, reverse=True)
    assert kept(ask(tool, budget=100)["stages"][0]) == 49
    assert kept(ask(tool)["stages"][0]) == 25  # the default share is restored


def test_model_with_dense_captions_takes_only_examples(tmp_path: Path, monkeypatch):
    RetrievalModel.tiny(kind="paper", dense=True).save_pretrained(tmp_path / "patches")
    (tmp_path / "patches" / "README.md").write_text("# tiny\n")
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path)
    (tool,) = live_tools("cpu")
    assert [stage["name"].partition(":")[0] for stage in ask(tool, 3)["stages"][:2]] == [
        "patches kept for the text", "patches kept for the dense caption"
    ]  # fmt: skip
    with pytest.raises(InputError, match="choose one of them"):
        ask(tool, image=uploaded())


# ------------------------------------------------------------------ pixels


def test_pixels_tool(tools: Mapping[str, LiveTool]):
    tool = tools["pixels"]
    assert tool.depth
    assert tool.budget is None
    shown = ask(tool, text="wall, floor , ,ball")
    assert list(shown["pictures"]) == [
        "image", "depth", "labels", "labels without tags", "the truth"
    ]  # fmt: skip
    assert sorted(shown["stages"][0]["rows"]) == ["ball", "floor", "wall"]
    assert set(answers_by_name(shown)) == {"with tags", "without tags"}
    assert "of the pixels right" in answers_by_name(shown)["with tags"]
    own = ask(tool, text="", image=uploaded(), depth=None)
    assert list(own["pictures"]) == ["image", "labels"]
    assert own["stages"] == []
    with pytest.raises(InputError, match="at most 32"):
        ask(tool, text=",".join("a" * 33))
    with pytest.raises(InputError, match="zebra"):
        ask(tool, text="zebra")
    with pytest.raises(InputError, match="at least 32"):
        ask(tool, image=uploaded((31, 40)), depth=None)


def test_depth_changes_the_result(tools: Mapping[str, LiveTool]):
    tool = tools["pixels"]
    one = tool.examples[0]
    assert one.depth is not None
    assert one.depth.mode == "I;16"
    metres = [value / 1000 for value in one.depth.getextrema()]
    assert 0.5 < metres[0] < metres[1] < 10
    flat = Image.new("I;16", one.picture.size, 3000)
    maps = [ask(tool, depth=depth)["stages"][0]["chosen"] for depth in (one.depth, flat)]
    assert maps[0] != maps[1]


# ------------------------------------------------------------------ shots


def test_shots_tool(tools: Mapping[str, LiveTool]):
    shown = ask(tools["shots"], budget=3)
    assert [stage["name"] for stage in shown["stages"]] == ["pointer v1", "kNN", "random"]
    assert [kept(stage) for stage in shown["stages"]] == [3, 3, 3]
    assert set(answers_by_name(shown)) == {"zero-shot", "pointer v1", "kNN", "random"}
    assert all(isinstance(answer["right"], bool) for answer in shown["answers"])
    assert len(shown["pictures"]) == 33
    assert shown["stages"][0]["items"][0]["text"].startswith("what ")


def test_question_is_embedded_as_in_the_study(tools: Mapping[str, LiveTool]):
    tool = tools["shots"]
    chooser = tool.run.__self__  # pyright: ignore[reportFunctionMemberAccess]
    one, queries = tool.examples[3], chooser.world.queries
    found = chooser.query(one.image, one.text)
    texts = [payload["question"] for payload in queries.payload]
    rows = [row for row, group in enumerate(queries.groups) if group == "scene 19"]
    (row,) = [row for row in rows if texts[row] == one.text]
    for name in ("image", "text"):
        torch.testing.assert_close(found.views[name], queries.views[name][row])
    known = queries.payload[row]["answer"]
    assert chooser.known[one.image, one.text] == known


def test_learner_answers_as_in_the_study(tools: Mapping[str, LiveTool]):
    """The prompt of text and images and the study's prompt of vectors give the same answer."""
    from eligo.shots.learner.scoring import LearnerScorer

    tool = tools["shots"]
    chooser = tool.run.__self__  # pyright: ignore[reportFunctionMemberAccess]
    world, one = chooser.world, tool.examples[0]
    picks = list(world.pool.ids[5:8])
    answer = chooser.answer(one.picture, one.text, picks).split()
    query = next(
        row
        for row, (group, payload) in enumerate(
            zip(world.queries.groups, world.queries.payload, strict=True)
        )
        if group == "scene 4" and payload["question"] == one.text
    )
    scorer = LearnerScorer(chooser.learner[0], world)
    blocks = scorer._blocks(torch.tensor([query]), world.pool.rows(picks)[None])
    length = int(world.blocks.lengths[blocks].sum())
    with torch.no_grad():
        best = int(scorer._logits(blocks, length).argmax())
    assert answer[:1] == chooser.learner[1].tokenizer.decode([best]).split()
