"""`eligo tokens plan`, `predict` and `export` from the command line."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from eligo.cli import main
from eligo.config import dump_yaml
from eligo.errors import InputError
from eligo.explorer.folder import find_records, load_record
from eligo.report.pictures import rgb_picture
from eligo.scenes.config import SceneConfig
from eligo.scenes.vlm import VlmConfig, build_processor, build_vlm, save_vlm
from eligo.tokens.config import HostConfig
from eligo.tokens.data.examples import SceneExamples
from eligo.tokens.inference.load import floats_of, load_host
from eligo.tokens.inference.predict import predict
from eligo.tokens.inference.resolve import load_plan
from eligo.tokens.methods import build
from eligo.tokens.model.vision_selector import VisionSelector
from eligo.tokens.plan import Cut, Plan, Stage1


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A narrow LLaVA with random weights, and a question on an image."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("host")
    sizes = VlmConfig(
        image_size=84, vision_layers=2, vision_width=16, layers=4, width=16, hidden=32, heads=2
    )
    save_vlm(build_vlm(sizes), build_processor(sizes), folder)
    example = SceneExamples(SceneConfig(height=84, width=84), "test", 6, grid=(6, 6))[0]
    rgb_picture(example.image).save(folder / "scene.png")
    return folder, example.question


# ------------------------------------------------------------------ plan


def test_plan_proposes_schedules(capsys):
    assert main(["tokens", "plan", "--layers", "32", "--text", "100", "--target", "0.6"]) == 0
    printed = capsys.readouterr()
    assert "576>288>200>150>100  2,8,16" in printed.out
    assert "reduction LLM 64.4%" in printed.out
    assert "KV 338 > 122 MiB" in printed.out
    for name in ("merge 50%", "merge 75%", "cuts only", "merge only"):
        assert name in printed.out
    assert printed.err == ""


def test_plan_as_json(capsys):
    assert main(["tokens", "plan", "--target", "0.7", "--text", "30", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["warnings"] == []
    for proposal in found["proposals"]:
        assert proposal["flops_reduction_llm"] >= 0.7
        if proposal["name"] != "default":
            assert proposal["flops_reduction_llm"] < 0.71
            assert all(saved >= 0.01 for saved in proposal["cut_savings"])


def test_late_cuts_are_warned_about(capsys):
    late = ["--merge", "288", "--cuts", "10", "20", "31", "--budgets", "200", "150", "100"]
    assert main(["tokens", "plan", *late]) == 0
    printed = capsys.readouterr()
    assert "reduction LLM 54.9%" in printed.out
    assert "warning: saves 54.9%" in printed.err
    assert "layer 31 saves only 0.2%" in printed.err


def test_unreachable_target_is_warned_about(capsys):
    assert main(["tokens", "plan", "--target", "0.9", "--text", "500"]) == 0
    printed = capsys.readouterr()
    assert "not the target of 90.0%: 500 text tokens are always kept" in printed.err


def test_plan_for_a_model_and_its_questions(host, tmp_path, capsys):
    folder, question = host
    row = {"image": str(folder / "scene.png"), "question": question, "answers": ["yes"]}
    (tmp_path / "own.jsonl").write_text(json.dumps(row))
    command = ["tokens", "plan", "--model", str(folder), "--json"]
    assert main([*command, "--questions", str(tmp_path / "own.jsonl")]) == 0
    found = json.loads(capsys.readouterr().out)["proposals"][0]
    assert found["schedule"]["vision"] == 36
    assert found["schedule"]["num_layers"] == 4
    assert found["schedule"]["text"] == len(question.replace("?", " ?").split()) + 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target", "60"], "--target: got 60.0, expected a finite number above 0, at most 1"),
        (["--cuts", "2", "8", "--budgets", "100"], "got 2 --cuts and 1 --budgets"),
        (["--merge", "600"], "at most the one before"),
        (["--cuts", "0", "--budgets", "100"], "--cuts: got 0, expected at least 1"),
        (["--model", "nowhere"], "nowhere: there is no such folder"),
        (["--questions", "x.jsonl"], "expected with --model"),
        (["--dtype", "int4"], "'int4'"),
        (["--layers", "1"], "2 or more"),
    ],
)
def test_invalid_plan_flags_are_refused(flags, message, capsys):
    assert main(["tokens", "plan", *flags]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed


# ------------------------------------------------------------------ which plan


def test_plans_of_methods():
    before = load_plan(None, "uniform", (9,), ())
    assert before.stage1 is not None
    assert not before.cuts
    inside = load_plan(None, "fastv", (9,), ())
    assert inside.stage1 is None
    assert inside.layers == (2,)
    several = load_plan(None, "uniform", (9, 4), (1, 3))
    assert several.layers == (1, 3)
    assert load_plan(None, "none", (), ()) == Plan()
    phased = load_plan(None, "uniform:phase=last", (9,), ())
    assert phased == Plan(Stage1(build("uniform", phase="last"), 9))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((None, None, (), ()), "expected either a plan"),
        (("here", "fastv", (), ()), "expected either a plan"),
        ((None, "fastvv", (9,), ()), "did you mean fastv"),
        ((None, "fastv", (), ()), "needs a budget"),
        ((None, "uniform:last", (9,), ()), "NAME:OPTION=VALUE"),
        ((None, "uniform", (9, 4), ()), "expected one before the language model"),
        ((None, "fastv", (9, 4), (1,)), "expected pairs"),
        (("nowhere", None, (), ()), "nowhere: there is no such folder"),
        (("nowhere", None, (4,), (2,)), "a plan has its own"),
    ],
)
def test_invalid_plans_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        load_plan(*given)


# ------------------------------------------------------------------ predict


def ask(host, out, *flags):
    folder, question = host
    return main(
        ["tokens", "predict", "--image", str(folder / "scene.png"), "--question", question,
         "--model", str(folder), "--out", str(out), "--device", "cpu", *flags]
    )  # fmt: skip


def test_predict(host, tmp_path, capsys):
    assert ask(host, tmp_path, "--method", "fastv", "--budget", "9", "--layer", "1") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("answer: ")
    assert "vision 36>36>9 @ 0,1" in printed
    assert "TTFT" not in printed
    picture = Image.open(tmp_path / "tokens.png")
    assert picture.width > 2 * 336
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "explore", "result.json", "tokens.png"
    ]  # fmt: skip
    (shown,) = map(load_record, find_records(tmp_path))
    assert shown.query == host[1]
    assert [stage.selection.num_kept.item() for stage in shown.stages] == [9]


def test_a_budget_may_be_a_share(host, tmp_path, capsys):
    assert ask(host, tmp_path, "--method", "uniform", "--budget", "0.25") == 0
    assert "vision 36>9 @ 0" in capsys.readouterr().out
    assert ask(host, tmp_path, "--method", "uniform", "--budget", "1.5") == 2
    assert "expected a number above 0, at most 1" in capsys.readouterr().err


def test_unknown_words_are_reported(host, tmp_path, capsys):
    method = ("--method", "uniform", "--budget", "9")
    assert ask(host, tmp_path, *method) == 0
    assert "does not know" not in capsys.readouterr().err
    assert ask((host[0], "what breed is the dog?"), tmp_path, *method, "--json") == 0
    printed = capsys.readouterr()
    assert "the model does not know these words: breed, dog" in printed.err
    assert json.loads(printed.out)["answer"] is not None


def test_predict_as_json_with_times(host, tmp_path, capsys):
    assert ask(host, tmp_path, "--method", "uniform", "--budget", "12", "--time", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cost"]["schedule"] | {"text": 0} == {
        "vision": 36, "merged": 12, "cuts": [], "text": 0, "num_layers": 4,
    }  # fmt: skip
    measured = found["cost"]["measured"]
    assert 0 < measured["ttft_p50_ms"] <= measured["ttft_p90_ms"]
    assert measured["device"] == "cpu"
    assert "peak_mib" not in measured


def test_predict_with_a_saved_plan(host, tmp_path, capsys):
    plan = Plan(Stage1(build("uniform"), 18), [Cut(2, build("uniform"), 6)])
    plan.save(tmp_path / "plan")
    assert ask(host, tmp_path / "out", "--plan", str(tmp_path / "plan")) == 0
    assert "vision 36>18>6 @ 0,2" in capsys.readouterr().out


def test_predict_with_a_trained_vision_selector(host, tmp_path, capsys):
    config = {
        "task": "tokens.train", "host": {"model": str(host[0])}, "pruners": None,
        "merger": {"kind": "vision_selector", "ratio": 0.25, "dim": 8},
        "discriminator": {"layers": [-1]},  # of four
        "data": {"scenes": {"height": 84, "width": 84}, "validation": 4},
        "train": {"out": str(tmp_path), "name": "run", "total_steps": 2, "batch_size": 4,
                  "evaluate_every": 2, "checkpoint_every": 2},
    }  # fmt: skip
    (tmp_path / "train.yaml").write_text(dump_yaml(config))
    assert main(["tokens", "train", str(tmp_path / "train.yaml")]) == 0
    for folder in ("run", "run/last"):
        reducer = Plan.load(tmp_path / folder).stage1.reducer
        assert isinstance(reducer, VisionSelector)
        assert reducer.q_proj.bias.abs().max() > 0  # where it starts
        capsys.readouterr()
        assert ask(host, tmp_path / "out", "--plan", str(tmp_path / folder)) == 0
        assert "vision 36>9 @ 0" in capsys.readouterr().out


def test_prediction_has_trace_and_cost(host):
    folder, question = host
    model, processor = load_host(HostConfig(model=str(folder)))
    image = Image.open(folder / "scene.png")
    plan = Plan(Stage1(build("uniform"), 16), [Cut(1, build("uniform"), 8)])
    prediction = predict(
        image, question, model=model, processor=processor, plan=plan, max_new_tokens=3
    )
    assert [stage.layer for stage in prediction.trace.stages] == [0, 1]
    assert prediction.cost.schedule.vision_by_layer == (16, 8, 8, 8)
    whole = predict(
        image, question, model=model, processor=processor, plan=Plan(), max_new_tokens=3
    )
    assert whole.cost.reduction_llm == 0
    assert whole.cost.measured.selector_ms is None


def test_images_and_models_can_be_names_or_objects(host):
    folder, question = host
    path = folder / "scene.png"
    pixels = np.array(Image.open(path).convert("RGB"))
    model, processor = load_host(HostConfig(model=str(folder)))
    images = [path, str(path), Image.open(path), pixels, torch.from_numpy(pixels).permute(2, 0, 1)]
    given = [{"model": str(folder), "device": "cpu"}, {"model": model, "processor": processor}]
    found = [
        predict(image, question, method="divprune", budget=0.25, **one)
        for image, one in zip(images, [*given, *given, given[1]], strict=True)
    ]
    assert len({one.answer for one in found}) == 1
    assert all(one.selection.num_kept.tolist() == [9] for one in found)
    # A model that was loaded from a folder has its processor there.
    assert predict(path, question, model=model, method="fastv", budget=9).answer


def test_predict_without_a_plan(host):
    folder, question = host
    model, processor = load_host(HostConfig(model=str(folder)))
    with pytest.raises(InputError, match="has no plan of its own"):
        predict(folder / "scene.png", question, model=model, processor=processor)
    with pytest.raises(InputError, match="expected either a plan"):
        predict(folder / "scene.png", question, model=model, budget=9)
    bare = build_vlm(VlmConfig(image_size=84, layers=4))
    with pytest.raises(InputError, match="processor: needed"):
        predict(folder / "scene.png", question, model=bare, method="fastv", budget=9)
    shipped, processor = load_host(HostConfig())
    found = predict(
        folder / "scene.png", question, model=shipped, processor=processor, max_new_tokens=1
    )
    assert found.summary()["kept"] == [288, 200, 150, 100]


class Int8Embedding(torch.nn.Embedding):
    """A quantised part whose weights come first and are no floats."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).float() / 64


