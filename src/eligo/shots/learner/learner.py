"""Training the in-context learner: see first, then read words off examples. Section 6.

The tower learns what patches show, then all of it learns lessons: plain words first, nonce words
come in over the first third. What an answer needs has signals of its own on the way (`readouts`),
which fade; `aiming`, `seen`, `binding`, `pointing`, `lookup`, `holding`, `seeking` and `found`
watch those steps on nonce words.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from accelerate import PartialState
from jaxtyping import Float
from torch import Tensor

from benchmarks.scenes.train_vlm import compile_layers, pixel_values
from eligo.nn import record_outputs
from eligo.scenes import draws
from eligo.scenes.graph import Split
from eligo.scenes.vlm import EOS, IMAGE, build_processor, build_vlm, save_vlm
from eligo.scenes.vlm_heads import PatchTargets, VisionHeads, patch_targets
from eligo.shots.learner.batch import Batch
from eligo.shots.learner.learner_config import LearnerConfig
from eligo.shots.learner.lessons import EXAMPLES, draw_lessons
from eligo.shots.learner.packing import Packed, pack
from eligo.shots.learner.readouts import (
    WORD_METRICS,
    Read,
    WordHeads,
    gather,
    mean_loss,
    mean_where,
    read_out,
    share,
    word_losses,
    word_metrics,
)
from eligo.train import (
    FitResult,
    OptimizerSpec,
    Progress,
    StepOutput,
    Task,
    fit,
    load_weights,
    seed_everything,
)

_AHEAD = 8  # steps whose lessons are drawn together: drawing is many small operations
_SHOWN = (1, 1, 2, 2, 6)  # how often 0, 1, 2, 3 and all 4 examples are shown


class Seen(NamedTuple):
    """What the tower makes of some scenes, and what is true of them."""

    features: Float[Tensor, "scenes patches width"]
    targets: PatchTargets
    told: dict[str, Tensor]
    """Losses of the tower, and its accuracies."""


class Said(NamedTuple):
    """What the model says on a batch, and what it knew on the way."""

    answer: Float[Tensor, "lessons 8 tokens"]
    end: Float[Tensor, "lessons 8 tokens"]
    read: Read


class LearnerTask(Task):
    """Lessons in, a LLaVA out that reads its words off the examples before the question."""

    def __init__(self, config: LearnerConfig) -> None:
        self.config: LearnerConfig = config  # pyright: ignore[reportIncompatibleVariableOverride]
        self.model = build_vlm(config.model)
        self.heads = VisionHeads(config.model.vision_width)
        self.words = WordHeads(config.model.width)
        self.modules = {"vlm": self.model, "vision_heads": self.heads, "word_heads": self.words}
        self.optimizers = {"all": OptimizerSpec(config.optimizer, tuple(self.modules))}
        if config.compile:
            compile_layers(self.model)

    def make(
        self, split: Split, indices: Tensor, device: torch.device, plain: float, whole: bool = False
    ) -> Batch:
        """The lessons with these indices; `whole`: with all their examples."""
        lessons = draw_lessons(
            self.config.scenes, split, indices, device, plain=plain, unclear=self.config.unclear
        )
        keys = lessons.rendered.graph.keys.view(-1, EXAMPLES + 1)[:, EXAMPLES]
        number = draws.choose_weighted(keys, "lesson shown", _SHOWN)
        if whole:
            number = torch.full_like(number, EXAMPLES)
        return Batch(lessons, torch.arange(EXAMPLES, device=device) < number[:, None])

    def batches(
        self, start_step: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[Batch]:
        """Fresh lessons for every step; the seed of the run moves to others."""
        size = self.config.train.batch_size
        part = size // world_size
        origin = self.config.train.seed << 32
        ahead = torch.arange(_AHEAD)[:, None] * size + rank * part + torch.arange(part)
        step = start_step
        while True:
            chunk = step - step % _AHEAD
            indices = origin + chunk * size + ahead[step - chunk :]
            plain = self.config.plain.at(chunk / self.config.train.total_steps)
            drawn = self.make("train", indices.flatten(), device, plain)
            for place in range(len(indices)):
                rows = slice(place * part, (place + 1) * part)
                yield Batch(drawn.lessons.part(rows), drawn.shown[rows])
                step += 1

    def see(self, batch: Batch) -> Seen:
        """All scenes of a batch, by the tower."""
        rendered = batch.lessons.rendered
        tower = self.model.model.vision_tower
        seen = tower(pixel_values(rendered.rgb), output_hidden_states=True)
        features = seen.hidden_states[-2][:, 1:]
        targets = patch_targets(rendered, self.config.model.patch_size)
        return Seen(features, targets, self.heads.losses(features, seen.pooler_output, targets))

    def say(self, features: Tensor, packed: Packed) -> Said:
        """Answers, and what words seem to mean on the way."""
        llava, language_model = self.model.model, self.model.model.language_model
        vision = llava.multi_modal_projector(features)
        vision = vision.view(len(packed.tokens), -1, vision.shape[-1])
        text = language_model.embed_tokens(packed.tokens).to(vision.dtype)
        where = (packed.tokens == IMAGE)[..., None].expand_as(text)
        entered = text.masked_scatter(where, vision)
        with record_outputs(language_model.layers) as left:
            last = language_model(
                inputs_embeds=entered,
                attention_mask=packed.mask,
                position_ids=packed.positions,
                use_cache=False,
            ).last_hidden_state
        return Said(
            self.model.lm_head(gather(last, packed.ask_places)).float(),
            self.model.lm_head(gather(last, packed.ask_places + 1)).float(),
            read_out(self.words, language_model, (entered, *left), packed),
        )

    def step(self, batch: Batch, progress: Progress) -> StepOutput:
        """The tower's losses, and after the first steps those of words and answers."""
        features, targets, vision = self.see(batch)
        losses = {name: v for name, v in vision.items() if not name.startswith("accuracy")}
        if progress.step < self.config.vision_steps:
            return StepOutput(losses, {"accuracy_shape": vision["accuracy_shape"]})
        losses = {name: self.config.vision_weight * value for name, value in losses.items()}
        packed = pack(batch.lessons, batch.shown, features.shape[1])
        said, valid = self.say(features, packed), batch.lessons.valid
        losses["answer"] = mean_loss(said.answer, packed.answers, valid)
        losses["end"] = mean_loss(said.end, torch.full_like(packed.answers, EOS), valid)
        scale = self.config.word_weight.at(progress.fraction)
        signals = word_losses(said.read, batch, targets)
        losses |= {name: scale * loss for name, loss in signals.items()}
        return StepOutput(losses, {**self._metrics(batch, targets, packed, said)})

    def _metrics(
        self, batch: Batch, targets: PatchTargets, packed: Packed, said: Said
    ) -> dict[str, Tensor]:
        right = said.answer.argmax(-1) == packed.answers
        nonce = ~batch.lessons.plain[:, None]
        return {
            "accuracy": share(right, batch.decided() & nonce),
            **word_metrics(said.read, batch, targets),
        }

    def metric_names(self) -> tuple[str, ...]:
        """Shares of right answers, and of what is right on the way."""
        return ("accuracy", *WORD_METRICS, "zero_shot", "chance", "pair", "one", "plain")

    @torch.no_grad()
    def evaluate(self) -> Mapping[str, float]:
        """On nonce words with all examples, the right two, one of them, none; and plain words."""
        device, size = self.model.device, 64
        found: dict[str, list[Tensor]] = {}
        for first in range(0, self.config.validation_lessons, size):
            stop = min(first + size, self.config.validation_lessons)
            indices = torch.arange(first, stop)
            whole = self.make("validation", indices, device, 0.0, whole=True)
            features, targets, _ = self.see(whole)
            plain = self.make("validation", indices, device, 1.0, whole=True)
            packed = pack(whole.lessons, whole.shown, features.shape[1])
            parts = self._metrics(whole, targets, packed, self.say(features, packed))
            none = Batch(whole.lessons, torch.zeros_like(whole.shown))
            parts["zero_shot"] = self._right(none, features, whole)
            parts["chance"] = mean_where(whole.lessons.guess, whole.decided())
            half = Batch(whole.lessons, whole.shown & whole.lessons.needs[:, 0])
            parts["pair"] = self._right(half, features, whole, 0)
            lone = half.shown & (half.shown.cumsum(1) == 1)
            parts["one"] = self._right(Batch(whole.lessons, lone), features, whole, 0)
            parts["plain"] = self._right(plain, features, plain)
            for name, value in parts.items():
                found.setdefault(name, []).append(value)
        return {name: float(torch.stack(values).mean()) for name, values in found.items()}

    def _right(
        self, batch: Batch, features: Tensor, whole: Batch, only: int | None = None
    ) -> Tensor:
        """Share of questions answered right, of those that all examples would decide."""
        packed = pack(batch.lessons, batch.shown, features.shape[1])
        right = self.say(features, packed).answer.argmax(-1) == packed.answers
        asked = whole.decided()
        if only is not None:
            right, asked = right[:, only], asked[:, only]
        return share(right, asked)


def train_learner(config: LearnerConfig, *, resume: bool = False) -> FitResult:
    """Train, then write the last weights as a model folder: `<run>/model`."""
    seed_everything(config.train.seed)
    result = fit(LearnerTask(config), config.train, resume=resume)
    if PartialState().is_main_process:
        model = build_vlm(config.model)
        load_weights(result.folder / "last", {"vlm": model})
        save_vlm(model, build_processor(config.model), result.folder / "model")
    return result
