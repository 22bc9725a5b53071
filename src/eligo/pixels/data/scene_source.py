"""Generated rooms, rendered once on the training device and batched by indexing.

Words of plain rooms are class names (of twins, the name that the room uses); those of binding rooms
are phrases that tie appearances to nonce classes. No step synchronises with the device.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from eligo.errors import InputError
from eligo.pixels.config import AugmentConfig, InputsConfig, ScenesDataConfig, TextConfig
from eligo.pixels.data.augment import mirror_some
from eligo.pixels.data.batch import Batch, ImageSource
from eligo.pixels.data.pictures import normalise_metres, normalise_rgb
from eligo.pixels.data.records import Split
from eligo.pixels.text.batch import Provenance, TextBatch
from eligo.pixels.text.encoders import WordsEncoder
from eligo.scenes.graph import draw_scenes
from eligo.scenes.painter import Rendered, label_names, render_all
from eligo.scenes.phrases import WORD_ID
from eligo.scenes.tags import Tags, binding_tags, class_tags, swap_twins
from eligo.train import epoch_rows
from eligo.train.rng import mix


class SceneSet:
    """Rendered scenes with their tags."""

    def __init__(self, config: ScenesDataConfig, rendered: Rendered) -> None:
        self.config, self.rendered = config, rendered
        self._tags: dict[tuple[Provenance, int], Tags] = {}

    def __len__(self) -> int:
        return len(self.rendered.graph)

    def renamed(self) -> "SceneSet":
        """Return the same scenes with all twins called by their other name."""
        old = self.rendered
        return SceneSet(self.config, Rendered(swap_twins(old.graph), old.rgb, old.instances))

    def tags(self, provenance: Provenance, num_phrases: int = 0) -> Tags:
        """Return the tags of all scenes; `num_phrases` is for binding scenes."""
        key = (provenance, num_phrases)
        if key not in self._tags:
            graph = self.rendered.graph
            source = "shuffled" if provenance == "shuffled" else "own"
            if graph.config.binding:
                tags = binding_tags(graph, num_phrases, source=source)
            elif provenance == "predicted":
                precision, recall = self.config.precision, self.config.recall
                tags = class_tags(graph, precision=precision, recall=recall)
            else:
                tags = class_tags(graph, source=source)
            self._tags[key] = tags
        return self._tags[key]

    def batch(
        self, rows: Int64[Tensor, " batch"], inputs: InputsConfig, text: TextBatch | None
    ) -> Batch:
        """Return some scenes as network inputs."""
        rendered = self.rendered[rows]
        rgb = normalise_rgb(rendered.rgb, inputs.channel_order)
        if inputs.depth == "none":
            return Batch(rgb, rendered.labels, text=text)
        if self.config.sensor:
            metres, mask = rendered.sensor_depth()
        else:
            metres = rendered.depth
            mask = torch.ones_like(metres, dtype=torch.bool)
        depth = torch.where(mask, normalise_metres(metres), 0.0)
        return Batch(rgb, rendered.labels, depth[:, None], mask[:, None], text)


class SceneSource(ImageSource):
    """Training, validation and test rooms, rendered on first use."""

    def __init__(
        self,
        config: ScenesDataConfig,
        inputs: InputsConfig,
        text: TextConfig,
        encoder: WordsEncoder | None,
        augmentation: AugmentConfig,
        device: torch.device,
    ) -> None:
        self.config, self.inputs, self.text, self.device = config, inputs, text, device
        self.mirrors = augmentation.mirror
        self.encoder = None if encoder is None else encoder.to(device)
        self.classes = label_names(config.scenes)
        ids = [[WORD_ID[name]] for name in self.classes]
        self._names = torch.tensor(ids, device=device)
        self._sets: dict[Split, SceneSet] = {}

    @property
    def provenances(self) -> tuple[Provenance, ...]:
        """A tagger's words, none, the ground truth (never the main result), another image's."""
        if self.encoder is None:
            return ("none",)
        if self.text.source == "labels":
            return ("predicted", "none")
        if self.config.scenes.binding:  # phrases do not give the answer away
            return ("predicted", "none", "shuffled")
        return ("predicted", "none", "oracle", "shuffled")

    def scenes(self, split: Split) -> SceneSet:
        """Return the scenes of a split."""
        if split not in self._sets:
            count = getattr(self.config, f"{split}_images")
            graph = draw_scenes(self.config.scenes, split, range(count), self.device)
            self._sets[split] = SceneSet(self.config, render_all(graph))
        return self._sets[split]

    def batches(
        self, batch_size: int, seed: int, start_step: int, rank: int, world_size: int
    ) -> Iterator[Batch]:
        """Shuffled epochs over the training scenes."""
        scenes, config = self.scenes("train"), self.config
        share = batch_size // world_size
        for step, whole in epoch_rows(len(scenes), batch_size, seed, start_step, self.device):
            rows = whole[rank * share : (rank + 1) * share]
            phrases = config.phrases[mix(seed, step, 1) % len(config.phrases)]
            text = self.words(scenes, rows, config.tags, phrases)
            yield scenes.batch(rows, self.inputs, text)

    def augmented(self, batch: Batch) -> Batch:
        """Mirror half of the batch."""
        return mirror_some(batch) if self.mirrors else batch

    def images(self, split: Split, provenance: Provenance, batch_size: int) -> Iterator[Batch]:
        """Yield every scene of a split once; binding scenes with the most phrases of training."""
        scenes = self.scenes(split)
        for rows in torch.arange(len(scenes), device=self.device).split(batch_size):
            text = self.words(scenes, rows, provenance, max(self.config.phrases))
            yield scenes.batch(rows, self.inputs, text)

    def words(
        self, scenes: SceneSet, rows: Tensor, provenance: Provenance, num_phrases: int
    ) -> TextBatch | None:
        """Return the words of some scenes as vectors."""
        if self.encoder is None or provenance == "none":
            return None
        if self.text.source == "labels":
            ids = self._names.expand(len(rows), -1, -1)
        else:
            binding = self.config.scenes.binding
            tags = scenes.tags(provenance, num_phrases if binding else 0)
            ids = tags.words[rows]
            ids = ids if binding else ids[:, : self.text.max_tags]
        return TextBatch(self.encoder.encode_ids(ids), ids[..., 0] >= 0, None, provenance)


PartialTagging = Literal["one thing unnamed", "one thing named"]
PARTIAL_TAGGINGS: tuple[PartialTagging, ...] = get_args(PartialTagging)
"""All tags but those of one thing; only the tags of wall, floor and one thing."""
_ROOM_TAGS = 2  # wall and floor, the first tags of every room


class PartialTags(ImageSource):
    """The rooms of a source with only some of their true tags, the same for any batch size."""

    def __init__(self, source: ImageSource, tagging: PartialTagging) -> None:
        if not isinstance(source, SceneSource) or "oracle" not in source.provenances:
            raise InputError(
                "some tags: expected generated rooms (data.kind scenes, without binding) and a "
                "model that reads tags; for files, the true tags are unknown"
            )
        self.source, self.tagging, self.classes = source, tagging, source.classes

    @property
    def provenances(self) -> tuple[Provenance, ...]:
        """A part of the ground truth."""
        return ("oracle",)

    def batches(self, *args: Any, **kwargs: Any) -> Iterator[Batch]:
        """For evaluation only."""
        raise NotImplementedError

    def images(self, split: Split, provenance: Provenance, batch_size: int) -> Iterator[Batch]:
        """Yield every room of a split once."""
        first = 0
        for batch in self.source.images(split, provenance, batch_size):
            if (text := batch.text) is not None:
                chosen = _one_thing(text.mask, first)
                room = torch.arange(text.mask.shape[1], device=chosen.device) < _ROOM_TAGS
                text = text.only(~chosen if self.tagging == "one thing unnamed" else chosen | room)
            yield replace(batch, text=text)
            first += len(batch.rgb)


def _one_thing(mask: Bool[Tensor, "batch words"], first: int) -> Bool[Tensor, "batch words"]:
    """One tag of each room beside wall and floor; `first` is the number of the first room."""
    things = mask.clone()
    things[:, :_ROOM_TAGS] = False
    number = torch.arange(first, first + len(mask), device=mask.device)
    chosen = number % things.sum(1).clamp_min(1)
    return things & (things.cumsum(1) == chosen[:, None] + 1)
