"""Every command of the pages on shots runs, with a tiny host and CLIP and generated questions."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from loopback import served
from shot_cases import save_clip
from test_shots_convert import Projections

from shell_blocks import name_of, pages, run_lines, to_run, write_configs
from shipped_models import LEARNER, vlm

TRAIN = "--train.num_epochs 1 --train.min_steps 2"
TEACH = "--shots 2 --beam 2 --sampler.num_candidates 4"
SHORTER = {
    "shots teach": TEACH,
    "shots train": TRAIN,
    "shots evaluate": "--shots 2",
    "scenes export": "--train 6 --validation 2 --test 0 --questions 1",
}
TESTED = [
    "eligo shots embed --data examples.jsonl --queries new.jsonl --out tested",
    "eligo shots teach",
    "eligo shots train",
]
REPLACED = {"shots/v3_grid": "short.yaml", "grid.yaml": "short.yaml"}
GRID = """
train: {num_epochs: 1, min_steps: 2}
search: {space: {model.ranking_loss_weight: [0.05, 0.1]}}
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """What the pages presume: examples, questions of VQAv2, a CLIP, a host, published weights."""
    folder = tmp_path_factory.mktemp("files")
    for name, colour in {"examples": "red", "new": "blue"}.items():
        lines = [
            {"id": f"{name}{n}", "input": f"where is the {colour} ball {n}?", "output": f"left {n}"}
            for n in range(8)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_lines(folder, ["eligo scenes export vqa --out coco"], SHORTER)
    for split, prefix in {"train2014": "", "val2014": "val_"}.items():
        questions = folder / "coco" / f"v2_OpenEnded_mscoco_{split}_questions.json"
        shutil.copy(questions, folder / f"{prefix}questions.json")
        annotations = folder / "coco" / f"v2_mscoco_{split}_annotations.json"
        shutil.copy(annotations, folder / f"{prefix}annotations.json")
    shutil.copy(next((folder / "coco" / "val2014").iterdir()), folder / "x.jpg")
    save_clip(str(folder / "CLIP_FOLDER"))
    for name in ("HOST_FOLDER", "FOLDER"):
        vlm(folder / name, LEARNER)
    torch.save(Projections("", width=12).state_dict(), folder / "best_checkpoint.pth")
    first = [
        "eligo shots embed --data examples.jsonl --out embedded",
        "eligo shots teach --data embedded --out taught",
    ]
    run_lines(folder, first, SHORTER)
    return folder


@pytest.mark.parametrize("path", pages("shots"), ids=name_of)
def test_commands_run(path, files, tmp_path):
    folder = tmp_path / "page"
    shutil.copytree(files, folder)
    if path.suffix == ".md" or path.stem == "vqa":  # makes the records
        shutil.rmtree(folder / "taught")
    if path.stem == "README":
        selectors = folder / "runs" / "shots_study" / "selectors"
        selectors.mkdir(parents=True)
        for seed in range(3):
            (selectors / f"{path.parent.name.removeprefix('shots_')}_{seed}").symlink_to(
                path.parent
            )
    if path.stem == "shots_teach":  # follows the page on the pipeline
        run_lines(folder, TESTED, SHORTER)
    write_configs(path, folder)
    grid = "grid.yaml" if (folder / "grid.yaml").exists() else "shots/v3_grid"
    (folder / "short.yaml").write_text(f"extends: {grid}{GRID}")
    with served() as server:
        replaced = {**REPLACED, "http://localhost:8000/v1": server.url}
        run_lines(folder, to_run(path), SHORTER, replaced)
