"""Rooms drawn and painted once on the device that learns from them; batches are made by indexing.

Words of plain rooms are class names (of twins, the one this room means), those of binding rooms
phrases that tie looks to nonce classes. Nothing in a step waits for the device.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Int64
from torch import Tensor

from eligo.pixels.config import AugmentConfig, InputsConfig, ScenesDataConfig, TextConfig
from eligo.pixels.data.augment import mirror_some
from eligo.pixels.data.batch import Batch, ImageSource
from eligo.pixels.data.inputs import normalise_metres, normalise_rgb
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
    """Painted scenes with their tags."""

    def __init__(self, config: ScenesDataConfig, rendered: Rendered) -> None:
        self.config, self.rendered = config, rendered
        self._tags: dict[tuple[Provenance, int], Tags] = {}

    def __len__(self) -> int:
        return len(self.rendered.graph)

    def renamed(self) -> "SceneSet":
        """The same scenes with all twins called by their other name."""
        shown = self.rendered
        return SceneSet(self.config, Rendered(swap_twins(shown.graph), shown.rgb, shown.instances))

    def tags(self, provenance: Provenance, num_phrases: int = 0) -> Tags:
        """The tags of all scenes; `num_phrases` for binding scenes."""
        key = (provenance, num_phrases)
        if key not in self._tags:
            graph = self.rendered.graph
            whose = "shuffled" if provenance == "shuffled" else "own"
            if graph.config.binding:
                self._tags[key] = binding_tags(graph, num_phrases, source=whose)
            elif provenance == "predicted":
                config = self.config
                self._tags[key] = class_tags(
                    graph, precision=config.precision, recall=config.recall
                )
            else:
                self._tags[key] = class_tags(graph, source=whose)
        return self._tags[key]

    def batch(
        self, rows: Int64[Tensor, " batch"], inputs: InputsConfig, text: TextBatch | None
    ) -> Batch:
        """Some scenes as the network sees them."""
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
    """Training, validation and test rooms, made when they are first asked for."""

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
        """A tagger's words (the truth is never the headline), none, the truth, another image's."""
        if self.encoder is None:
            return ("none",)
        if self.text.source == "labels":
            return ("predicted", "none")
        if self.config.scenes.binding:  # the phrases are what somebody typed, not the answer
            return ("predicted", "none", "shuffled")
        return ("predicted", "none", "oracle", "shuffled")

    def scenes(self, split: Split) -> SceneSet:
        """The scenes of a split."""
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
        own = slice(rank * share, (rank + 1) * share)
        for step, whole in epoch_rows(len(scenes), batch_size, seed, start_step, self.device):
            rows = whole[own]
            phrases = config.phrases[mix(seed, step, 1) % len(config.phrases)]
            text = self.words(scenes, rows, config.tags, phrases)
            yield scenes.batch(rows, self.inputs, text)

    def varied(self, batch: Batch) -> Batch:
        """Mirrored here and there."""
        return mirror_some(batch) if self.mirrors else batch

    def images(self, split: Split, provenance: Provenance, batch_size: int) -> Iterator[Batch]:
        """Every scene of a split once; binding scenes with the most phrases of training."""
        scenes = self.scenes(split)
        for rows in torch.arange(len(scenes), device=self.device).split(batch_size):
            text = self.words(scenes, rows, provenance, max(self.config.phrases))
            yield scenes.batch(rows, self.inputs, text)

    def words(
        self, scenes: SceneSet, rows: Tensor, provenance: Provenance, num_phrases: int
    ) -> TextBatch | None:
        """The words of some scenes, as vectors."""
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
