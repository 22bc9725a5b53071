"""Every command of the pages on pixels runs, with small networks and generated rooms."""

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from pixel_cases import official_encoder, official_model
from pixel_files import exported
from safetensors.torch import save_file
from test_pixels_as_trained import clip
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from eligo.config import load_config
from eligo.pixels import PixelsTrainConfig, make_word_table
from eligo.pixels.text.word_table import read_words
from eligo.pretrained.load import SHIPPED
from pretrained_models import sentence_transformer
from shell_blocks import name_of, pages, run_lines, to_run, write_configs

STEPS = (
    "--train.total_steps 1 --train.batch_size 2 --train.log_every 1 --train.evaluate_every 1 "
    "--train.checkpoint_every 1 --train.precision no"
)
SCENES = f"{STEPS} --data.train_images 4 --data.validation_images 2 --data.test_images 2"
FILES = f"{STEPS} --epochs None --data.num_workers 0"
NARROW = "--head.channels 16 --head.ham_channels 16 --encoder.depths 1 1 2 1 --encoder.dims"
DIMS = {"s": "16 32 64 128", "b": "20 40 80 128", "l": "28 56 112 160"}
SHORTER = {
    f"pixels train {data}_{size}": f"{FILES} --augment.crop 32 32 {NARROW} {dims}"
    for data in ("nyu", "sun")
    for size, dims in DIMS.items()
} | {
    "pixels train": SCENES,
    "pixels train mine": f"{FILES} --text_dim 16 --inputs.size 32 48 --augment.crop 32 48",
    "pixels train mine.yaml --smoke": "--text_dim 16 --inputs.size 32 48 --augment.crop 32 48",
    "pixels train large": f"{FILES} --augment.crop 32 32",
    "pixels train rooms": f"{FILES} --text_dim 16 --inputs.size 32 48 --augment.crop 32 48",
    "pixels train nyu_s --train.init_from": f"{FILES} --augment.crop 32 32",
    "pixels train nyu_s --data.root rooms": f"{FILES} {NARROW} {DIMS['s']}",
    "pixels evaluate": "--data my_config.yaml",
    "pixels evaluate runs": "",
    "scenes export": "--train 4 --validation 0 --test 2",
}


def save_clip(folder: Path) -> None:
    """A tiny CLIP with vectors as wide as those of the real one."""
    clip(folder)
    config = CLIPTextConfig.from_pretrained(folder, projection_dim=512)
    CLIPTextModelWithProjection(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """What the pages presume: folders of data sets, images, official weights, CLIP, models."""
    folder = tmp_path_factory.mktemp("files")
    exported(folder / "NYUDepthv2", "nyu", depth="png8")
    exported(folder / "SUNRGBD", "sun")
    exported(folder / "mine", "jsonl")
    shutil.copy(folder / "NYUDepthv2" / "tags.jsonl", folder)
    for name in ("NYUDepthv2", "SUNRGBD"):  # their 40 and 37 classes are known
        (folder / name / "classes.txt").unlink()
    for suffix in ("png", "jpg"):
        Image.open(folder / "mine/images/test_000000.png").save(folder / f"rgb.{suffix}")
    (folder / "my_config.yaml").write_text("extends: pixels/scenes\ndata: {test_images: 2}\n")
    save_clip(folder / "openai" / "clip-vit-base-patch16")
    sentence_transformer(folder / "sentence-transformers", nested=False)
    encoder = folder / "sentence-transformers" / "minilm"
    encoder.rename(encoder.with_name("all-MiniLM-L6-v2"))
    (folder / "ENCODER").symlink_to(encoder.with_name("all-MiniLM-L6-v2"))
    names, _ = read_words([folder / "mine" / "classes.txt", folder / "mine" / "train.jsonl"])
    save_file(make_word_table(str(folder / "ENCODER"), names), folder / "words.safetensors")
    config = load_config(PixelsTrainConfig, "pixels/nyu_s")
    encoder = official_encoder(config.encoder) | {"head.weight": torch.ones(3)}
    torch.save(encoder, folder / "DFormerv2_Small_pretrained.pth")
    model = official_model(config)
    for name in model:
        if name.endswith("encoder_logit_scale"):  # fixed at 1
            model[name].zero_()
    torch.save(model, folder / "NYUv2_DFormerv2_L.pth")  # of size S: the tensors determine it
    for model in ("MODEL", "RUN"):
        (folder / model).symlink_to(SHIPPED / "pixels")
    return folder


@pytest.mark.parametrize("path", pages("pixels"), ids=name_of)
def test_commands_run(path, files, tmp_path):
    folder = tmp_path / "page"
    shutil.copytree(files, folder, symlinks=True)
    data = "SUNRGBD" if "sun" in path.stem else "NYUDepthv2"
    (folder / "FOLDER").symlink_to(folder / data)
    depth = "NYUDepthv2/Depth" if path.stem == "pixels_official" else "mine/depth"
    shutil.copy(folder / depth / "test_000000.png", folder / "depth.png")
    write_configs(path, folder)
    run_lines(folder, to_run(path), SHORTER)
