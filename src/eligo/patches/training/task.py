"""Training task: encode the images and texts of a step, score all pairs, compute the losses.

Several processes (`accelerate launch`) take equal shares of a step's images and texts; scores and
gradients are those of one process with the whole batch (see `gather`).
"""

import math
from collections.abc import Mapping
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eligo.errors import InputError
from eligo.patches.config import PatchesTrainConfig, ScenesDataConfig
from eligo.patches.data.batch import Batch, CaptionSource
from eligo.patches.data.cached_source import CachedSource
from eligo.patches.data.file_source import FileSource
from eligo.patches.data.scene_source import SceneSet, SceneSource
from eligo.patches.inference.evaluate import score_set
from eligo.patches.metrics import retrieval_metrics
from eligo.patches.model.encoders import ImageEncoder, TextEncoder
from eligo.patches.model.inputs import Images, Texts
from eligo.patches.model.retrieval_model import RetrievalModel, TextFeatures
from eligo.patches.model.seps import CrossSparseAggrNet
from eligo.patches.training.gather import Peers
from eligo.patches.training.losses import (
    alignment_loss,
    contrastive_loss,
    ratio_loss,
    two_pass_loss,
)
from eligo.scenes.painter import Rendered
from eligo.scenes.vlm_heads import VisionHeads, patch_targets
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
from eligo.train.optimization import lr_factor

_SCALE = 14.0  # of the scores at the start: 1 / 0.07, as in CLIP
_CENTRING = 60.0  # times the learning rate: share of the median that a step subtracts


