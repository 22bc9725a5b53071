"""Training: cross-entropy over the labelled pixels, on the common training loop."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.errors import ConfigError, InputError
from eligo.images import upright_size
from eligo.pixels.config import IGNORED, FilesDataConfig, PixelsTrainConfig, ScenesDataConfig
from eligo.pixels.data.batch import Batch, ImageSource
from eligo.pixels.data.file_source import FileSource
from eligo.pixels.data.records import class_names, read_records
from eligo.pixels.data.scene_source import SceneSource
from eligo.pixels.inference.evaluate import split_confusion
from eligo.pixels.inference.segmenter import (
    Segmenter,
    check_sam_settings,
    sam_settings,
    stored_config,
    text_encoder,
)
from eligo.pixels.metrics import SegmentationMetrics, segmentation_metrics
from eligo.pixels.model.alignment import SemanticAlignment
from eligo.pixels.model.model import PixelsModel
from eligo.pixels.text.encoders import TextEncoder, WordsEncoder
from eligo.scenes.painter import label_names
from eligo.train import (
    FitResult,
    OptimizerSpec,
    Progress,
    SourcedTask,
    StepOutput,
    counted_steps,
    fit,
    load_weights,
    seed_everything,
)


def segmentation_loss(
    logits: Float[Tensor, "batch classes height width"],
    labels: Integer[Tensor, "batch height width"],
) -> Float[Tensor, ""]:
    """Mean cross-entropy over the pixels that are not ignored; 0 if all are."""
    total = F.cross_entropy(logits.float(), labels.long(), ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp_min(1)


class LogLikelihood:
    """The same loss over several batches, from probabilities: mean negative log-likelihood."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0.0

    def add(self, batch: Batch, probabilities: Float[Tensor, "batch classes height width"]) -> None:
        """Add the labelled pixels of a batch."""
        found = probabilities.float()
        logs = found.clamp_min(torch.finfo(found.dtype).tiny).log()
        labels = batch.labels.long()
        self.total += float(F.nll_loss(logs, labels, ignore_index=IGNORED, reduction="sum"))
        self.count += float((labels != IGNORED).sum())

    def loss(self) -> float:
        """Return the mean over all pixels so far; 0 without any."""
        return self.total / max(1.0, self.count)


class PixelsTask(SourcedTask[ImageSource]):
    """Segmentation of images with depth and words."""

    def __init__(self, config: PixelsTrainConfig, source: ImageSource | None = None) -> None:
        seed_everything(config.train.seed)
        config = with_counted_steps(with_image_size(with_classes(config)))
        super().__init__(config.train, source)
        self.encoder = text_encoder(config)
        probe = None if self.encoder is None else self.encoder.probe()
        config = config.replace({"text_probe": probe})
        self.config: PixelsTrainConfig = config  # pyright: ignore[reportIncompatibleVariableOverride]
        start_from = config.train.init_from
        if start_from is not None and (start_from / "config.yaml").is_file():
            check_sam_settings(start_from, stored_config(start_from), sam_settings(config.sam))
        self.model = PixelsModel(config)
        start = config.gate_start if config.sam.form == "gated" else None
        set_gates(self.model, start, config.gate_rate)
        self.modules = {"model": self.model}
        self.optimizers = {"all": OptimizerSpec(config.optimizer, ("model",))}
        self._forward = torch.compile(self.model, dynamic=False) if config.compile else self.model

    def open_source(self) -> ImageSource:
        """Open the data set of the config."""
        return build_source(self.config, self.encoder, self.device)

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.model.parameters()).device

    def step(self, batch: Batch, progress: Progress) -> StepOutput:  # noqa: ARG002
        """Return the loss, after exchange and dropout of words and dropout of depth."""
        batch = self.source.augmented(batch)
        text, mask = batch.text, batch.depth_mask
        if text is not None and self.config.text_shuffle:
            text = text.swapped(_chosen(batch.rgb, self.config.text_shuffle))
        if text is not None and self.config.text_dropout:
            text = text.without(_chosen(batch.rgb, self.config.text_dropout))
        if text is not None and self.config.word_dropout:
            text = text.only(_kept_words(text.mask, self.config.word_dropout))
        if mask is not None and self.config.depth_dropout:
            mask = mask & ~_chosen(batch.rgb, self.config.depth_dropout)[:, None, None, None]
        output = self._forward(batch.rgb, batch.depth, mask, text, maps=False)
        loss = segmentation_loss(output.logits, batch.labels)
        labelled = (batch.labels != IGNORED).sum().clamp_min(1) / batch.labels.numel()
        return StepOutput({"segmentation": loss}, weight=labelled)

    def metric_names(self) -> list[str]:
        """Names of the metrics with the first two provenances, and of scales, gates and entropy."""
        kinds = self.source.provenances[:2]
        floats = (field.name for field in fields(SegmentationMetrics) if field.type is float)
        means = ["loss", *floats]
        suffixes = ["", *(f"/{kind}" for kind in kinds[1:])]
        rows = [f"{name}{suffix}" for suffix in suffixes for name in means]
        entropy = ["attention_entropy"] if kinds[0] != "none" else []
        return [*rows, *self.model.temperatures(), *entropy]

    def evaluate(self) -> Mapping[str, float]:
        """Evaluate on the validation images, with words and without; read scales and gates.

        The loss is that of the training, without dropout, over all labelled pixels.
        """
        source = self.source
        main, kinds = source.provenances[0], source.provenances[:2]
        size = self.config.train.batch_size
        metrics = {}
        first: Batch | None = None
        for kind in kinds:
            likelihood = LogLikelihood()

            def watch(batch: Batch, found: Tensor, likelihood: LogLikelihood = likelihood) -> None:
                nonlocal first
                first = first or batch
                likelihood.add(batch, found)

            total, _ = split_confusion(
                self.model, source, "validation", kind, batch_size=size, watch=watch
            )
            found = {"loss": likelihood.loss(), **vars(segmentation_metrics(total))}
            suffix = "" if kind == main else f"/{kind}"
            means = {k: v for k, v in found.items() if isinstance(v, float)}
            metrics |= {f"{name}{suffix}": value for name, value in means.items()}
        metrics |= {name: float(value) for name, value in self.model.temperatures().items()}
        assert first is not None  # one batch is enough for the entropy; the first kind is `main`
        output = self.model(first.rgb, first.depth, first.depth_mask, first.text)
        if output.entropy is not None:
            metrics["attention_entropy"] = float(output.entropy.mean())
        return metrics


