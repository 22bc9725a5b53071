"""Every command of docs/photos.md runs as printed, with tiny random parts and generated photos."""

import json
import re
import shlex
import shutil
from pathlib import Path

from photo_parts import make_language, make_photos, make_tower

from eligo.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "photos.md"
SMALL = [
    "--train.total_steps", "2", "--train.batch_size", "4", "--train.log_every", "1",
    "--train.evaluate_every", "2", "--train.checkpoint_every", "2", "--train.precision", "no",
    "--host.dtype", "float32",
]  # fmt: skip
SHORTER = {
    "finetune": [*SMALL, "--epochs", "None", "--lora.rank", "2"],
    "train": [*SMALL, "--data.validation", "4"],
}


def test_the_page_runs_from_parts_to_a_pruned_answer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_tower("dinov2", Path("facebook/dinov2-small"), layers=12)
    make_language(Path("HuggingFaceTB/SmolLM2-135M-Instruct"), layers=18)
    make_photos(Path("files"), count=48)
    shutil.move("files/images", "images")
    shutil.move("files/captions.json", "captions.json")
    shutil.copy("images/0.png", "photo.jpg")
    text = re.search(r"^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)[1]
    lines = text.replace("\\\n", " ").splitlines()
    commands = [words for line in lines if (words := shlex.split(line, comments=True))]
    assert [words[2] for words in commands] == [
        "build", "questions", "finetune", "evaluate", "train", "evaluate", "predict", "predict",
    ]  # fmt: skip
    printed = []
    for words in commands:
        assert main([*words[1:], *SHORTER.get(words[2], [])]) == 0, capsys.readouterr().err
        printed.append(capsys.readouterr().out)
    assert "question only" in " ".join(printed[3].split())
    assert Path("runs/photos/parts/parts.json").is_file()
    assert json.loads(Path("runs/tokens_photos/plan.json").read_text())["stage1"]["budget"] == 54
    assert Path("answer").is_dir()
