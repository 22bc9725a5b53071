"""Training the in-context learner: see first, then read words off examples. Section 6.

A trial with answers alone learned plain words and stayed at chance on nonce words: nothing made an
example's word read its own image. So every step up to the answer has a signal of its own, a linear
read-out that is thrown away afterwards. On the way up the language model
- ASSISTANT: of an example knows what its question asks for (`seen`; in any words);
- its word, the next token, takes that over as its meaning (`bound`);
- the words of a question find the same words in examples and take over theirs (`looked`);
- the question mark knows the object that has both (`found`);
what is left is to say the attribute that was asked for. Lessons begin with plain words, nonce words
come in, the read-outs fade. Metrics of the same names watch the steps, on nonce words only.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from accelerate import PartialState
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.demos.exam.learner_config import LearnerConfig
from eligo.demos.exam.lessons import DEMOS, NUM_VALUES, QUESTIONS, Lessons, draw_lessons
from eligo.demos.exam.packing import Packed, pack
from eligo.scenes import draws, words
from eligo.scenes.graph import Split
from eligo.scenes.vlm.heads import PatchTargets, VisionHeads, patch_targets
from eligo.scenes.vlm.model import EOS, IMAGE, build_processor, build_vlm, save_vlm
from eligo.scenes.vlm.train import pixel_values
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
_SEEN, _BOUND, _LOOKED, _FOUND = 1 / 4, 3 / 8, 1 / 2, 3 / 4  # depths at which states are read


class Batch(NamedTuple):
    """One step's lessons."""

    lessons: Lessons
    shown: Bool[Tensor, "lessons 4"]


class WordHeads(nn.Module):
    """What a word means, read from a state; used in training only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.seen, self.bound, self.looked, self.found = (
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, NUM_VALUES)) for _ in range(4)
        )


class Read(NamedTuple):
    """What the model says on a batch."""

    answer: Float[Tensor, "lessons 8 tokens"]
    end: Float[Tensor, "lessons 8 tokens"]
    seen: Float[Tensor, "lessons 4 values"]
    """What an example's question asks for."""
    bound: Float[Tensor, "lessons 4 values"]
    """What its word means."""
    looked: Float[Tensor, "lessons 8 2 values"]
    """What the two words of a question mean."""
    found: Float[Tensor, "lessons 8 values"]
    """All that is true of the object it means."""