def quantised(folder):
    """What a quantising loader returns: integers in places, and no `to`."""
    model = AutoModelForImageTextToText.from_pretrained(folder).float()
    tower = model.model.vision_tower
    old = getattr(tower, "vision_model", tower).embeddings.position_embedding
    new = Int8Embedding(*old.weight.shape)
    new.weight = torch.nn.Parameter((64 * old.weight.detach()).char(), requires_grad=False)
    getattr(tower, "vision_model", tower).embeddings.position_embedding = new
    model.is_quantized = True

    def refuse(*_args, **_kwargs):
        raise ValueError("quantised models cannot be cast")

    model.to = refuse
    return model


def test_quantised_hosts_are_not_cast(host, tmp_path, capsys, monkeypatch):
    folder, _ = host
    model_8bit = quantised(folder)
    assert any(not p.is_floating_point() for p in model_8bit.parameters())
    monkeypatch.setattr("eligo.pretrained.hosts.load_stock", lambda *_, **__: model_8bit)
    assert ask(host, tmp_path / "out", "--method", "uniform", "--budget", "9") == 0
    printed = capsys.readouterr()
    assert "vision 36>9 @ 0" in printed.out
    assert "is quantised" in printed.err
    inputs = {"pixel_values": torch.zeros(1), "input_ids": torch.zeros(1, dtype=torch.long)}
    first = torch.nn.Sequential(
        model_8bit.model.vision_tower.embeddings.position_embedding, model_8bit
    )
    assert [value.dtype for value in floats_of(first, inputs).values()] == [
        torch.float32, torch.int64,
    ]  # fmt: skip


