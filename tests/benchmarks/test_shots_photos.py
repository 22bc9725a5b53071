"""`python -m benchmarks.shots.photos` with tiny random parts, and its data and targets."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.append(str(Path(__file__).parents[1] / "shots"))

from benchmarks.shots.photos import run
from benchmarks.shots.photos_data import read_questions
from benchmarks.shots.photos_summary import summarise
from eligo.cli import run_script
from eligo.errors import InputError

WORDS = ("bed", "lamp", "chair", "sofa")


def make_data(folder: Path, frames: int = 80) -> None:
    """Questions on frames, labels of NYU40, and questions on captioned photos."""
    lines, photos, images = [], [], []
    for number in range(frames):
        split = "train" if number < frames - 12 else "test"
        for place in range(2):
            word = WORDS[(number + place) % 4]
            row = {"id": f"d{number}_{place}", "image": f"{number:04d}", "split": split}
            lines.append({**row, "question": f"where is the {word}?", "answer": f"at {number % 3}"})
            photos.append({**lines[-1], "id": f"q{number}_{place}", "image": f"{number}.webp"})
        captions = [{"raw": f"a {WORDS[number % 4]} in photo {number}"}]
        images.append({"filename": f"{number}.jpg", "split": split, "sentences": captions})
        label = np.zeros((10, 10), np.uint8)
        label[:6], label[6:9], label[9] = 1, 4, 35  # wall, bed, lamp
        (folder / "label").mkdir(parents=True, exist_ok=True)
        Image.fromarray(label).save(folder / "label" / f"{number:04d}.png")
    for name, rows in (("daquar", lines), ("questions", photos)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "captions.json").write_text(json.dumps({"images": images}))


def save_parts(folder: Path) -> None:
    from shot_hosts import template, tokenizer
    from test_shots_vectors import save_bert
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = LlamaConfig(
        **sizes, vocab_size=64, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=1024, pad_token_id=0, eos_token_id=1, bos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "host")
    words = tokenizer("text")
    words.chat_template = template("text")
    words.save_pretrained(folder / "host")
    save_bert(str(folder / "encoder"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    make_data(folder)
    save_parts(folder)
    return folder


def words(folder: Path, *more: str) -> list[str]:
    given = {"daquar": "daquar.jsonl", "labels": "label", "questions": "questions.jsonl"}
    given |= {"captions": "captions.json"} | {name: name for name in ("host", "encoder", "out")}
    flags = [word for name, file in given.items() for word in (f"--{name}", str(folder / file))]
    return [*flags, "--device", "cpu", "--quick", *more]


def test_study_runs_in_pieces_and_computes_only_what_is_missing(folder: Path, capsys, monkeypatch):
    for part in ("embed", "teach", "train"):
        assert run_script(run, words(folder, "--part", part, "--only", "daquar", "captions")) == 0
        assert f"done: {part} of daquar, captions" in capsys.readouterr().out
    out = folder / "out" / "quick"
    assert run_script(run, words(folder)) == 0
    printed = capsys.readouterr().out
    assert "its numbers are meaningless" in printed
    assert printed.count("reached:") >= 10
    result = json.loads((out / "photos.json").read_text())
    assert list(result["sets"]) == ["daquar", "things", "captions"]
    rows = result["sets"]["things"]["rows"]
    assert [row["examples"] for row in rows[:9]] == [
        "none", "random", "nearest", "mmr", "dpp", "bm25", "v1", "v3_few", "v3",
    ]  # fmt: skip
    assert {row["shots"] for row in rows} == {0, 1, 4}
    # Neither host nor encoder is loaded again.
    for name in ("load_reader", "open_encoder", "train_selector"):
        monkeypatch.setattr(f"benchmarks.shots.photos.{name}", None)
    assert run_script(run, words(folder, "--json")) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["sets"] == result["sets"]


def test_examples_taught_and_tested_queries_share_no_block(folder: Path):
    found = read_questions("daquar", folder / "daquar.jsonl", (1000, 1000, 10))
    blocks = [{int(item.group) // 20 for item in part} for part in found]
    assert blocks[0] == {0, 2}
    assert blocks[1] == {1, 3}
    assert {int(item.group) for item in found.tested} <= set(range(68, 80))
    assert len(found.tested) == 10


def test_prompts_name_things_and_captions(folder: Path):
    things = ["wall", "floor", "cabinet", "bed", *["x"] * 30, "lamp"]
    options = {"labels": folder / "label", "things": things, "unnamed": ["wall"]}
    found = read_questions("things", folder / "daquar.jsonl", (5, 5, 5), **options)
    assert found.examples[0].question.startswith("The room has: bed, lamp. where is the")
    questions = folder / "questions.jsonl"
    found = read_questions("captions", questions, (5, 5, 5), captions=folder / "captions.json")
    number = Path(found.tested[0].group).stem
    assert f"in photo {number} where is the" in found.tested[0].question
    for name, flag in (("things", "--labels"), ("captions", "--captions")):
        with pytest.raises(InputError, match=f"{name}: needs {flag}"):
            read_questions(name, folder / "daquar.jsonl", (5, 5, 5))


def test_missing_questions_are_one_line(folder: Path, capsys):
    flags = ["--host", str(folder / "host"), "--quick", "--out", str(folder / "none")]
    assert run_script(run, [*flags, "--only", "captions"]) == 2
    assert "captions: give its questions (--questions)" in capsys.readouterr().err


def test_targets_follow_the_intervals():
    def measured(gain: float, ndcg: float) -> dict:
        values = {"none 0": [-5.0] * 12}
        for count in (1, 4):
            values |= {
                f"{n} {count}": [-2.0] * 12 for n in ("random", "nearest", "mmr", "dpp", "bm25")
            }
            values |= {f"{n}_{s} {count}": [-2.0 + gain] * 12 for n in ("v1", "v3") for s in (0, 1)}
        nearby = {"nearest": [1.0] * 12, "best": [2.0] * 12}
        for seed in (0, 1):
            nearby |= {f"v1_{seed}": [1.0] * 12, f"v3_{seed}": [1.0 + gain] * 12}
            nearby |= {f"ndcg v1_{seed}": [0.5] * 12, f"ndcg v3_{seed}": [0.5 + ndcg] * 12}
        return {
            "frames": [str(n // 3) for n in range(12)], "balance": 0.5, "logprob": values,
            "accuracy": {key: [0.5] * 12 for key in values}, "nearby": nearby,
        }  # fmt: skip

    good = {name: measured(0.2, 0.1) for name in ("daquar", "things", "captions")}
    summary = summarise(good, ["v1", "v3"], [0, 1], [1, 4])
    assert all(target["met"] for target in summary["targets"])
    assert summary["sets"]["daquar"]["nearby"]["v3"]["way"] == pytest.approx(0.2)
    bad = {**good, "things": measured(0.0, 0.0), "captions": measured(-0.1, -0.1)}
    met = {t["text"]: t["met"] for t in summarise(bad, ["v1", "v3"], [0, 1], [1, 4])["targets"]}
    assert not any(value for text, value in met.items() if text.startswith(("1 shots", "4 shots")))
    assert not met["things: 0.0% of the way from the nearest to the best (15 %)"]
    assert met["daquar: 20.0% of the way from the nearest to the best (15 %)"]
