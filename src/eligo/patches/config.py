"""Configs of `patches`: the retrieval model, its data and a training run. Imports no torch.

The training defaults are the recipe of LAPS and SEPS: AdamW, decay 1e-4, heads 2e-4 and pretrained
backbones a tenth of it, x 0.3 at epochs 9, 15, 20 and 25 of 30, clip 2, batch 128; in the first
epoch all violations, with the loss ramped from 0 to 1, then hardest negatives. Departure: the
checkpoint is chosen on the validation split, not on `test`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from eligo.config import Config
from eligo.scenes.config import SceneConfig
from eligo.train.config import SMOKE, SMOKE_BATCH, OptimizerConfig, ScheduleConfig, TrainConfig

_Deviation = Annotated[float, Field(gt=0)]


def _check_multiple(name: str, size: int, of: str, step: int) -> None:
    if size % step:
        raise ValueError(f"{name}: got {size}, expected a multiple of {step}, {of}")


class SmallVisionConfig(Config):
    """A ViT to train from scratch."""

    image_size: int = Field(default=168, ge=8)
    """Pixels per side; a multiple of patch_size."""
    patch_size: int = Field(default=12, ge=1)
    """Pixels per side of a patch."""
    width: int = Field(default=128, ge=4)
    """Width; a multiple of heads."""
    layers: int = Field(default=6, ge=1)
    """Layers."""
    heads: int = Field(default=4, ge=1)
    """Attention heads."""

    @model_validator(mode="after")
    def _check(self) -> "SmallVisionConfig":
        _check_multiple("image_size", self.image_size, "patch_size", self.patch_size)
        _check_multiple("width", self.width, "heads", self.heads)
        return self


class SmallTextConfig(Config):
    """A BERT to train from scratch, whose words are those of the scenes."""

    width: int = Field(default=128, ge=4)
    """Width; a multiple of heads."""
    layers: int = Field(default=2, ge=1)
    """Layers."""
    heads: int = Field(default=4, ge=1)
    """Attention heads."""

    @model_validator(mode="after")
    def _check(self) -> "SmallTextConfig":
        _check_multiple("width", self.width, "heads", self.heads)
        return self


class EncodersConfig(Config):
    """Images to patches and texts to words, all of one width."""

    vision: str | None = None
    """Folder or hub name of a ViT, Swin, DINOv2, CLIP or SigLIP; none: a small ViT from scratch."""
    text: str | None = None
    """Folder or hub name of a BERT or the like, of a text model of sentence-transformers, of a CLIP
    or SigLIP; none: a small BERT from scratch, for the scenes' words."""
    tokenizer: str | None = None
    """Fingerprint of a saved model's tokenizer, written on saving; none: not checked."""
    small_vision: SmallVisionConfig = SmallVisionConfig()
    """Sizes where vision is none."""
    small_text: SmallTextConfig = SmallTextConfig()
    """Sizes where text is none."""
    image_size: int | None = Field(default=None, ge=8)
    """Pixels per side of the input of a given vision model; none: its own image size."""
    image_mean: tuple[float, float, float] | None = None
    """Mean of each colour channel, subtracted; none: the vision model's own."""
    image_std: tuple[_Deviation, _Deviation, _Deviation] | None = None
    """Standard deviation of each colour channel; none: the vision model's own."""
    backbone_lr: float = Field(default=0.1, ge=0)
    """Learning rate of a given vision or text model, relative to the heads'."""
    vision_layer: tuple[int, ...] = Field(default=(-1,), min_length=1)
    """Hidden states of a given vision model that give the patches, concatenated; -1: the output of
    the last layer. Early layers know colours and edges, late ones what a thing is."""
    embed_dim: int = Field(default=512, ge=4)
    """Width of patches and words when they are matched."""
    head: Literal["linear", "mlp"] = "linear"
    """From the encoders' width to embed_dim: a linear layer, or one with a hidden layer beside it,
    behind a norm."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout in the hidden layer of the heads."""
    max_words: int = Field(default=64, ge=3)
    """Maximum word pieces of a text, special tokens included; longer texts are cut."""
    max_dense_words: int = Field(default=160, ge=3)
    """Maximum word pieces of a dense caption."""
    special_words: bool | None = None
    """Match special tokens such as [CLS] and [SEP] as words; none: only those of a BERT that is no
    model of sentence-transformers, as in LAPS and SEPS."""

    @field_validator("vision_layer", mode="before")
    @classmethod
    def _one_layer(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

    def without_effect(self) -> dict[str, str]:
        """Sizes of small encoders beside given ones, and settings of given ones without them."""
        unused = {}
        if self.vision is None:
            unused["image_size"] = "there is no given vision model; small_vision.image_size counts"
            unused["vision_layer"] = "there is no given vision model"
        else:
            unused["small_vision"] = "encoders.vision names a model"
        if self.text is None:
            unused["special_words"] = "the small text model always matches them"
        else:
            unused["small_text"] = "encoders.text names a model"
        if self.head == "linear":
            unused["dropout"] = "encoders.head is linear"
        if self.vision is None and self.text is None:
            unused["backbone_lr"] = "both encoders are trained from scratch"
        return unused


class MatchConfig(Config):
    """Matching of patches and words."""

    kind: Literal["global", "filip", "late", "open", "paper"] = "open"
    """global: cosine of means; filip: best patch of every word and best word of every patch; late:
    both added, with the patches that the text keeps; open: SEPS without equations 1, 3 and 4's
    second term (without dense text: LAPS); paper: SEPS."""
    dense: bool = False
    """Each image's dense caption guides the selection (open, paper)."""
    sparse_ratio: float = Field(default=0.5, gt=0, le=1)
    """Share of the patches that a text keeps; 1: all."""
    typicality: float = Field(default=-0.5, ge=-1, le=1)
    """Weight of a patch's similarity to the mean patch, beside its similarity to the text (late,
    open). Below 0 it favours what is unlike the rest; 1, as in LAPS, favours the background."""
    word_weights: bool = False
    """Learn how much every word counts, starting with equal weights (late)."""
    relevance: Literal["mean", "words"] = "words"
    """Rank patches by how close they come to the best patch of a word, so that no word loses its
    best one, or by their similarity to the mean word (late)."""
    aggr_ratio: float = Field(default=0.4, gt=0, le=1)
    """Tokens per kept patch."""
    top_k: int = Field(default=5, ge=1)
    """Best matches whose relevance is learned (paper)."""
    dual_aggr: bool = True
    """Fold both selections, with weights of their own (paper)."""
    beta: float = Field(default=0.25, ge=0, le=0.5)
    """Weight of the texts beside the patch's own score in equation 3 (paper)."""
    decision: Literal["topk", "bernoulli"] = "topk"
    """Keep an exact share, or draw patches in training so that the share is learned (paper)."""
    temperature: float = Field(default=1.0, gt=0)
    """Temperature of bernoulli's draws."""
    kernel: Literal["auto", "reference", "torch", "triton"] = "auto"
    """Implementation that computes the scores."""

    @model_validator(mode="after")
    def _check(self) -> "MatchConfig":
        if self.dense and self.kind not in ("open", "paper"):
            raise ValueError(f"dense: got true with kind {self.kind}, which selects no patches")
        if self.decision == "bernoulli" and self.kind != "paper":
            raise ValueError(f"decision: bernoulli needs kind paper, got {self.kind}")
        return self

    def without_effect(self) -> dict[str, str]:
        """Keys of the other kinds and decisions."""
        unused = {}
        if self.decision == "topk":
            unused["temperature"] = "match.decision is topk, not bernoulli"
        if self.kind not in ("late", "open"):
            unused["typicality"] = f"match.kind is {self.kind}"
        if self.kind != "late":
            keys = ("word_weights", "relevance")
            unused |= dict.fromkeys(keys, f"match.kind is {self.kind}")
        else:
            reason = "match.kind is late, which folds no patches"
            unused |= dict.fromkeys(("aggr_ratio", "kernel"), reason)
        if self.kind != "paper":
            unused |= dict.fromkeys(("top_k", "dual_aggr", "beta"), f"match.kind is {self.kind}")
        if self.kind in ("global", "filip"):
            reason = f"match.kind is {self.kind}, which selects no patches"
            unused |= dict.fromkeys(("sparse_ratio", "aggr_ratio", "kernel"), reason)
        return unused


class RetrievalConfig(Config):
    """A whole retrieval model."""

    encoders: EncodersConfig = EncodersConfig()
    """Images to patches, texts to words."""
    match: MatchConfig = MatchConfig()
    """Patches and words to scores."""


class ScenesDataConfig(Config):
    """Generated scenes, rendered on the device before the first step."""

    kind: Literal["scenes"] = "scenes"
    """Where images and captions come from."""
    scenes: SceneConfig = SceneConfig(height=168, width=168)
    """The scenes; their size must be the vision encoder's."""
    train_images: int = Field(default=65536, ge=1)
    """Number of training scenes."""
    validation_images: int = Field(default=512, ge=1)
    """Number of validation scenes, which choose the checkpoint."""
    captions_per_image: int = Field(default=4, ge=1)
    """Sparse captions drawn for every scene."""
    captions_per_step: int = Field(default=2, ge=1)
    """Captions of each scene in a step."""

    @model_validator(mode="after")
    def _check(self) -> "ScenesDataConfig":
        if self.captions_per_step > self.captions_per_image:
            raise ValueError(
                f"captions_per_step: got {self.captions_per_step}, expected at most "
                f"captions_per_image, {self.captions_per_image}"
            )
        return self


class KarpathyDataConfig(Config):
    """Captioned images with a Karpathy split: Flickr30K, COCO, or your own in the same format."""

    kind: Literal["karpathy"] = "karpathy"
    """Where images and captions come from."""
    captions: Path
    """The JSON file: dataset_flickr30k.json, dataset_coco.json."""
    images: Path
    """Folder of the images."""
    dense: Path | None = None
    """JSON lines with a dense caption for every image; {split} in it stands for the split."""
    validation_images: int | None = Field(default=None, ge=1)
    """The checkpoint is chosen on the first images of split val; none: on all of them."""
    augment: bool = True
    """Crop images and change word pieces in training."""
    flip: bool = True
    """Also mirror images; turn off if captions mention left and right."""
    num_workers: int | None = Field(default=None, ge=0)
    """Worker processes that read images; none: as many as the cores allow."""
    cache: Path | None = None
    """Folder of stored features: frozen encoders run once for every image and text, also over
    several runs. Needs augment false and encoders.backbone_lr 0."""
    cache_dtype: Literal["float16", "float32"] = "float16"
    """Precision of the stored features."""
    cache_mirrored: bool = False
    """Store mirrored training images, too; half of the examples take them, unless the caption says
    left or right."""
    cache_memory_gb: float = Field(default=8.0, ge=0)
    """Features up to this size are copied to the GPU's memory; larger ones are read from disk."""

    @model_validator(mode="after")
    def _check(self) -> "KarpathyDataConfig":
        if self.cache is not None and self.augment:
            raise ValueError(
                "augment: got true with data.cache, but stored features are those of unchanged "
                "images and texts; expected --data.no_augment (augment: false), or no data.cache"
            )
        return self

    def without_effect(self) -> dict[str, str]:
        """Mirroring without augmentation; settings of the cache without one."""
        unused = {} if self.augment else {"flip": "data.augment is false"}
        if self.cache is None:
            keys = ("cache_dtype", "cache_mirrored", "cache_memory_gb")
            unused |= dict.fromkeys(keys, "data.cache is not given")
        return unused


DataConfig = Annotated[ScenesDataConfig | KarpathyDataConfig, Field(discriminator="kind")]


class PatchesTrainConfig(Config):
    """One training run."""

    task: Literal["patches.train"] = "patches.train"
    """Task of this config."""
    train: TrainConfig = TrainConfig(batch_size=128, clip_norm=2.0, monitor="rsum", mode="max")
    """Training loop."""
    model: RetrievalConfig = RetrievalConfig()
    """Model to train."""
    data: DataConfig = ScenesDataConfig()
    """Training data."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the training pairs; sets train.total_steps. None: train.total_steps counts."""
    optimizer: OptimizerConfig = OptimizerConfig(
        lr=2e-4,
        weight_decay=1e-4,
        schedule=ScheduleConfig(
            kind="milestones", milestones=(9 / 30, 15 / 30, 20 / 30, 25 / 30), gamma=0.3
        ),
    )
    """Optimiser; pretrained backbones use encoders.backbone_lr times its rate."""
    loss: Literal["triplet", "contrastive"] = "triplet"
    """triplet: a margin, as in LAPS and SEPS; contrastive: InfoNCE both ways, with a learned scale
    of the scores."""
    margin: float = Field(default=0.2, gt=0)
    """Margin between the scores of a true and a false pair."""
    ramp: float = Field(default=1 / 30, ge=0, le=1)
    """Share of all steps in which the loss grows from 0 to 1."""
    hardest_after: float = Field(default=1 / 30, ge=0, le=1)
    """Share of all steps in which every violation counts; then the hardest negatives only."""
    ratio_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss on the share of kept patches (match.decision bernoulli)."""
    centre_heads: bool = False
    """Start with heads that map the median patch and word of a batch to zero, and pull the median
    patch back to zero in every step. Otherwise all background patches point one way, s_im is
    highest there, and the background is kept instead of the objects."""
    see_steps: int = Field(default=0, ge=0)
    """First steps that train the vision encoder to classify each patch (scenes only)."""

    @model_validator(mode="after")
    def _check(self) -> "PatchesTrainConfig":
        if self.train.gradient_accumulation > 1:
            raise ValueError(
                f"train.gradient_accumulation: got {self.train.gradient_accumulation}, expected 1: "
                "negatives come from the whole batch; use more processes instead"
            )
        if self.train.batch_size < 2:
            raise ValueError(
                f"train.batch_size: got {self.train.batch_size}, expected at least 2: the other "
                "texts of a batch are the negatives of an image"
            )
        if self.ratio_weight and self.model.match.decision == "topk":
            raise ValueError(
                f"ratio_weight: got {self.ratio_weight} with model.match.decision topk, which "
                "keeps an exact share; expected 0, or decision bernoulli"
            )
        if isinstance(self.data, ScenesDataConfig):
            _check_scenes(self.data.scenes, self.model.encoders)
            if self.see_steps > self.train.total_steps:
                raise ValueError(f"see_steps: got {self.see_steps}, more than train.total_steps")
            return self
        if self.see_steps:
            raise ValueError("see_steps: only scenes have patch labels; expected 0")
        if self.model.match.dense and self.data.dense is None:
            raise ValueError("model.match.dense needs data.dense, a file of dense captions")
        if self.data.cache is not None:
            _check_frozen(self.model.encoders)
        return self

    def without_effect(self) -> dict[str, str]:
        """Settings of dense captions or the other loss; `counted_steps` reports total_steps."""
        unused = {}
        if self.loss == "contrastive":
            keys = ("margin", "ramp", "hardest_after")
            unused |= dict.fromkeys(keys, "loss is contrastive")
        if not self.model.match.dense:
            keys = ("model.encoders.max_dense_words", "data.dense")
            unused |= dict.fromkeys(keys, "model.match.dense is false")
        return unused

    def build(self) -> Any:
        """Build the task for the training loop."""
        from eligo.patches.training.task import PatchesTask, with_counted_steps

        return PatchesTask(with_counted_steps(self))

    def smoke(self) -> "PatchesTrainConfig":
        """Return a run of two steps; for scenes also with small scenes and encoders."""
        if isinstance(self.data, ScenesDataConfig):
            return self.tiny()
        changes = {
            "data.validation_images": min(8, self.data.validation_images or 8), "epochs": None,
            "data.cache": None,  # two steps need few of the features
            "train.batch_size": min(SMOKE_BATCH, self.train.batch_size),
        }  # fmt: skip
        return self.replace(SMOKE | changes)

    def tiny(self) -> "PatchesTrainConfig":
        """Return the same run on a few small scenes, with small random encoders."""
        small = {"width": 16, "layers": 1, "heads": 2}
        data = ScenesDataConfig(
            scenes=SceneConfig(height=56, width=56), train_images=16, validation_images=8
        )
        return self.replace(
            {
                "train.total_steps": 4, "train.batch_size": 4, "train.evaluate_every": 2,
                "train.checkpoint_every": 4, "train.log_every": 1, "train.precision": "no",
                "train.init_from": None, "epochs": None, "see_steps": min(self.see_steps, 2),
                "ramp": 0.25, "hardest_after": 0.5,
                "data": data.model_dump(),
                "model.encoders": {
                    "vision": None, "text": None, "image_size": None,
                    "small_vision": {"image_size": 56, "patch_size": 4, **small},
                    "small_text": small, "embed_dim": 16,
                },
            }
        )  # fmt: skip


def _check_frozen(encoders: EncodersConfig) -> None:
    if encoders.vision is None or encoders.text is None:
        raise ValueError(
            "data.cache: needs pretrained encoders, model.encoders.vision and model.encoders.text; "
            "encoders from scratch are trained, so their features change"
        )
    if encoders.backbone_lr:
        raise ValueError(
            f"data.cache: got a folder with model.encoders.backbone_lr {encoders.backbone_lr}, "
            "but features of encoders that are trained change; expected "
            "--model.encoders.backbone_lr 0, or no data.cache"
        )


def _check_scenes(scenes: SceneConfig, encoders: EncodersConfig) -> None:
    size = encoders.small_vision.image_size if encoders.vision is None else encoders.image_size
    if size is not None and (scenes.height, scenes.width) != (size, size):
        raise ValueError(
            f"data.scenes: got {scenes.height} x {scenes.width} pixels, expected "
            f"{size} x {size}, the size of the vision encoder's images"
        )
    if encoders.text is not None:
        raise ValueError(
            f"model.encoders.text: got {encoders.text} with generated scenes, whose captions are "
            "pieces of the small text model; expected none, or your own captions: data.kind "
            "karpathy, data.captions and data.images"
        )
    if encoders.max_words < 16:
        raise ValueError(f"max_words: got {encoders.max_words}; the scenes' captions need 16")
