"""Training of a vision-language model: the projector, and LoRA in the language model.

The tower is frozen. If the features of all photos fit in memory they are computed once, before the
first step; otherwise the tower runs in every step.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from eligo.errors import InputError, MissingExtraError
from eligo.images import upright_size, warn_shared_images
from eligo.io.files import write_text, writing_folder
from eligo.io.reading import read_object, reading
from eligo.tokens.config import FinetuneConfig, LoraSettings
from eligo.tokens.data.conversations import CAPTION, Conversations, PackedBatch, read_photos
from eligo.tokens.hosts import host_of
from eligo.tokens.inference.load import load_host
from eligo.tokens.training.compiled import CompiledLayers
from eligo.train import OptimizerSpec, Progress, StepOutput, Task, epoch_batches, seed_everything
from eligo.train.check import DataCheck
from eligo.train.data import ordered_batches, steps_per_epoch, worker_count
from eligo.train.weights import load_weights, save_weights

logger = logging.getLogger("eligo.tokens")
PARTS = "parts.json"
"""Settings of LoRA, beside the weights."""
_TOWER_BATCH = 128
_ADAPTER = "default"  # PEFT's name of the adapter


class FinetuneTask(Task):
    """Projector and adapter of a LLaVA, on photos with questions and captions."""

    def __init__(self, config: FinetuneConfig) -> None:
        check_peft()
        self.photos = read_photos(config.data, "train")
        self.config = self.settings = config = _with_counted_steps(config, len(self.photos))
        self.held_out = read_photos(config.data, "val")[: config.data.validation]
        warn_shared_images([p.image for p in self.photos], [p.image for p in self.held_out])
        self.model, self.processor = load_host(config.host)
        self.host: Any = host_of(self.model)
        if self.host.supply is None or self.host.projector is None:
            raise InputError(
                f"host.model: a {self.host.family} cannot be finetuned here; expected a LLaVA, as "
                "`eligo tokens build` writes"
            )
        self.host.tower.float()  # features are computed once: half precision would save nothing
        seed_everything(config.train.seed)
        self.adapter = add_adapter(
            self.host.text, config.lora, autocast=config.train.precision != "no"
        )
        projector = self.host.projector.float().requires_grad_(True)
        self.modules = {"projector": projector, "adapter": self.adapter}
        self.optimizers = {
            "projector": OptimizerSpec(config.optim.projector, ("projector",)),
            "adapter": OptimizerSpec(config.optim.adapter, ("adapter",)),
        }
        trained = [p for part in self.modules.values() for p in part.parameters()]
        self.compiled = CompiledLayers(self.host.layers, trained)
        self.features: dict[str, Float[Tensor, "photos tokens width"]] = {}
        self.cached = self._cache_bytes() <= config.data.cache_gb * 1e9
        self.training, self.validation = (
            Conversations(
                photos, self.processor, caption_prompt=config.data.caption_prompt,
                with_pixels=not self.cached, with_captions=learning,
                isolated=not learning, flip=learning and config.data.flip,
            )
            for photos, learning in ((self.photos, True), (self.held_out, False))
        )  # fmt: skip

    def describe(self) -> list[str]:
        """Return lines about the run."""
        turns = [sum(len(photo.turns) for photo in part) for part in (self.photos, self.held_out)]
        trained = {
            name: sum(p.numel() for p in part.parameters()) / 1e6
            for name, part in self.modules.items()
        }
        size = self._cache_bytes() / 1e9
        how = "computed once" if self.cached else "computed in every step (data.cache_gb)"
        return [
            f"training: {len(self.photos)} photos, {turns[0]} questions; "
            f"validation: {len(self.held_out)}, {turns[1]}",
            "trained: " + ", ".join(f"{name} {count:.2f} M" for name, count in trained.items()),
            f"tower features: {size:.2f} GB, {how}",
        ]

    def _cache_bytes(self) -> int:
        count = len(self.photos) * (1 + self.settings.data.flip) + len(self.held_out)
        element = next(self.host.tower.parameters()).element_size()
        return count * self.host.supply * self.host.feature_width * element

    def metric_names(self) -> list[str]:
        """Return the names of the validation metrics."""
        kinds = sorted({turn.kind for photo in self.held_out for turn in photo.turns})
        return ["loss", "accuracy", *(f"accuracy/{kind or 'question'}" for kind in kinds)]

    def check(self, check: DataCheck) -> None:
        """Check every image."""
        check.each("training images", [photo.image for photo in self.photos], upright_size)
        check.each("validation images", [photo.image for photo in self.held_out], upright_size)

    def to(self, device: torch.device) -> None:
        """Move the model, and compute the features to keep."""
        self.model.to(device)
        super().to(device)
        if self.cached:
            self.features = {
                "training": self._run_tower(self.training),
                "validation": self._run_tower(self.validation),
            }

    def batches(
        self, start_step: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[PackedBatch]:
        """Yield the photos of this process."""
        train = self.settings.train
        workers = worker_count(self.settings.data.num_workers)
        loader = epoch_batches(
            self.training, train.batch_size, train.seed, start_step, rank, world_size,
            num_workers=min(1, workers) if self.cached else workers,
            collate=self.training.collate, pin_memory=device.type == "cuda",
        )  # fmt: skip
        for batch in loader:
            yield batch.to(device)

    @torch.no_grad()
    def _run_tower(self, photos: Conversations) -> Float[Tensor, "photos tokens width"]:
        workers = self.settings.data.num_workers
        batches = ordered_batches(_Pixels(photos), _TOWER_BATCH, num_workers=workers)
        return torch.cat([self._tower(pixels) for pixels in batches])

    @torch.no_grad()
    def _tower(self, pixels: Tensor) -> Float[Tensor, "photos tokens width"]:
        tower = next(self.host.tower.parameters())
        with torch.autocast(tower.device.type, enabled=False):
            return self.host.features(pixels.to(tower.device, tower.dtype))

    def _hidden(self, batch: PackedBatch, split: str) -> Float[Tensor, "photos length width"]:
        """Return the last states of the language model."""
        if batch.pixels is None:
            features = self.features[split][batch.rows]
        else:
            features = self._tower(batch.pixels)
        vision = self.host.project(features.float())
        embeds = self.host.embed(batch.input_ids)
        is_image = (batch.input_ids == self.host.image_token_id).unsqueeze(-1)
        if torch.is_autocast_enabled(embeds.device.type):
            embeds = embeds.float()  # the sums of the residual stream, too
        embeds = embeds.masked_scatter(is_image, vision.to(embeds.dtype))
        output = self.host.text(
            inputs_embeds=embeds,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
        )
        return output.last_hidden_state

    def _logits(
        self, batch: PackedBatch, split: str
    ) -> tuple[Float[Tensor, "learned vocabulary"], Int64[Tensor, " learned"]]:
        """Return the predictions where there is a label, and the labels."""
        hidden = self._hidden(batch, split).flatten(0, 1)[batch.learned]
        logits = self.model.lm_head(hidden)  # pyright: ignore[reportCallIssue]
        return logits.float(), batch.labels.flatten()[batch.learned]

    def _loss(self, batch: PackedBatch) -> Float[Tensor, ""]:
        return F.cross_entropy(*self._logits(batch, "training"))

    def step(self, batch: PackedBatch, progress: Progress) -> StepOutput:  # noqa: ARG002
        """Return the cross-entropy of the answer tokens."""
        if self.settings.compile:
            self.compiled.begin(lambda: self._loss(batch))
        return StepOutput({"answer": self._loss(batch)}, weight=float(len(batch.learned)))

    def evaluate(self) -> Mapping[str, float]:
        """Return loss and accuracy of the validation questions: all tokens the most likely ones."""
        right: dict[str, list[bool]] = {}
        losses: list[Tensor] = []
        device = next(self.model.parameters()).device
        size = max(1, self.settings.train.batch_size)
        for first in range(0, len(self.held_out), size):
            rows = range(first, min(first + size, len(self.held_out)))
            batch = self.validation.collate([self.validation[row] for row in rows]).to(device)
            with self.compiled.skipped():
                logits, labels = self._logits(batch, "validation")
            losses.append(F.cross_entropy(logits, labels, reduction="none").cpu())
            photo = batch.learned // batch.labels.shape[1]
            turn = batch.turn.flatten()[batch.learned]
            wrong = (logits.argmax(-1) != labels).cpu()
            place = torch.stack([photo, turn], 1).cpu()
            missed = {tuple(pair) for pair in place[wrong].tolist()}
            for row, index in enumerate(rows):
                for number, asked in enumerate(self.validation.turns(index), start=1):
                    if asked.kind != CAPTION:
                        right.setdefault(asked.kind, []).append((row, number) not in missed)
        kinds = {kind: sum(values) / len(values) for kind, values in sorted(right.items())}
        return {
            "loss": float(torch.cat(losses).mean()),
            "accuracy": sum(kinds.values()) / max(1, len(kinds)),
            **{f"accuracy/{kind or 'question'}": value for kind, value in kinds.items()},
        }

    def load(self, checkpoint: Path) -> None:
        """Load the trained parts of a checkpoint."""
        load_weights(checkpoint, self.modules)

    def merge(self) -> nn.Module:
        """Merge the adapter into the language model; return the whole model."""
        self.compiled.undo()
        model = self.model.cpu().float()  # first: the sum is rounded once, when it is saved
        merge_adapter(self.host.text)
        return model


class _Pixels(Dataset):
    """The images of photos alone, mirrored ones behind all others."""

    def __init__(self, photos: Conversations) -> None:
        self.photos = photos

    def __len__(self) -> int:
        return self.photos.num_rows

    def __getitem__(self, index: int) -> Tensor:
        return self.photos.pixels(index)


def _with_counted_steps(config: FinetuneConfig, num_photos: int) -> FinetuneConfig:
    """Return the config with `train.total_steps` of its epochs."""
    if config.epochs is None:
        return config
    steps = round(config.epochs * steps_per_epoch(num_photos, config.train.batch_size))
    return config.replace({"train.total_steps": max(1, steps)})


# ------------------------------------------------------------------ LoRA


def add_adapter(
    language: nn.Module, settings: LoraSettings, *, autocast: bool = False
) -> nn.ModuleDict:
    """Add LoRA (Hu et al., 2022) to all linear layers; return its matrices, in float32.

    Under `autocast`, inputs stay in half precision: casting them to that of the matrices and back
    costs memory and time.
    """
    check_peft()
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, lora_dropout=settings.dropout,
        target_modules="all-linear",
    )  # fmt: skip
    inject_adapter_in_model(config, language, _ADAPTER)
    parts: dict[str, nn.Module] = {}
    for name, layer in _lora_layers(language):
        layer.requires_grad_(False)
        layer.cast_input_dtype_enabled = not autocast
        part = {"a": layer.lora_A, "b": layer.lora_B, "dropout": layer.lora_dropout}
        parts[name.replace(".", "/")] = nn.ModuleDict(
            {key: value[_ADAPTER].float().requires_grad_(True) for key, value in part.items()}
        )
    return nn.ModuleDict(parts)


def check_peft() -> None:
    """Raise if PEFT is not installed."""
    if find_spec("peft") is None:
        raise MissingExtraError("peft", "finetune", needed_by="tokens finetune")


def merge_adapter(language: nn.Module) -> None:
    """Add the product of the LoRA matrices to the weights, and remove LoRA."""
    for name, layer in list(_lora_layers(language)):
        layer.merge()
        parent, _, last = name.rpartition(".")
        setattr(language.get_submodule(parent), last, layer.get_base_layer())


def _lora_layers(language: nn.Module) -> Sequence[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    found = [(n, m) for n, m in language.named_modules() if isinstance(m, LoraLayer)]
    if not found:
        raise InputError("host.model: its language model has no linear layer for LoRA")
    return found


def save_parts(folder: str | Path, modules: Mapping[str, nn.Module], lora: LoraSettings) -> None:
    """Write projector and adapter in bfloat16, for `eligo tokens build --parts`."""
    names = [PARTS, *(f"{name}.safetensors" for name in modules)]
    with writing_folder(folder, marker=PARTS, holds=names) as temporary:
        save_weights(temporary, modules, torch.bfloat16)
        write_text(temporary / PARTS, json.dumps(lora.model_dump()) + "\n")


def load_parts(model: nn.Module, folder: str | Path) -> None:
    """Load what `save_parts` wrote into a model, and merge it."""
    host, folder = host_of(model), Path(folder)
    assert host.projector is not None
    about = read_object(folder / PARTS, "`eligo tokens finetune`")
    with reading(folder / PARTS, "rank, alpha and dropout"):
        settings = LoraSettings(**about)
    adapter = add_adapter(host.text, settings)
    load_weights(folder, {"projector": host.projector, "adapter": adapter})
    merge_adapter(host.text)