def test_predict_with_an_adapter(host, tmp_path):
    """PEFT wraps a host; its costs are those of the host."""
    peft = pytest.importorskip("peft")
    folder, question = host
    model, processor = load_host(HostConfig(model=str(folder)))
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"])).eval()
    image = Image.open(folder / "scene.png")
    plan = Plan(Stage1(build("uniform"), 9), [Cut(2, build("fastv"), 4)])
    adapted, plain = (
        predict(image, question, model=one, processor=processor, plan=plan)
        for one in (wrapped, model)
    )
    assert adapted.cost.schedule.cuts == ((2, 4),)
    assert adapted.answer == plain.answer


def test_invalid_questions_and_images_are_refused(host, tmp_path, capsys):
    method = ("--method", "uniform", "--budget", "9")
    folder, question = host
    here = ["tokens", "predict", "--out", str(tmp_path / "out"), "--model", str(folder), *method]
    cases = [
        (["--image", str(folder / "scene.png"), "--question", " "], "--question: is empty"),
        (["--image", "none.png", "--question", question], "none.png: there is no such image"),
        (["--image", str(folder / "config.json"), "--question", question], "cannot be read as an"),
    ]
    for flags, message in cases:
        assert main([*here, *flags]) == 2
        assert message in capsys.readouterr().err
    assert ask(host, tmp_path / "out", "--method", "uniform", "--budget", "99") == 2
    assert "99" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------ export


