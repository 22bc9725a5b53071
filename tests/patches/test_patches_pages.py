"""Every command of the pages on patches runs, with tiny random encoders and generated photos."""

import json
import shutil
from pathlib import Path

import pytest
from patch_models import karpathy, text_folder, vision_folder
from test_patches_convert import Given
from transformers import Dinov2Config, Dinov2Model

from eligo.pretrained.load import SHIPPED
from pretrained_models import whole_model
from shell_blocks import name_of, pages, run_lines, to_run

SMALL = (
    "--train.total_steps 2 --train.batch_size 4 --train.log_every 1 --train.evaluate_every 2 "
    "--train.checkpoint_every 2 --train.precision no --data.validation_images 4"
)
FILES = f"{SMALL} --epochs None --data.num_workers 0 --model.encoders.max_words 16"
FILES += " --model.encoders.image_size"
SHORTER = {
    "patches train scenes": f"{SMALL} --see_steps 1 --data.train_images 8",
    "patches train f30k": f"{FILES} 32",
    "patches train coco": f"{FILES} 32",
    "patches train photos": f"{FILES} 28",
    "patches train f30k_dinov2": f"{FILES} 28",
    "patches index --scenes": "--scenes 8",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """What the pages presume: encoders under the names of the hub, photos, captions, models."""
    folder = tmp_path_factory.mktemp("files")
    given = Given(folder)
    given.save(sparse_ratio=0.5, aggr_ratio=0.4)
    encoders = {
        "google/vit-base-patch16-224-in21k": given.vision,
        "microsoft/swin-base-patch4-window7-224": vision_folder(folder, "swin"),
        "facebook/dinov2-with-registers-base": vision_folder(folder, "registers"),
        "google-bert/bert-base-uncased": given.text,
        "sentence-transformers/all-MiniLM-L6-v2": given.text,
        "openai/clip-vit-base-patch16": whole_model(folder, "clip"),
        "openai/clip-vit-base-patch32": whole_model(folder, "clip"),
        "VIT_FOLDER": given.vision,
        "BERT_FOLDER": text_folder(folder),
    }
    for name, encoder in encoders.items():
        shutil.copytree(encoder, folder / name)
    sizes = {"hidden_size": 16, "num_hidden_layers": 12, "num_attention_heads": 2}
    tower = Dinov2Model(Dinov2Config(**sizes, image_size=28, patch_size=7))
    tower.save_pretrained(folder / "facebook" / "dinov2-small")
    splits = ("train",) * 8 + ("val",) * 4 + ("test",) * 5
    captions, images = karpathy(folder, splits)
    for name in ("captions", "dataset_flickr30k", "dataset_flickr8k", "dataset_coco"):
        shutil.copy(captions, folder / f"{name}.json")
    for name in ("photos", "FOLDER", "flickr30k-images", "coco"):
        shutil.copytree(images, folder / name)
    shutil.copy(images / "picture_0.png", folder / "photo.jpg")
    (folder / "captions.txt").write_text("a red ball.\na box left of a gem.\n")
    dense = [{"image_id": n, "text": "there is a red ball and a gem ."} for n in range(len(splits))]
    (folder / "dense.jsonl").write_text("".join(json.dumps(row) + "\n" for row in dense))
    return folder


@pytest.mark.parametrize("path", pages("patches"), ids=name_of)
def test_commands_run(path, files, tmp_path):
    folder = tmp_path / "page"
    shutil.copytree(files, folder)
    for model in ("RUN", "runs/patches_study/open_0"):
        (folder / model).parent.mkdir(parents=True, exist_ok=True)
        (folder / model).symlink_to(SHIPPED / "patches")
    run_lines(folder, to_run(path), SHORTER)
