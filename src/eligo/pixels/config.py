"""Every config of the pixels family: network, words, images and files, training run.

No torch is imported here. `SIZES` and `PRESETS` are changes of a `PixelsConfig`: the network sizes
of DFormerv2, and the seven ways to compare pixels and words of the temperature study.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from eligo.config import Config, Layer
from eligo.config.bounds import Seed
from eligo.config.layers import FLAG, override
from eligo.errors import ConfigError
from eligo.scenes.config import ROOMS, SceneConfig
from eligo.train.config import SMOKE, SMOKE_BATCH, OptimizerConfig, ScheduleConfig, TrainConfig

MIN_SIZE = 32
"""Minimum height and width of an image: the stride of the last stage."""
IGNORED = 255
"""Label of pixels that count neither in the loss nor in the metrics."""

Four = tuple[int, int, int, int]
LayerScales = tuple[float | None, float | None, float | None, float | None]


# ---- The network


def _check_stages(stages: tuple[int, ...], first: int) -> None:
    if list(stages) != sorted(set(stages)) or any(not first <= stage <= 3 for stage in stages):
        raise ValueError(f"stages: expected rising stages from {first} to 3")


class EncoderConfig(Config):
    """The DFormerv2 encoder: four stages at strides 4, 8, 16 and 32 (default: size S)."""

    dims: Four = (64, 128, 256, 512)
    """Width of each stage."""
    depths: Four = (3, 4, 18, 4)
    """Blocks of each stage."""
    heads: Four = (4, 4, 8, 16)
    """Attention heads of each stage."""
    ranges: tuple[float, float, float, float] = (4, 4, 6, 6)
    """Spread of the decay rates over the heads of each stage."""
    ffn_ratios: Four = (4, 4, 3, 3)
    """Hidden width of the feed-forward network of each stage, as a multiple of its width."""
    layer_scale: LayerScales = (None, None, None, None)
    """Initial LayerScale of each stage's residual branches; none: no LayerScale."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """Drop-path rate of the last block; rises linearly from 0 at the first."""
    depth_stem: bool = False
    """Add a learned projection of the depth to the RGB image; it starts at zero."""

    @model_validator(mode="after")
    def _check(self) -> "EncoderConfig":
        if self.dims[0] % 2:
            raise ValueError(f"dims: got {self.dims[0]} first, expected an even number")
        for stage, (dim, depth, heads) in enumerate(
            zip(self.dims, self.depths, self.heads, strict=True)
        ):
            if depth < 1 or heads < 1 or dim % (2 * heads):
                raise ValueError(
                    f"stage {stage}: got {depth} blocks and width {dim} for {heads} heads; expected"
                    " at least one block, and an even width for every head"
                )
        return self