def test_export(host, tmp_path, capsys):
    folder, _ = host
    command = ["tokens", "export", "--model", str(folder), "--out", str(tmp_path)]
    assert main([*command, "--method", "pool", "--budget", "9", "--plain", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tokens"], found["kept"], found["reducer"]) == (36, 9, "pool")
    loaded = torch.export.load(found["module"]).module()
    assert loaded(torch.randn(1, 36, 16))[0].shape == (1, 9, 16)


def test_export_refuses_plans_it_cannot_write(host, tmp_path, capsys):
    folder, _ = host
    command = ["tokens", "export", "--model", str(folder), "--out", str(tmp_path)]
    assert main([*command, "--method", "pool", "--budget", "9"]) == 2
    assert "size_bias" in capsys.readouterr().err
    assert main([*command, "--method", "fastv", "--budget", "9"]) == 2
    assert "without stage 1" in capsys.readouterr().err
    plan = Plan(Stage1(build("uniform"), 18), [Cut(2, build("uniform"), 6)])
    plan.save(tmp_path / "plan")
    assert main([*command, "--plan", str(tmp_path / "plan"), "--plain"]) == 2
    assert "--plain: needs --method" in capsys.readouterr().err
    assert main([*command, "--plan", str(tmp_path / "plan")]) == 0
    assert "left out: cut at layer 2" in capsys.readouterr().err
