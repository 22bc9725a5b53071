"""Every command of the pages on tokens runs, with tiny random models and generated photos."""

import json
import shutil
from pathlib import Path

import pytest
from photo_parts import make_language, make_photos, make_tower

from eligo.config import load_config
from eligo.config.yaml import read_yaml
from eligo.pretrained.load import SHIPPED
from eligo.scenes.vlm import VlmConfig
from eligo.tokens.config import TokensTrainConfig
from shell_blocks import ROOT, name_of, pages, run_lines, to_run, write_configs
from shipped_models import vlm

PHOTOS = ROOT / "docs" / "photos.md"
CONFIG = ROOT / "src" / "eligo" / "configs" / "tokens" / "photos.yaml"
BUDGET = read_yaml(CONFIG)[0]["merger"]["budget"]
LLAVA = VlmConfig(vision_layers=2, vision_width=16, layers=32, width=32, hidden=32, heads=2)
SMALL = (
    "--train.total_steps 2 --train.batch_size 4 --train.log_every 1 --train.evaluate_every 2 "
    "--train.checkpoint_every 2 --train.precision no --host.dtype float32 --data.validation 4"
)
ONE_STEP = SMALL.replace("steps 2", "steps 1").replace("size 4", "size 1").replace("n 4", "n 1")
SHORTER = {
    "tokens finetune": f"{SMALL} --epochs None --lora.rank 2",
    "tokens train": ONE_STEP,
    "tokens train photos": SMALL,
    "tokens train two_stage": f"{ONE_STEP} --epochs None",
    "tokens train llava15": f"{ONE_STEP} --data.num_workers 0",
    "tokens evaluate": "--questions 1",
    "tokens evaluate runs/tokens_photos": "",
    "tokens evaluate --model": "",
    "tokens sweep": "--questions 1 --blind_scenes 8",
    "tokens bench": "--rounds 1 --batch_size 1",
    "search": "--workers 1",
}
REPLACED = {"tokens/search": "search.yaml"}
SEARCH = """
extends: tokens/search
train: {total_steps: 1, batch_size: 1, precision: "no"}
data: {kind: scenes, validation: 1}
search: {trials: 1}
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """What the pages presume: parts and hosts under the names of the hub, photos, questions."""
    folder = tmp_path_factory.mktemp("files")
    make_tower("dinov2", folder / "facebook" / "dinov2-small", layers=12)
    make_language(folder / "HuggingFaceTB" / "SmolLM2-135M-Instruct", layers=18)
    make_photos(folder / "photos", count=48)
    shutil.move(folder / "photos" / "images", folder / "images")
    shutil.move(folder / "photos" / "captions.json", folder / "captions.json")
    questions = (folder / "photos" / "questions.jsonl").read_text()
    (folder / "my_questions.jsonl").write_text(questions.replace('"image": "', '"image": "images/'))
    for name in ("photo.jpg", "room.png"):
        shutil.copy(folder / "images" / "0.png", folder / name)
    vlm(folder / "llava-hf" / "llava-1.5-7b-hf", LLAVA)
    counts = "--train 4 --validation 2 --test 2"
    run_lines(folder, [f"eligo scenes export vqa --out VQA {counts}"], {})
    return folder


@pytest.fixture(scope="module")
def followed(files, tmp_path_factory) -> tuple[Path, list[str]]:
    """A folder in which docs/photos.md was followed, and what the commands printed."""
    folder = tmp_path_factory.mktemp("page") / "photos"
    shutil.copytree(files, folder)
    return folder, run_lines(folder, to_run(PHOTOS), SHORTER)


def test_the_page_on_photos_leads_from_parts_to_a_pruned_answer(followed):
    folder, printed = followed
    assert [line.split()[2] for line in to_run(PHOTOS)] == [
        "build", "questions", "finetune", "evaluate", "train", "evaluate", "predict", "predict",
    ]  # fmt: skip
    assert "question only" in " ".join(printed[3].split())
    assert f"vision 256>{BUDGET}>" in " ".join(printed[6].split())
    assert (folder / "runs/photos/parts/parts.json").is_file()
    plan = json.loads((folder / "runs/tokens_photos/plan.json").read_text())
    assert plan["stage1"]["budget"] == BUDGET
    assert (folder / "answer").is_dir()


@pytest.mark.parametrize("path", [p for p in pages("tokens") if p != PHOTOS], ids=name_of)
def test_commands_run(path, followed, tmp_path):
    folder = tmp_path / "page"
    shutil.copytree(followed[0], folder, symlinks=True)
    if path.stem == "finetune":  # its run is there
        shutil.rmtree(folder / "runs")
    for host in ("path/to/host", "HOST", "FOLDER", "Qwen/Qwen2.5-VL-7B-Instruct"):
        (folder / host).parent.mkdir(parents=True, exist_ok=True)
        (folder / host).symlink_to(SHIPPED / "vlm")
    (folder / "search.yaml").write_text(SEARCH)
    write_configs(path, folder)
    run_lines(folder, to_run(path), SHORTER, REPLACED)


def test_the_config_in_sections_of_the_design_is_read(tmp_path):
    write_configs(ROOT / "docs" / "tokens.md", tmp_path)
    config = load_config(TokensTrainConfig, tmp_path / "my_run.yaml")
    assert config.train.batch_size == 12
    assert config.merger is not None
    assert config.merger.ratio == 0.5