class SideConfig(Config):
    """How pixels and words are compared in the encoder or the decoder."""

    use_cosine: bool = False
    """Cosine similarity, s cos(q, k), rather than dot products, s <q, k> / sqrt(d)."""
    learnable_temp: bool = False
    """Learn the multiplier s of the logits; else it keeps its initial value."""
    logit_init: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Initial multiplier s (not its logarithm): 1 / temperature."""

    @property
    def similarity(self) -> Literal["cosine", "dot"]:
        """The similarity as `SimilarityScale` names it."""
        return "cosine" if self.use_cosine else "dot"


def _others(side: SideConfig) -> list[str]:
    return [name for name in type(side).model_fields if name != "stages"]


class EncoderSideConfig(SideConfig):
    """Words in the encoder: on the attention branch of every block of some stages."""

    stages: tuple[int, ...] = (1, 2, 3)
    """Stages with words, of 0-3; none: no words in the encoder."""
    groups: Four = (2, 2, 4, 2)
    """How many successive blocks of each stage share one module."""

    @model_validator(mode="after")
    def _check(self) -> "EncoderSideConfig":
        _check_stages(self.stages, first=0)
        if min(self.groups) < 1:
            raise ValueError("groups: expected at least one block for every module")
        return self

    def without_effect(self) -> dict[str, str]:
        """Everything else, without stages."""
        return {} if self.stages else dict.fromkeys(_others(self), "sam.encoder.stages is empty")


class DecoderSideConfig(SideConfig):
    """Words in the head: one module at each of some levels."""

    use_cosine: bool = True
    """Cosine similarity, s cos(q, k), rather than dot products, s <q, k> / sqrt(d)."""
    learnable_temp: bool = True
    """Learn the multiplier s of the logits; else it keeps its initial value."""
    logit_init: float = Field(default=14.285714, gt=0, allow_inf_nan=False)
    """Initial multiplier s (not its logarithm): 1 / temperature."""
    stages: tuple[int, ...] = (1, 2, 3)
    """Levels with words, of 1-3; none: no words in the decoder."""
    top_m: int | None = Field(default=None, ge=1)
    """Words that each pixel and head may attend to; none: all."""

    @model_validator(mode="after")
    def _check(self) -> "DecoderSideConfig":
        _check_stages(self.stages, first=1)
        return self

    def without_effect(self) -> dict[str, str]:
        """Everything else, without stages."""
        return {} if self.stages else dict.fromkeys(_others(self), "sam.decoder.stages is empty")


class SamConfig(Config):
    """The Semantic Alignment Module: where and how words guide pixels."""

    form: Literal["gated", "legacy"] = "gated"
    """gated: an exact identity without words; legacy: the original, for its weights."""
    encoder: EncoderSideConfig = EncoderSideConfig()
    """Words in the encoder."""
    decoder: DecoderSideConfig = DecoderSideConfig()
    """Words in the head."""
    legacy_text_mask: bool = False
    """Treat zero vectors as padding, as the original does (legacy only)."""

    @model_validator(mode="after")
    def _check(self) -> "SamConfig":
        if self.form == "legacy":
            return self
        if self.legacy_text_mask:
            raise ValueError("legacy_text_mask: expected form: legacy with it")
        for side in ("encoder", "decoder"):
            config: SideConfig = getattr(self, side)
            if config.learnable_temp and not 0.01 <= config.logit_init <= 100:
                raise ValueError(
                    f"{side}.logit_init: got {config.logit_init}, expected a learnable multiplier "
                    "to start within its bounds, 0.01 to 100"
                )
        return self


class HeadConfig(Config):
    """The Hamburger head."""

    channels: int = Field(default=512, ge=1)
    """Width of the head."""
    ham_channels: int = Field(default=512, ge=1)
    """Width of the factorised matrix."""
    rank: int = Field(default=64, ge=1)
    """Number of bases."""
    train_steps: int = Field(default=6, ge=1)
    """Multiplicative updates in training."""
    eval_steps: int = Field(default=7, ge=1)
    """Multiplicative updates in evaluation."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of channels before the classifier."""
    bases_seed: Seed = 0
    """Seed of the initial bases in evaluation; training draws new ones in every step."""


class PixelsConfig(Config):
    """RGB-D segmentation guided by words."""

    num_classes: int = Field(default=40, ge=2)
    """Number of classes."""
    text_dim: int = Field(default=512, ge=1)
    """Width of the text encoder's vectors."""
    encoder: EncoderConfig = EncoderConfig()
    """The encoder; default: DFormerv2-S."""
    sam: SamConfig = SamConfig()
    """Where and how words guide pixels."""
    head: HeadConfig = HeadConfig()
    """The head."""


_SCALED = (None, None, 1e-6, 1e-6)
SIZES: dict[str, dict[str, Any]] = {
    "S": {},
    "B": {
        "encoder.dims": (80, 160, 320, 512),
        "encoder.depths": (4, 8, 25, 8),
        "encoder.heads": (5, 5, 10, 16),
        "encoder.ranges": (5, 5, 6, 6),
        "encoder.layer_scale": _SCALED,
    },
    "L": {
        "encoder.dims": (112, 224, 448, 640),
        "encoder.depths": (4, 8, 25, 8),
        "encoder.heads": (7, 7, 14, 20),
        "encoder.ranges": (6, 6, 6, 6),
        "encoder.layer_scale": _SCALED,
        "sam.encoder.groups": (2, 2, 8, 4),
    },
    "small": {
        "encoder.dims": (32, 64, 96, 128),
        "encoder.depths": (1, 1, 3, 1),
        "encoder.heads": (2, 2, 3, 4),
        "head.channels": 128,
        "head.ham_channels": 128,
        "head.rank": 16,
    },
}
"""Changes of the default config (which is S), by the name of the size."""