class PatchesTask(SourcedTask[CaptionSource]):
    """Trains a `RetrievalModel` on batches of images and texts."""

    def __init__(self, config: PatchesTrainConfig, source: CaptionSource | None = None) -> None:
        super().__init__(config.train, source)
        seed_everything(config.train.seed)
        self.model = RetrievalModel.build(config.model)
        self.modules = {"retriever": self.model}
        for encoder in (self.model.image_encoder, self.model.text_encoder):
            if encoder.lr_multiplier["backbone"] == 0:  # unused gradients
                encoder.backbone.requires_grad_(False)
        # Completed with the encoders' image size, mean and deviation.
        self.config: PatchesTrainConfig = config.replace({"model": self.model.config})  # pyright: ignore[reportIncompatibleVariableOverride]
        if config.see_steps:
            self.modules["see"] = VisionHeads(self.model.image_encoder.head.in_features)
        if config.loss == "contrastive":
            self.modules["scale"] = LogitScale()
        self.optimizers = {"all": OptimizerSpec(config.optimizer, tuple(self.modules))}
        steps = config.train.total_steps - config.see_steps
        self._num_ramped = math.ceil(config.ramp * steps)
        self._num_easy = math.ceil(config.hardest_after * steps)

    @cached_property
    def peers(self) -> Peers:
        """The processes of the run; available from the first step on."""
        return Peers()

    def open_source(self) -> CaptionSource:
        """Open scenes, or files with captions."""
        data, dense = self.config.data, self.config.model.match.dense
        if isinstance(data, ScenesDataConfig):
            see = self.config.see_steps > 0
            return SceneSource(data, self.model.device, dense=dense, see=see)
        source = FileSource if data.cache is None else CachedSource
        return source(data, self.model, dense=dense)

    def metric_names(self) -> list[str]:
        """Return the names of the metrics that `evaluate` returns."""
        if self._only_sees:
            return ["loss", "seen"]
        scores = torch.ones(1, 1)
        return ["loss", *retrieval_metrics(scores, scores.bool()).as_dict()]

    @property
    def _only_sees(self) -> bool:
        """Whether all steps classify patches."""
        return self.config.see_steps == self.config.train.total_steps

    def step(self, batch: Batch, progress: Progress) -> StepOutput:
        """Classify patches in the first `see_steps`, then match images and texts."""
        if progress.step < self.config.see_steps:
            return self._classify_patches(batch)
        place = progress.step - self.config.see_steps
        if place == 0 and self.config.centre_heads:
            self._centre_heads(batch)
        images, texts = self._sides(batch)
        ramp = min(1.0, (place + 1) / max(1, self._num_ramped))
        if self.config.loss == "contrastive":
            ramp = 1.0
        align, ratio = self._losses(batch, images, texts, hardest=place >= self._num_easy)
        losses = {"align": ramp * self._over_processes(align)}
        if self.config.ratio_weight:
            losses["ratio"] = self.config.ratio_weight * self._over_processes(ratio)
        if self.config.centre_heads:
            optimizer = self.config.optimizer
            rate = optimizer.lr * lr_factor(optimizer.schedule, progress.step, progress.total_steps)
            patches = self.peers.rows(images.patches).flatten(0, 1)
            _centre(self.model.image_encoder, patches, min(1.0, _CENTRING * rate))
        return StepOutput(losses)

    def evaluate(self) -> Mapping[str, float]:
        """Return loss, recalls and ranks on the validation split, every image with every text.

        The loss is the alignment loss in its final form, without ramp, per true pair. The loss on
        the share of kept patches is left out: in evaluation that share is fixed.
        """
        if self._only_sees:
            return self._evaluate_patches()
        data = self.source.validation()
        scores = score_set(self.model, data, self.peers)
        positive = data.positive.to(scores.device)
        if self.config.loss == "contrastive":
            loss = contrastive_loss(scores, None, positive, scale=self._scale.detach()).item()
        else:
            hardest, margin = self.config.hardest_after < 1, self.config.margin
            total = alignment_loss(scores, None, positive, margin=margin, hardest=hardest)
            loss = float(total / positive.sum().clamp_min(1))
        return {"loss": loss, **retrieval_metrics(scores, positive).as_dict()}

    def _sides(self, batch: Batch) -> tuple[Images, Texts]:
        """Return this process's images, and the texts of all processes."""
        model = self.model
        tokens = model.image_encoder.tokens(batch.images)
        dense = None
        if batch.dense is not None:
            with torch.no_grad():
                dense = TextFeatures(model.text_encoder.words(*batch.dense), batch.dense[1])
        words = model.text_encoder.words(*batch.texts)
        all_texts = TextFeatures(*self.peers.texts(words, batch.texts[1]))
        return model.image_side(tokens, dense), model.text_side(all_texts)

    @torch.no_grad()
    def _centre_heads(self, batch: Batch) -> None:
        """Shift the heads so that the median patch and word are zero."""
        model = self.model
        tokens = self.peers.rows(model.image_encoder.tokens(batch.images))
        words, mask = self.peers.texts(model.text_encoder.words(*batch.texts), batch.texts[1])
        _centre(
            model.image_encoder, tokens[:, model.image_encoder.layout.num_prefix :].flatten(0, 1)
        )
        _centre(model.text_encoder, words[mask])

    def _losses(
        self, batch: Batch, images: Images, texts: Texts, *, hardest: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the alignment loss of the whole step, and the ratio loss."""
        net, peers = self.model.net, self.peers
        ids = None if batch.image_ids is None else peers.rows(batch.image_ids)
        margin, zero = self.config.margin, images.patches.new_zeros((), dtype=torch.float32)
        if self.config.loss == "contrastive":
            scores = peers.rows(self.model.match(images, texts))
            return contrastive_loss(scores, ids, batch.positive, scale=self._scale), zero
        selects = isinstance(net, CrossSparseAggrNet)
        if selects and hardest and net.decision == "topk":
            share = len(images.patches)
            loss, _ = two_pass_loss(
                net, images, texts, ids, batch.positive, margin=margin, gather_rows=peers.rows,
                own_rows=slice(peers.index * share, (peers.index + 1) * share),
            )  # fmt: skip
            return loss, zero
        if selects:
            matches = net.match(images, texts)
            scores, shares = matches.scores, matches.share
        else:
            scores, shares = self.model.match(images, texts), None
        loss = alignment_loss(
            peers.rows(scores), ids, batch.positive, margin=margin, hardest=hardest
        )
        if shares is None or not self.config.ratio_weight:
            return loss, zero
        return loss, ratio_loss(peers.rows(shares).mean(), self.config.model.match.sparse_ratio)

    @property
    def _scale(self) -> Tensor:
        return self.modules["scale"]()

    def _over_processes(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Scale the gradient: each process has a part of it, and the loop averages the parts."""
        others = self.peers.count - 1
        return loss + others * (loss - loss.detach()) if others else loss

    def _classify_patches(self, batch: Batch) -> StepOutput:
        if batch.rendered is None:
            raise InputError("see_steps: this source has no patch labels")
        losses = self._patch_losses(batch.rendered)
        names = [name for name in losses if name.startswith("accuracy")]
        metrics: dict[str, Tensor | float] = {name: losses.pop(name) for name in names}
        return StepOutput(losses, metrics)

    def _patch_losses(self, rendered: Rendered) -> dict[str, Float[Tensor, ""]]:
        encoder, heads = self.model.image_encoder, self.modules["see"]
        assert isinstance(heads, VisionHeads)
        pixels = encoder.normalise(rendered.rgb)
        states = encoder.backbone(pixel_values=pixels).last_hidden_state
        prefix = encoder.layout.num_prefix
        size = encoder.image_size // encoder.layout.grid_hw[0]
        cls = states[:, 0] if prefix else states.mean(1)
        return heads.losses(states[:, prefix:], cls, patch_targets(rendered, size))

    def _evaluate_patches(self) -> dict[str, float]:
        """Return the loss of the patch classes, and the accuracy of the objects' shapes."""
        scenes = self.source.validation()
        assert isinstance(scenes, SceneSet)
        size = self.config.train.batch_size
        starts = range(0, len(scenes), size)
        parts = [self._patch_losses(scenes.rendered[i : i + size]) for i in starts]
        losses = [v for part in parts for k, v in part.items() if not k.startswith("accuracy")]
        seen = [part["accuracy_shape"] for part in parts]
        return {name: float(sum(v)) / len(parts) for name, v in (("loss", losses), ("seen", seen))}


class LogitScale(nn.Module):
    """Learned factor of the scores in the contrastive loss, at most 100 (as in CLIP)."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(_SCALE).log())

    def forward(self) -> Float[Tensor, ""]:
        """Return the factor."""
        return self.log_scale.exp().clamp(max=100.0)


@torch.no_grad()
def _centre(encoder: ImageEncoder | TextEncoder, vectors: Tensor, share: float = 1.0) -> None:
    """Subtract a share of the median vector from the head's bias."""
    encoder.head.bias.sub_(share * vectors.float().median(0).values)


def train_model(
    config: PatchesTrainConfig, *, resume: bool = False, source: CaptionSource | None = None
) -> FitResult:
    """Train, then write the best weights to the model folder `<run>/model`."""
    from accelerate import PartialState

    task = PatchesTask(with_counted_steps(config), source)
    result = fit(task, task.config.train, resume=resume)
    if PartialState().is_main_process:
        load_weights(result.chosen, {"retriever": task.model})
        task.model.save_pretrained(result.folder / "model")
    return result


def with_counted_steps(config: PatchesTrainConfig) -> PatchesTrainConfig:
    """Return the config with `epochs` converted to steps."""
    if config.epochs is None:
        return config
    if isinstance(config.data, ScenesDataConfig):
        pairs = config.data.train_images
    else:
        from eligo.patches.data.readers import read_captions

        pairs = sum(len(image.captions) for image in read_captions(config.data, "train"))
    steps = counted_steps(config.epochs, pairs, config.train)
    return config.replace({"train.total_steps": steps})
