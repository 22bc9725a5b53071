"""The study of clips runs, and its host sees clips as the stock model does."""

import json
import re
from pathlib import Path

import pytest
import torch

from benchmarks.tokens import video
from benchmarks.tokens.video_host import (
    _WORDS,
    ASSISTANT,
    HostTraining,
    ask,
    build_host,
    draw_training_clips,
    for_equal_rows,
    patches_of,
    prompt_inputs,
    token_ids,
)
from eligo.cli import run_script
from eligo.scenes.clips import DIRECTIONS, KINDS, Kind, draw_clip_graphs

CONFIG = video.Settings.quick().host
CPU = torch.device("cpu")


def test_the_study_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "video.json"
    assert not run_script(video.run, ["--quick", "--seeds", "0", "--out", str(out)])
    document = json.loads(out.read_text())
    assert [one["failed"] for one in document["trainings"]] == [{}]
    names = {row["method"] for row in document["summary"]}
    assert {video.WHOLE, *video.CONTROLS} < names
    for method in ("random", "divprune", "evs", "vidcom2", "mmr", "tome", "visionzip", "learned"):
        assert {f"{method}@{ratio}" for ratio in video.RATIOS} < names
    capsys.readouterr()
    assert not run_script(video.run, ["--show", str(out)])
    assert "1/8 of the tokens" in capsys.readouterr().out


def test_a_batch_equals_the_stock_model() -> None:
    torch.manual_seed(0)
    model = build_host(CONFIG).eval()
    clips = draw_training_clips(CONFIG, "train", torch.arange(3), CPU)
    text = torch.tensor([[*token_ids("which way does the red ball move?"), ASSISTANT]] * 3)
    inputs = prompt_inputs(CONFIG, text, patches_of(clips.rgb, CONFIG.patch))
    with torch.no_grad():
        expected = model(**inputs).logits
        for_equal_rows(model)
        assert torch.allclose(model(**inputs).logits, expected, atol=1e-5)
    assert not torch.allclose(expected[0], expected[1], atol=1e-3)


def test_packed_answers_equal_those_of_single_prompts() -> None:
    training = HostTraining(CONFIG, 0, CPU)
    clips = draw_training_clips(CONFIG, "train", torch.arange(4), CPU)
    asked = [ask(clips.clips, kind, training.each) for kind in KINDS]
    with torch.no_grad():
        packed = training.answer(training.encode(clips), asked)
        for one, (logits, _) in zip(asked, packed, strict=True):
            pixels = patches_of(clips.rgb, CONFIG.patch)
            alone = training.model(**prompt_inputs(CONFIG, one.tokens[:, 0], pixels)).logits
            assert torch.allclose(logits[:, 0], alone[:, -one.num_answer - 1 : -1], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_training_questions_have_the_answers_of_the_clips(kind: Kind) -> None:
    clips = draw_clip_graphs(CONFIG.scenes, "train", range(200), num_frames=CONFIG.num_frames)
    asked = ask(clips, kind, 8)
    text = {number: word for word, number in _WORDS.items()}
    met = 0
    for row in range(len(clips)):
        expected = {one.question: one.answer for one in clips.questions(row)}
        for valid, tokens in zip(asked.valid[row], asked.tokens[row].tolist(), strict=True):
            listed = " ".join(text[token] for token in tokens)
            question, answer = listed.removesuffix(" <end>").split(" assistant: ")
            question = re.sub(r" ([,?])", r"\1", question)
            if valid and question in expected:
                assert answer == expected[question]
                met += 1
    assert met > 50


def test_every_word_of_test_questions_is_known() -> None:
    clips = draw_clip_graphs(CONFIG.scenes, "test", range(300), num_frames=4)
    found = {
        word for row in video._rows(clips) for word in token_ids(f"{row.question} {row.answer}")
    }
    assert found <= set(_WORDS.values())
    assert _WORDS[DIRECTIONS[3]] - _WORDS[DIRECTIONS[0]] == 3  # `ask` adds to the first


def test_tokens_know_what_they_show() -> None:
    drawn = draw_training_clips(CONFIG, "train", torch.arange(20), CPU)
    exists, owned = drawn.clips.graph.exists, drawn.targets.owned
    times, rows, columns = CONFIG.grid
    last = drawn.targets.centre.unflatten(1, (times, rows * columns))[:, -1]
    assert (last.sum(-1) <= exists.sum(-1)).all()
    assert (last.sum(-1) >= 1).all()
    assert owned.any(-1).all()
    assert not owned.all()