_COSINE, _DOT = 14.285714, 1.0


def _side(side: str, use_cosine: bool, learnable_temp: bool) -> dict[str, Any]:
    return {
        f"sam.{side}.use_cosine": use_cosine,
        f"sam.{side}.learnable_temp": learnable_temp,
        f"sam.{side}.logit_init": _COSINE if use_cosine else _DOT,
    }


# 1-4 are the presets of the temperature study's design; 5 and 6 complete the grid, 0 has no words.
PRESETS: dict[int, dict[str, Any]] = {
    0: {"sam.decoder.stages": (), "sam.encoder.stages": ()},
    1: _side("decoder", True, True) | _side("encoder", False, False),
    2: _side("decoder", True, True) | _side("encoder", True, True),
    3: _side("decoder", False, False) | _side("encoder", False, False),
    4: _side("decoder", False, False) | _side("encoder", True, True),
    5: _side("decoder", True, False) | _side("encoder", True, False),
    6: _side("decoder", False, True) | _side("encoder", False, True),
}
"""Changes of a config, over the YAML file and under the flags, by the preset's number; 1 is the
default."""


# ---- Words

WordSource = Literal["none", "tags", "labels", "captions", "both"]


class ClipTextConfig(Config):
    """A frozen CLIP text model with its projection."""

    kind: Literal["clip"] = "clip"
    """Kind of text encoder."""
    model: str = "openai/clip-vit-base-patch16"
    """Folder or hub name of the model."""
    cache: Path | None = None
    """A safetensors file that keeps vectors between runs; none: no cache."""


class TableTextConfig(Config):
    """Precomputed vectors, by name."""

    kind: Literal["table"] = "table"
    """Kind of text encoder."""
    file: Path
    """A safetensors file with one vector per name."""


class WordsTextConfig(Config):
    """The vocabulary of the generated scenes: a fixed random unit vector for each word."""

    kind: Literal["words"] = "words"
    """Kind of text encoder."""
    dim: int = Field(default=512, ge=1)
    """Width of the vectors."""
    seed: Seed = 0
    """Seed of the random vectors."""


AnyTextEncoderConfig = Annotated[
    ClipTextConfig | TableTextConfig | WordsTextConfig, Field(discriminator="kind")
]


class TextConfig(Config):
    """The words of an image, and their text encoder."""

    source: WordSource = "tags"
    """none; tags: those of the image (alias imglabels); labels: all class names, for every image;
    captions: sentences about the image; both: tags, then captions."""
    max_tags: int = Field(default=6, ge=1)
    """Maximum number of tags per image; further ones are ignored."""
    max_captions: int = Field(default=10, ge=1)
    """Maximum number of captions per image; further ones are ignored."""
    encoder: AnyTextEncoderConfig = ClipTextConfig()
    """The text encoder."""

    @field_validator("source", mode="before")
    @classmethod
    def _alias(cls, source: object) -> object:
        return "tags" if source == "imglabels" else source

    @property
    def kinds(self) -> tuple[Literal["tags", "captions"], ...]:
        """Kinds of words that belong to single images; an image needs one of them."""
        kinds = ("tags", "captions")
        return tuple(kind for kind in kinds if self.source in (kind, "both"))

    def without_effect(self) -> dict[str, str]:
        """Limits of words that the source does not have, and the text encoder without words."""
        limits = {"tags": "max_tags", "captions": "max_captions"}
        unused = [key for kind, key in limits.items() if kind not in self.kinds]
        unused += ["encoder"] if self.source == "none" else []
        return dict.fromkeys(unused, f"text.source is {self.source}")

    def num_words(self, num_classes: int) -> int:
        """Number of words that every image is padded to."""
        tags, captions = self.max_tags, self.max_captions
        counts = {"none": 0, "tags": tags, "labels": num_classes, "captions": captions}
        return {**counts, "both": tags + captions}[self.source]


