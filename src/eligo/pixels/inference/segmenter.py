"""A trained model as a folder: `config.yaml` and `model.safetensors`; and its way back.

The folder says how pictures become numbers, which words the model reads, and how it compares them
with pixels: nobody has to remember that. Checkpoints and runs of `eligo pixels train` are read too.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from eligo.config import load_config, save_config
from eligo.config.yaml import read_yaml
from eligo.errors import EligoError, InputError
from eligo.files import make_folder
from eligo.pixels.inference.config import SegmenterConfig
from eligo.pixels.model.model import PixelsModel
from eligo.pixels.text.batch import TextBatch
from eligo.pixels.text.encoders import TextEncoder, build_text_encoder
from eligo.train.weights import load_weights, save_weights

SHIPPED = Path(__file__).parents[1] / "models" / "rooms"
"""The small model of generated rooms, where it comes with the package."""


class Segmenter:
    """A network, its class names and its text encoder."""

    def __init__(
        self, config: SegmenterConfig, model: PixelsModel, encoder: TextEncoder | None
    ) -> None:
        self.config, self.model, self.encoder = config, model, encoder

    @classmethod
    def load(
        cls, folder: str | Path | None = None, *, device: str | torch.device = "cpu"
    ) -> "Segmenter":
        """The model of a folder (of a model, a checkpoint or a run), or the shipped one."""
        found = model_folder(folder)
        config = stored_config(found)
        model = PixelsModel(config)
        try:
            load_weights(found, {"model": model})
        except EligoError as error:  # whoever names a folder can name another
            raise InputError(str(error)) from error
        return cls(config, model.to(device).eval(), text_encoder(config))

    def save(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
        """Write a folder for `load`; `dtype` torch.float16 halves it."""
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()) and not (folder / "config.yaml").is_file():
            raise InputError(
                f"{folder} already holds something that is no model; choose another one"
            )
        made = make_folder(folder.with_name(f".{folder.name}.tmp"))
        try:
            save_weights(made, {"model": self.model}, dtype)
            save_config(plain_config(self.config), made / "config.yaml")
            if folder.exists():
                shutil.rmtree(folder)
            made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return next(self.model.parameters()).device

    def text(self, words: Sequence[str], *, sentences: bool = False) -> TextBatch | None:
        """Words for one image; None for none."""
        if not words:
            return None
        if self.encoder is None:
            raise InputError(
                "tags: this model was trained without words (text.source none, or preset 0); "
                "leave them out"
            )
        vectors = self.encoder.encode(words, sentences=sentences).to(self.device)[None]
        mask = torch.ones(vectors.shape[:2], dtype=torch.bool, device=self.device)
        return TextBatch(vectors, mask, (tuple(words),), "predicted")


def model_folder(folder: str | Path | None) -> Path:
    """Where a model's files are: the folder itself, or the best of a run; none: the shipped."""
    if folder is None:
        if not (SHIPPED / "config.yaml").is_file():
            raise InputError(
                "--model: none was given and none comes with this eligo; train one with "
                "`eligo pixels train` and give its folder (random weights would say nothing)"
            )
        return SHIPPED
    folder = Path(folder)
    for place in (folder, folder / "model", folder / "best"):
        if (place / "config.yaml").is_file() and (place / "model.safetensors").is_file():
            return place
    raise InputError(
        f"no segmentation model in {folder}: expected config.yaml and model.safetensors, as "
        "`eligo pixels train` writes them to <run>/model"
    )


def stored_config(folder: Path) -> SegmenterConfig:
    """What a folder says about its weights; a checkpoint says more, which is left out."""
    tree, _ = read_yaml(folder / "config.yaml")
    wanted = {key: value for key, value in tree.items() if key in SegmenterConfig.model_fields}
    return load_config(SegmenterConfig, wanted)


def plain_config(config: SegmenterConfig) -> SegmenterConfig:
    """Without what only training knows."""
    dumped = config.model_dump(mode="json")
    return load_config(SegmenterConfig, {key: dumped[key] for key in SegmenterConfig.model_fields})


def text_encoder(config: SegmenterConfig) -> TextEncoder | None:
    """What turns words into vectors; None where no word reaches the network."""
    if not config.guided:
        return None
    encoder = build_text_encoder(config.text.encoder)
    if encoder.dim != config.text_dim:
        raise InputError(
            f"text_dim: got {config.text_dim}, expected {encoder.dim}, the width of the "
            f"{config.text.encoder.kind} encoder's vectors"
        )
    return encoder