def set_gates(model: PixelsModel, start: float | None, rate: float) -> None:
    """Set the gates of the alignment (none: leave them) and their learning-rate multiplier."""
    for module in model.modules():
        if isinstance(module, SemanticAlignment):
            gates = dict(module.named_parameters(recurse=False))
            module.lr_multiplier = module.lr_multiplier | dict.fromkeys(gates, rate)
            if start is not None:
                for gate in gates.values():
                    nn.init.constant_(gate, start)


def build_source(
    config: PixelsTrainConfig, encoder: TextEncoder | None, device: torch.device
) -> ImageSource:
    """Return the data set of a config."""
    data, others = config.data, (config.inputs, config.text)
    if isinstance(data, ScenesDataConfig):
        assert encoder is None or isinstance(encoder, WordsEncoder)
        return SceneSource(data, *others, encoder, config.augment, device)
    return FileSource(data, *others, encoder, config.augment, device)


def with_classes(config: PixelsTrainConfig) -> PixelsTrainConfig:
    """Return the config with the class names of its data set; their number must match."""
    data = config.data
    names = label_names(data.scenes) if isinstance(data, ScenesDataConfig) else class_names(data)
    if len(names) != config.num_classes:
        raise ConfigError(
            f"num_classes: got {config.num_classes}, expected {len(names)}, the number of classes "
            "of the data set"
        )
    changes: dict[str, Any] = {"classes": names}
    if not isinstance(data, ScenesDataConfig):
        changes |= {"label_offset": data.label_offset, "words_are": data.words_are}
    return config.replace(changes)


def with_image_size(config: PixelsTrainConfig) -> PixelsTrainConfig:
    """Return the config with the size of its training images; None if there are several."""
    data, size = config.data, config.augment.crop or config.inputs.size
    if isinstance(data, ScenesDataConfig):
        size = (data.scenes.height, data.scenes.width)
    elif size is None:
        size = _common_size(data)
    return config.replace({"image_size": size})


def _common_size(data: FilesDataConfig) -> tuple[int, int] | None:
    """Height and width of all training images; None if they differ or cannot be read."""
    try:
        sizes = {upright_size(record.image) for record in read_records(data, "train")}
    except InputError:  # the check of all data says more
        return None
    width, height = sizes.pop()
    return None if sizes else (height, width)


def with_counted_steps(config: PixelsTrainConfig) -> PixelsTrainConfig:
    """Return the config with the number of steps of its `epochs`."""
    if config.epochs is None:
        return config
    if isinstance(config.data, ScenesDataConfig):
        images = config.data.train_images
    else:
        images = len(read_records(config.data, "train"))
    steps = counted_steps(config.epochs, images, config.train)
    return config.replace({"train.total_steps": steps})


def train_model(
    config: PixelsTrainConfig, *, resume: bool = False, source: ImageSource | None = None
) -> FitResult:
    """Train, then write the best weights as a model folder: `<run>/model`."""
    from accelerate import PartialState

    task = PixelsTask(config, source)
    result = fit(task, task.config.train, resume=resume)
    if PartialState().is_main_process:
        load_weights(result.chosen, {"model": task.model})
        Segmenter(task.config, task.model, task.encoder).save_pretrained(result.folder / "model")
    return result


def _chosen(like: Tensor, share: float) -> Tensor:
    return torch.rand(like.shape[0], device=like.device) < share


def _kept_words(mask: Tensor, share: float) -> Tensor:
    """Mask of the words to keep: all, but in a `share` of the images only a random part."""
    probability = torch.rand(mask.shape[0], 1, device=mask.device)
    kept = torch.rand(mask.shape, device=mask.device) < probability
    return kept | ~_chosen(mask, share)[:, None]