# ---- Images and files

DepthFormat = Literal["png8", "metric", "sun16", "none"]
ChannelOrder = Literal["rgb", "bgr"]


class InputsConfig(Config):
    """How image files become network inputs; stored with a model."""

    channel_order: ChannelOrder = "rgb"
    """Channel order of the network input; official NYU weights expect bgr."""
    depth: DepthFormat = "metric"
    """png8: 8 bits, 0 is a value; metric: metres times depth_scale, 0 is unknown; sun16: 16 bits as
    SUN RGB-D stores millimetres; none: the network gets no depth."""
    depth_scale: float = Field(default=1000.0, gt=0)
    """Stored units per metre, for metric depth; JSON lines may give another one for an image."""
    resize_depth: bool = False
    """Resize depth of another size than its image, with nearest neighbours. It must show exactly
    what the image shows."""
    size: tuple[int, int] | None = None
    """Height and width that every image is scaled to, with its depth and labels; none: its own."""

    @model_validator(mode="after")
    def _check(self) -> "InputsConfig":
        if self.size is not None and min(self.size) < MIN_SIZE:
            raise ValueError(f"size: got {self.size}, expected at least {MIN_SIZE} x {MIN_SIZE}")
        return self

    def without_effect(self) -> dict[str, str]:
        """The scale of other kinds of depth, and everything without depth."""
        reason = f"inputs.depth is {self.depth}"
        unused = {} if self.depth == "metric" else {"depth_scale": reason}
        return unused | ({"resize_depth": reason} if self.depth == "none" else {})


class AugmentConfig(Config):
    """Augmentation of training images."""

    mirror: bool = True
    """Mirror half of the images."""
    scales: tuple[float, ...] = ()
    """Scale factors to draw from; none: no scaling."""
    crop: tuple[int, int] | None = None
    """Height and width of a random crop, padded where needed; none: the whole image."""

    @model_validator(mode="after")
    def _check(self) -> "AugmentConfig":
        if any(scale <= 0 for scale in self.scales):
            raise ValueError(f"scales: got {self.scales}, expected numbers above 0")
        if self.scales and self.crop is None:
            raise ValueError("scales: give crop too, so that all images have one size")
        if self.crop is not None and min(self.crop) < 32:
            raise ValueError(f"crop: got {self.crop}, expected at least 32 x 32")
        return self


class ScenesDataConfig(Config):
    """Generated rooms, rendered on the device before the first step."""

    kind: Literal["scenes"] = "scenes"
    """Kind of data."""
    scenes: SceneConfig = ROOMS
    """How scenes are generated."""
    train_images: int = Field(default=4000, ge=1)
    """Training scenes."""
    validation_images: int = Field(default=500, ge=1)
    """Validation scenes, which choose the checkpoint."""
    test_images: int = Field(default=500, ge=1)
    """Test scenes, with attribute pairs that no training scene has."""
    sensor: bool = False
    """Simulate a depth sensor, with noise and holes."""
    tags: Literal["oracle", "predicted"] = "oracle"
    """Training tags: the ground truth, or a simulated tagger of this precision and recall."""
    precision: float = Field(default=0.9, gt=0, le=1)
    """Precision of the simulated tagger."""
    recall: float = Field(default=0.9, ge=0, le=1)
    """Recall of the simulated tagger."""
    phrases: tuple[int, ...] = (16,)
    """Numbers of phrases to draw from at each step (binding scenes)."""

    @model_validator(mode="after")
    def _check(self) -> "ScenesDataConfig":
        needed = self.scenes.max_objects + self.scenes.camouflaged
        if self.scenes.binding and not (
            self.phrases and all(needed <= count <= 32 for count in self.phrases)
        ):
            raise ValueError(
                f"phrases: got {self.phrases}, expected numbers from {needed} (a phrase for each "
                "object) to 32; lower scenes.max_objects for fewer"
            )
        if self.scenes.binding and self.tags == "predicted":
            raise ValueError("tags: binding scenes have no tagger; expected oracle")
        return self

    def without_effect(self) -> dict[str, str]:
        """Phrases without binding scenes."""
        return {} if self.scenes.binding else {"phrases": "data.scenes.binding is false"}