class LearnerTask(Task):
    """Lessons in, a LLaVA out that reads its words off the examples before the question."""

    def __init__(self, config: LearnerConfig) -> None:
        self.config: LearnerConfig = config  # pyright: ignore[reportIncompatibleVariableOverride]
        self.model = build_vlm(config.model)
        self.heads = VisionHeads(config.model.vision_width)
        self.words = WordHeads(config.model.width)
        self.modules = {"vlm": self.model, "vision_heads": self.heads, "word_heads": self.words}
        self.optimizers = {"all": OptimizerSpec(config.optimizer, tuple(self.modules))}

    def make(
        self, split: Split, indices: Tensor, device: torch.device, plain: float, whole: bool = False
    ) -> Batch:
        """The lessons with these indices; `whole`: with all their examples."""
        lessons = draw_lessons(
            self.config.scenes, split, indices, device, plain=plain, unclear=self.config.unclear
        )
        keys = lessons.rendered.graph.keys.view(-1, DEMOS + 1)[:, DEMOS]
        number = draws.choose_weighted(keys, "lesson shown", _SHOWN)
        if whole:
            number = torch.full_like(number, DEMOS)
        return Batch(lessons, torch.arange(DEMOS, device=device) < number[:, None])

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

    def see(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Patch features, (scenes, patches, width), and the losses of the tower."""
        rendered = batch.lessons.rendered
        tower = self.model.model.vision_tower
        seen = tower(pixel_values(rendered.rgb), output_hidden_states=True)
        features = seen.hidden_states[-2][:, 1:]
        targets: PatchTargets = patch_targets(rendered, self.config.model.patch_size)
        return features, self.heads.losses(features, seen.pooler_output, targets)

    def read(self, features: Tensor, packed: Packed) -> Read:
        """Answers, and what words seem to mean on the way."""
        llava = self.model.model
        vision = llava.multi_modal_projector(features)
        vision = vision.view(len(packed.tokens), -1, vision.shape[-1])
        text = llava.language_model.embed_tokens(packed.tokens).to(vision.dtype)
        where = (packed.tokens == IMAGE)[..., None].expand_as(text)
        states = llava.language_model(
            inputs_embeds=text.masked_scatter(where, vision),
            attention_mask=packed.mask,
            position_ids=packed.positions,
            use_cache=False,
            output_hidden_states=True,
        )
        last = states.last_hidden_state

        def at(share: float, places: Tensor) -> Tensor:
            layer = round(share * (len(states.hidden_states) - 1))
            return _at(states.hidden_states[layer], places).float()

        looked = self.words.looked(at(_LOOKED, packed.name_places.flatten(1)))
        return Read(
            answer=self.model.lm_head(_at(last, packed.ask_places)).float(),
            end=self.model.lm_head(_at(last, packed.ask_places + 1)).float(),
            seen=self.words.seen(at(_SEEN, packed.word_places - 1)),
            bound=self.words.bound(at(_BOUND, packed.word_places)),
            looked=looked.unflatten(1, (QUESTIONS, 2)),
            found=self.words.found(at(_FOUND, packed.ask_places - 1)),
        )

    def step(self, batch: Batch, progress: Progress) -> StepOutput:
        """The tower's losses, and after the first steps those of words and answers."""
        features, vision = self.see(batch)
        losses = {name: v for name, v in vision.items() if not name.startswith("accuracy")}
        if progress.step < self.config.vision_steps:
            return StepOutput(losses, {"accuracy_shape": vision["accuracy_shape"]})
        losses = {name: self.config.vision_weight * value for name, value in losses.items()}
        packed = pack(batch.lessons, batch.shown, features.shape[1])
        read = self.read(features, packed)
        scale = self.config.word_weight.at(progress.step / progress.total_steps)
        valid = batch.lessons.valid
        told, meant, tellable = _meanings(batch)
        known = tellable | batch.lessons.plain[:, None, None]
        end = torch.full_like(packed.answers, EOS)
        losses |= {
            "answer": _mean_loss(read.answer, packed.answers, valid),
            "end": _mean_loss(read.end, end, valid),
            "seen": scale * _mean_loss(read.seen, batch.lessons.demo_value, told),
            "bound": scale * _mean_loss(read.bound, batch.lessons.demo_value, told),
            "looked": scale * _mean_loss(read.looked, meant, tellable),
            "found": scale * _found_loss(read.found, batch.lessons, known.all(-1) & valid),
        }
        return StepOutput(losses, _metrics(batch, packed, read))

    @torch.no_grad()
    def evaluate(self) -> Mapping[str, float]:
        """On nonce words with all examples, the right two, one of them, none; and plain words."""
        device, size = self.model.device, 64
        found: dict[str, list[Tensor]] = {}
        for first in range(0, self.config.validation_lessons, size):
            stop = min(first + size, self.config.validation_lessons)
            indices = torch.arange(first, stop)
            whole = self.make("validation", indices, device, 0.0, whole=True)
            features, _ = self.see(whole)
            plain = self.make("validation", indices, device, 1.0, whole=True)
            packed = pack(whole.lessons, whole.shown, features.shape[1])
            read = self.read(features, packed)
            parts = _metrics(whole, packed, read)
            none = Batch(whole.lessons, torch.zeros_like(whole.shown))
            parts["zero_shot"] = self._right(none, features, whole)
            half = Batch(whole.lessons, whole.shown & whole.lessons.needs[:, 0])
            parts["pair"] = self._right(half, features, whole, 0)
            lone = half.shown & (half.shown.cumsum(1) == 1)
            parts["one"] = self._right(Batch(whole.lessons, lone), features, whole, 0)
            parts["plain"] = self._right(plain, features, plain)
            for name, value in parts.items():
                found.setdefault(name, []).append(torch.as_tensor(value).to(device))
        return {name: float(torch.stack(values).nanmean()) for name, values in found.items()}

    def _right(
        self, batch: Batch, features: Tensor, whole: Batch, only: int | None = None
    ) -> Tensor:
        """Share of questions answered right, of those that all examples would decide."""
        packed = pack(batch.lessons, batch.shown, features.shape[1])
        right = self.read(features, packed).answer.argmax(-1) == packed.answers
        asked = _decided(whole)
        if only is not None:
            right, asked = right[:, only], asked[:, only]
        return _share(right, asked)


def _decided(batch: Batch) -> Bool[Tensor, "lessons 8"]:
    """Questions that their examples decide: both are shown, and clear."""
    useful = batch.shown & batch.lessons.clear
    return batch.lessons.valid & (useful[:, None] | ~batch.lessons.needs).all(-1)


def _meanings(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Which examples tell; what each question's two words mean; and whether an example told."""
    lessons = batch.lessons
    told = batch.shown & lessons.clear
    # Words stand in the order of attributes, and so do values counted through all of them.
    spoken = torch.where(lessons.needs, lessons.demo_value[:, None], NUM_VALUES)
    meant, place = spoken.sort(-1)
    tellable = told[:, None].expand_as(spoken).gather(2, place)[..., :2]
    return told, meant[..., :2], tellable & lessons.valid[..., None]


def _metrics(batch: Batch, packed: Packed, read: Read) -> dict[str, Tensor | float]:
    """Shares of what is right, on nonce words: plain ones tell their meaning themselves."""
    told, meant, tellable = _meanings(batch)
    value, nonce = batch.lessons.demo_value, ~batch.lessons.plain[:, None]
    return {
        "accuracy": _share(read.answer.argmax(-1) == packed.answers, _decided(batch) & nonce),
        "found": _share(_is_found(read.found, batch.lessons), _decided(batch) & nonce),
        "seen": _share(read.seen.argmax(-1) == value, told & nonce),
        "binding": _share(read.bound.argmax(-1) == value, told & nonce),
        "lookup": _share(read.looked.argmax(-1) == meant, tellable & nonce[..., None]),
    }


def _found_loss(logits: Tensor, lessons: Lessons, known: Tensor) -> Tensor:
    """Mean over the four attributes of the object that is meant."""
    parts = logits.split([len(values) for values in words.VALUES], -1)
    losses = [_mean_loss(part, lessons.meant[..., n], known) for n, part in enumerate(parts)]
    return torch.stack(losses).mean()


def _is_found(logits: Tensor, lessons: Lessons) -> Tensor:
    parts = logits.split([len(values) for values in words.VALUES], -1)
    return torch.stack([part.argmax(-1) for part in parts], -1).eq(lessons.meant).all(-1)


def _share(right: Tensor, counted: Tensor) -> Tensor:
    return ((right & counted).sum() / counted.sum().clamp(min=1)).detach()


def _mean_loss(logits: Tensor, wanted: Tensor, mask: Tensor) -> Tensor:
    """Mean over what the mask marks; 0 where it marks nothing."""
    target = torch.where(mask, wanted, -100).flatten()
    total = F.cross_entropy(logits.flatten(0, -2), target, ignore_index=-100, reduction="sum")
    return total / mask.sum().clamp(min=1)


def _at(states: Tensor, places: Tensor) -> Tensor:
    return states.gather(1, places[..., None].expand(-1, -1, states.shape[-1]))


def train_learner(config: LearnerConfig, *, resume: bool = False) -> FitResult:
    """Train, then write the last weights as a model folder: `<run>/model`."""
    seed_everything(config.train.seed)
    result = fit(LearnerTask(config), config.train, resume=resume)
    if PartialState().is_main_process:
        model = build_vlm(config.model)
        load_weights(result.folder / "last", {"vlm": model})
        save_vlm(model, build_processor(config.model), result.folder / "model")
    return result
