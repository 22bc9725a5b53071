"""Evaluation of the tiny LLaVA: test questions, blind baseline, shipped model."""

import json
import socket
from collections import Counter
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.scenes import evaluate_vlm as vlm_evaluate
from benchmarks.scenes.evaluate_vlm import (
    AnsweredQuestion,
    VlmEvaluationConfig,
    _table,
    draw_test_questions,
    evaluate_vlm,
    summarise,
)
from eligo.cli import run_script
from eligo.pretrained.load import SHIPPED as MODELS
from eligo.scenes import SceneConfig, draw_questions, draw_scenes, load_vlm, words
from eligo.scenes.blind import fit_blind
from eligo.scenes.question_kinds import FAMILIES, KINDS
from eligo.scenes.vlm import PROMPT, VlmConfig, build_processor, build_vlm, save_vlm

SHIPPED = MODELS / "vlm"
SMALL = SceneConfig(height=56, width=56)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A small model with random weights."""
    config = VlmConfig(
        image_size=56, vision_width=32, vision_layers=2, layers=2, width=32, hidden=64, heads=2
    )
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("vlm")
    save_vlm(build_vlm(config), build_processor(config), folder)
    return folder


@pytest.fixture
def splits(monkeypatch) -> list[str]:
    """Records the splits from which the evaluation draws scenes."""
    drawn = []

    def draw(config, split, *args, **options):
        drawn.append(split)
        return draw_scenes(config, split, *args, **options)

    monkeypatch.setattr(vlm_evaluate, "draw_scenes", draw)
    monkeypatch.setattr("eligo.scenes.blind.draw_scenes", draw)
    return drawn


# Questions


@pytest.mark.parametrize("split", [None, "validation"])
def test_questions_are_of_the_configured_split(split, splits):
    config = VlmEvaluationConfig(questions=6, scenes=SMALL, **({"split": split} if split else {}))
    assert len(list(draw_test_questions(config))) == 6
    assert set(splits) == {split or "test"}


def test_blind_baseline_learns_only_from_training_scenes(splits):
    fit_blind(SMALL, 600)
    assert set(splits) == {"train"}


def test_evaluation_uses_its_split_and_the_blind_baseline_uses_train(folder, splits):
    config = VlmEvaluationConfig(
        model=folder, questions=6, scenes=SMALL, blind_scenes=64, device="cpu", batch_size=6
    )
    results = evaluate_vlm(config)
    assert len(results) == 6
    assert Counter(splits) == {"train": 1, "test": len(FAMILIES)}
    blind = fit_blind(config.scenes, config.blind_scenes)
    assert [item.blind for item in results] == [blind(i.question, i.kind) for i in results]


def test_held_out_questions_have_a_pair_absent_from_training():
    """Compared with the colours and shapes of the deciding objects in the graph."""
    config = VlmEvaluationConfig(questions=180, scenes=SMALL)
    drawn = iter(question for question, _ in draw_test_questions(config))
    colour, shape = words.ATTRIBUTES.index("colour"), words.ATTRIBUTES.index("shape")
    flags = []
    for number, family in enumerate(FAMILIES):
        graph = draw_scenes(SMALL, "test", range(number * 1_000_000, number * 1_000_000 + 64))
        questions = draw_questions(graph, 1, (family,))
        for scene in questions.valid[:, 0].nonzero()[:30, 0].tolist():
            deciding = graph.attributes[scene, questions.deciding[scene, 0]].tolist()
            pairs = {(values[colour], values[shape]) for values in deciding}
            question = next(drawn)
            assert question.question == questions.text(scene, 0)
            assert question.held_out == bool(pairs & set(words.HELD_OUT)), (question, pairs)
            flags.append(question.held_out)
    assert next(drawn, None) is None
    assert 10 < sum(flags) < len(flags) - 10


def test_every_family_is_tested_and_no_scene_twice():
    config = VlmEvaluationConfig(
        questions=60, scenes=SceneConfig(height=56, width=56), blind_scenes=200
    )
    drawn = list(draw_test_questions(config))
    family = {kind.name: kind.family for kind in KINDS}
    assert Counter(family[question.kind] for question, _ in drawn) == dict.fromkeys(FAMILIES, 10)
    assert len({image.numpy().tobytes() for _, image in drawn}) == len(drawn)
    blind = fit_blind(config.scenes, config.blind_scenes)
    assert blind("how many red unheard of things?", "count") in ("0", "1", "2", "3", "4")


def test_accuracy_by_kind_family_and_overall():
    def make(kind: str, said: str, held_out: bool) -> AnsweredQuestion:
        return AnsweredQuestion(kind, "a question", "right", held_out, said=said, blind="wrong")

    rows = summarise(
        [make("size", "right", True), make("size", "wrong", False), make("row", "right", False)]
    )
    found = {(row.family, row.kind): row for row in rows}
    lookup, size = found["lookup", "all"], found["lookup", "size"]
    assert (size.accuracy.right, size.accuracy.asked) == (1, 2)
    assert (size.held_out.right, size.held_out.asked) == (1, 1)
    assert lookup.accuracy == size.accuracy
    assert not lookup.met
    assert found["location", "all"].met
    everything = found["all", "all"]
    assert (everything.accuracy.right, everything.blind.right, everything.accuracy.asked) == (
        2, 0, 3,
    )  # fmt: skip
    assert everything.chance == pytest.approx((1 / 3 + 1 / 3 + 1 / 4) / 3)


def test_table_fits_80_columns():
    rows = summarise(
        [
            AnsweredQuestion(kind.name, "", "yes", True, "yes", "yes")
            for kind in KINDS
            for _ in range(1000)
        ]
    )
    console = Console(width=80)
    with console.capture() as captured:
        console.print(_table(rows, "test", 0.95))
    assert "99.9-100.0" in captured.get()
    assert "…" not in captured.get()  # no cell is truncated


# The command


def test_evaluation_from_the_command_line(folder, tmp_path, capsys):
    out = tmp_path / "vlm.json"
    small = ["--scenes.height", "56", "--scenes.width", "56", "--blind_scenes", "64"]
    command = ["--model", str(folder), "--questions", "12", *small]
    assert (
        run_script(
            vlm_evaluate.run, [*command, "--batch_size", "5", "--device", "cpu", "--out", str(out)]
        )
        == 0
    )
    shown = capsys.readouterr().out
    for family in (*FAMILIES, "all"):
        assert family in shown
    saved = json.loads(out.read_text())
    assert {"date", "hardware", "command", "versions", "target", "rows", "wrong"} <= set(saved)
    assert run_script(vlm_evaluate.run, [*command, "--out", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


# The shipped model


@pytest.fixture(scope="module")
def shipped():
    """The shipped model, loaded without a network."""

    def refuse(*_args, **_options):
        raise AssertionError("the network was used")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        return load_vlm()


def test_shipped_model_is_small_and_has_a_card():
    files = [path for path in SHIPPED.iterdir() if path.is_file()]
    assert max(path.stat().st_size for path in files) <= 10_000_000
    assert sum(path.stat().st_size for path in files) <= 20_000_000
    assert "Apache-2.0" in (SHIPPED / "README.md").read_text(encoding="utf-8")


def test_shipped_model_answers_within_12_gflops(shipped):
    """Fewer than 12 GFLOPs per answer."""
    model, processor = shipped
    assert model.num_parameters() < 10_000_000
    assert model.config.image_seq_length == 576
    question, image = next(
        draw_test_questions(VlmEvaluationConfig(questions=6, split="validation"))
    )
    text = PROMPT.format(question=question.question)
    inputs = processor(images=image, text=text, return_tensors="pt")
    with FlopCounterMode(display=False) as counter:
        output = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    assert counter.get_total_flops() < 12e9
    answer = processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answer.strip() == question.answer


def test_shipped_model_accuracy_is_at_least_90_percent():
    config = VlmEvaluationConfig(
        questions=60, batch_size=6, split="validation", device="cpu", blind_scenes=64
    )
    everything = summarise(evaluate_vlm(config))[-1]
    assert everything.accuracy.asked == 60
    assert everything.accuracy.value >= 0.9