class FilesConfig(Config):
    """Images on disk."""

    label_offset: int = Field(default=1, ge=0)
    """Number of the first class in the label files; the others follow in order."""
    ignore_index: int | None = 0
    """Number of pixels without a label in the label files; none: every pixel has one."""
    words: Path | None = None
    """JSON lines with id, tags and captions of every image; joined by exact id."""
    words_are: Literal["predicted", "oracle"] = "predicted"
    """predicted: by a tagger or person from the image; oracle: from the labels."""
    allow_missing_words: bool = False
    """Accept images without words, and log how many have some."""
    validation_share: float = Field(default=0.1, gt=0, lt=1)
    """Share of the training images held out to choose the checkpoint."""
    validation_seed: Seed = 0
    """Seed of the choice of these images."""
    validation_block: int = Field(default=1, ge=1)
    """Neighbouring images, in the order of their ids, that are held out together: successive frames
    show the same room."""
    in_memory: bool = False
    """Decode all images once and keep them on the device, which is also where they are augmented;
    all must have one size."""
    num_workers: int | None = Field(default=None, ge=0)
    """Worker processes that read images; none: as many as the cores allow."""

    @model_validator(mode="after")
    def _check_labels(self) -> "FilesConfig":
        if self.ignore_index == self.label_offset:
            raise ValueError(
                f"ignore_index: got {self.ignore_index}, which is the first class (label_offset); "
                "expected another number, such as 255, or none"
            )
        return self


class RoomsDataConfig(FilesConfig):
    """Folders RGB/, Depth/ and Label/ (or labels/), with train.txt and test.txt."""

    root: Path
    """The folder of the data set."""
    classes: Path | None = None
    """A text file with one class name per line; none: the data set's standard names."""


class NyuDataConfig(RoomsDataConfig):
    """NYUDepthv2: 795 and 654 images, 40 classes."""

    kind: Literal["nyu"] = "nyu"
    """Kind of data."""


class SunDataConfig(RoomsDataConfig):
    """SUN RGB-D: 5285 and 5050 images, 37 classes."""

    kind: Literal["sun"] = "sun"
    """Kind of data."""


class JsonlDataConfig(FilesConfig):
    """Your own images: JSON lines with id, image, depth, label, tags, captions, and perhaps group
    (a sequence, which validation images are not torn from) and depth_scale."""

    kind: Literal["jsonl"] = "jsonl"
    """Kind of data."""
    train: Path
    """JSON lines of the training images; paths are relative to this file."""
    validation: Path | None = None
    """JSON lines of the validation images; none: a share of the training images."""
    test: Path | None = None
    """JSON lines of the test images."""
    classes: Path
    """A text file with one class name per line."""

    def without_effect(self) -> dict[str, str]:
        """The choice of validation images, if they have a file."""
        keys = ("validation_share", "validation_seed", "validation_block")
        return dict.fromkeys(keys, "data.validation is given") if self.validation else {}


FilesDataConfig = NyuDataConfig | SunDataConfig | JsonlDataConfig
DataConfig = Annotated[
    ScenesDataConfig | NyuDataConfig | SunDataConfig | JsonlDataConfig, Field(discriminator="kind")
]


# ---- A model and its training


class SegmenterConfig(PixelsConfig):
    """A network with its class names, words and inputs: what a model folder stores."""

    classes: tuple[str, ...] = ()
    """Names of the classes, in order; filled in by training."""
    image_size: tuple[int, int] | None = None
    """Height and width of the training images, if all have one size; filled in by training."""
    label_offset: int | None = None
    """Number of the first class in the label files of the training; filled in by training."""
    words_are: Literal["predicted", "oracle"] | None = None
    """Where the words of the training came from (data.words_are); filled in by training."""
    text: TextConfig = TextConfig()
    """Words of an image, and the text encoder."""
    text_probe: tuple[float, ...] | None = None
    """First numbers of a fixed sentence's vector, filled in by training, to detect another text
    encoder under the same name. None: not checked."""
    inputs: InputsConfig = InputsConfig()
    """How image files become network inputs."""

    @property
    def guided(self) -> bool:
        """Whether words reach the network."""
        return self.text.source != "none" and bool(
            self.sam.encoder.stages or self.sam.decoder.stages
        )

    @model_validator(mode="after")
    def _check_classes(self) -> "SegmenterConfig":
        if self.classes and len(self.classes) != self.num_classes:
            raise ValueError(
                f"num_classes: got {self.num_classes}, expected {len(self.classes)}, the number of "
                "class names"
            )
        return self


class PixelsTrainConfig(SegmenterConfig):
    """A training run; the defaults are the recipe for NYUDepthv2.

    The checkpoint is chosen on held-out training images; the original code uses the test images.
    """

    task: Literal["pixels.train"] = "pixels.train"
    """Kind of run."""
    preset: int | None = None
    """How pixels and words are compared: preset 0-6 of the temperature study. It overrides the
    file, flags override it; the run saves the resulting values."""
    train: TrainConfig = TrainConfig(batch_size=16, monitor="miou", mode="max")
    """The training loop."""
    data: DataConfig
    """The training data."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the training images; sets train.total_steps. None: use train.total_steps."""
    optimizer: OptimizerConfig = OptimizerConfig(
        lr=6e-5, weight_decay=0.01, schedule=ScheduleConfig(kind="poly", warmup=0.02, power=0.9)
    )
    """Scales and prior weights learn at ten times its rate, gates at gate_rate times."""
    augment: AugmentConfig = AugmentConfig()
    """Augmentation of training images."""
    text_dropout: float = Field(default=0.2, ge=0, le=1)
    """Share of training images that lose all words."""
    word_dropout: float = Field(default=0.0, ge=0, le=1)
    """Share of the others that lose some words (each word with a probability drawn per image), so
    that the model does not treat unnamed classes as absent."""
    text_shuffle: float = Field(default=0.0, ge=0, le=1)
    """Share of training images that get the words of another image of the batch, so that wrong
    words do less harm."""
    depth_dropout: float = Field(default=0.0, ge=0, le=1)
    """Share of training images that lose their depth, so that the model also works without it."""
    gate_start: float | None = Field(default=None, gt=0)
    """Initial gates of the alignment (gated form); none: 1e-3, which hardly changes a pretrained
    encoder. From scratch 0.3 is better: little gradient passes a closed gate."""
    gate_rate: float = Field(default=10.0, gt=0)
    """Learning-rate multiplier of the gates. With a large gate_start, use a low one: otherwise the
    gates close before the network has learned to use the words."""
    compile: bool = False
    """Compile the network for training (useful on a GPU)."""

    @classmethod
    def translated(cls, layer: Layer) -> Layer:
        """Return the layer with the preset's values, which override files but not flags."""
        tree = {key: value for key, value in layer.tree.items() if key != "preset"}
        number = layer.tree.get("preset")
        base = Layer(tree, layer.origins, layer.height)
        if number is None:
            return base
        if number not in PRESETS:
            where = layer.where(("preset",))
            raise ConfigError(f"{where}got {number!r}, expected one of 0 to {max(PRESETS)}")
        given = {
            ".".join(path): _at(tree, path)
            for path, (_, origin) in layer.origins.items()
            if origin == FLAG and path and path != ("preset",)
        }
        rank = layer.origins.get(("preset",), (0, ""))[0]
        changed = override(override(base, PRESETS[number]), given)
        set_by = {
            path: (rank, layer.where(("preset",)).removesuffix(": "))
            for path in (tuple(key.split(".")) for key in PRESETS[number])
            if ".".join(path) not in given
        }
        return Layer(changed.tree, {**changed.origins, **set_by}, changed.height, changed.below)

    @model_validator(mode="after")
    def _check(self) -> "PixelsTrainConfig":
        if not isinstance(self.data, ScenesDataConfig):
            return self
        if self.guided and self.text.encoder.kind != "words":
            raise ValueError(
                f"text.encoder.kind: got {self.text.encoder.kind}, expected words: scenes have "
                "a vocabulary of their own"
            )
        if self.guided and self.text.source not in ("tags", "labels"):
            raise ValueError(
                f"text.source: got {self.text.source}, expected tags, labels or none: "
                "generated rooms have no captions"
            )
        if self.augment.scales or self.augment.crop:
            raise ValueError("augment: scenes are only mirrored; expected no scales and no crop")
        if self.inputs.size is not None:
            raise ValueError("inputs.size: scenes have data.scenes.height and width; expected none")
        return self

    def without_effect(self) -> dict[str, str]:
        """Settings of words and depth that do not reach the network; see also `counted_steps`."""
        unused = {}
        if not self.guided:
            keys = ("text_dropout", "word_dropout", "text_shuffle", "gate_start", "gate_rate")
            unused |= dict.fromkeys(keys, "no words reach the network")
        if self.text.source == "none":
            names = ("use_cosine", "learnable_temp", "logit_init")
            keys = [f"sam.{side}.{name}" for side in ("encoder", "decoder") for name in names]
            unused |= dict.fromkeys(keys, "text.source is none")
        if self.guided and self.sam.form == "legacy":
            unused["gate_start"] = "sam.form is legacy"
        if self.inputs.depth == "none":
            unused["depth_dropout"] = "inputs.depth is none"
        return unused

    def build(self) -> Any:
        """Return the task for the training loop."""
        from eligo.pixels.training.task import PixelsTask

        return PixelsTask(self)

    def smoke(self) -> "PixelsTrainConfig":
        """Return a two-step run on the same files; for scenes, `tiny()`."""
        if isinstance(self.data, ScenesDataConfig):
            return self.tiny()
        changes = {
            "data.validation_share": 1e-9, "data.validation_block": 1,  # one image
            "data.in_memory": False, "epochs": None, "compile": False,
            "train.batch_size": min(SMOKE_BATCH, self.train.batch_size),
            "train.gradient_accumulation": 1,
        }  # fmt: skip
        return self.replace(SMOKE | changes)

    def tiny(self) -> "PixelsTrainConfig":
        """Return the same run on a few small rooms, with a tiny network."""
        rooms = ROOMS.replace({"height": 48, "width": 64})
        data = ScenesDataConfig(scenes=rooms, train_images=8, validation_images=4, test_images=4)
        source = self.text.source if self.text.source in ("none", "labels") else "tags"
        return self.replace(
            {
                **SIZES["small"],
                "encoder.dims": (8, 16, 24, 32), "encoder.layer_scale": (None,) * 4,
                "encoder.ranges": (4, 4, 6, 6),
                "head.channels": 16, "head.ham_channels": 16, "head.rank": 4,
                "num_classes": 14, "text_dim": 16, "classes": (),
                "text": {"source": source, "max_tags": 14,
                         "encoder": {"kind": "words", "dim": 16}},
                "data": data.model_dump(), "epochs": None,
                "inputs.depth": "metric", "inputs.depth_scale": 1000.0, "inputs.size": None,
                "augment.scales": (), "augment.crop": None,
                "train.total_steps": 4, "train.batch_size": 4, "train.evaluate_every": 2,
                "train.checkpoint_every": 4, "train.log_every": 1, "train.precision": "no",
                "train.init_from": None, "compile": False,
            }
        )  # fmt: skip


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree
