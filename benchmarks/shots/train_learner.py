"""`python -m benchmarks.shots.train_learner`: train the in-context learner of the study.

The vision tower is trained first, then the whole model on lessons (`eligo.shots.learner`). Lessons
use plain words first; nonce words come in over the first third. Auxiliary losses (`readouts`) guide
each step towards an answer and fade.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.scenes.train_vlm import compile_layers, fit_and_save
from benchmarks.shots.config import LearnerConfig
from benchmarks.shots.packing import Batch, Packed, pack
from benchmarks.shots.readouts import (
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
from eligo.cli import run_script
from eligo.cli.console import print_outcome
from eligo.nn import record_outputs
from eligo.scenes import draws
from eligo.scenes.graph import Split
from eligo.scenes.vlm import EOS, IMAGE, build_vlm, pixel_values
from eligo.scenes.vlm_heads import PatchTargets, VisionHeads, patch_targets
from eligo.shots.learner.lessons import EXAMPLES, draw_lessons
from eligo.train import (
    FitResult,
    OptimizerSpec,
    Progress,
    StepOutput,
    Task,
    seed_everything,
)

_AHEAD = 8  # steps whose lessons are drawn together: drawing is many small operations
_SHOWN = (1, 1, 2, 2, 6)  # weights of showing 0, 1, 2, 3 and all 4 examples
_EVALUATED = 64  # lessons per batch


class VisionOutput(NamedTuple):
    """Features of the scenes, with targets, losses and accuracies of their patches."""

    features: Float[Tensor, "scenes patches width"]
    targets: PatchTargets
    losses: dict[str, Tensor]


class AnswerOutput(NamedTuple):
    """Logits of the answers and of the token after them, and the read-outs."""

    answer: Float[Tensor, "lessons 8 tokens"]
    end: Float[Tensor, "lessons 8 tokens"]
    read: Read


class LearnerTask(Task):
    """Trains a LLaVA on lessons to infer its words from the examples before the question."""

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
        """Return the lessons with these indices; `whole`: with all their examples shown."""
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
        """Yield fresh lessons for every step; they depend on the seed of the run."""
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
            for number in range(len(indices)):
                rows = slice(number * part, (number + 1) * part)
                yield Batch(drawn.lessons.part(rows), drawn.shown[rows])
                step += 1

    def encode_images(self, batch: Batch) -> VisionOutput:
        """Run the vision tower on all scenes of a batch."""
        rendered = batch.lessons.rendered
        tower = self.model.model.vision_tower
        output = tower(pixel_values(rendered.rgb), output_hidden_states=True)
        features = output.hidden_states[-2][:, 1:]
        targets = patch_targets(rendered, self.config.model.patch_size)
        losses = self.heads.losses(features, output.pooler_output, targets)
        return VisionOutput(features, targets, losses)

    def answer(self, features: Tensor, packed: Packed) -> AnswerOutput:
        """Run the language model on packed lessons."""
        llava, language_model = self.model.model, self.model.model.language_model
        vision = llava.multi_modal_projector(features)
        vision = vision.view(len(packed.tokens), -1, vision.shape[-1])
        text = language_model.embed_tokens(packed.tokens).to(vision.dtype)
        where = (packed.tokens == IMAGE)[..., None].expand_as(text)
        inputs = text.masked_scatter(where, vision)
        with record_outputs(language_model.layers) as states:
            last = language_model(
                inputs_embeds=inputs,
                attention_mask=packed.mask,
                position_ids=packed.positions,
                use_cache=False,
            ).last_hidden_state
        return AnswerOutput(
            self.model.lm_head(gather(last, packed.answer_places)).float(),
            self.model.lm_head(gather(last, packed.answer_places + 1)).float(),
            read_out(self.words, language_model, (inputs, *states), packed),
        )

    def step(self, batch: Batch, progress: Progress) -> StepOutput:
        """Losses of the vision tower and, after the first steps, of words and answers."""
        features, targets, vision = self.encode_images(batch)
        losses = {name: v for name, v in vision.items() if not name.startswith("accuracy")}
        if progress.step < self.config.vision_steps:
            return StepOutput(losses, {"accuracy_shape": vision["accuracy_shape"]})
        losses = {name: self.config.vision_weight * value for name, value in losses.items()}
        packed = pack(batch.lessons, batch.shown, features.shape[1])
        output, valid = self.answer(features, packed), batch.lessons.valid
        losses["answer"] = mean_loss(output.answer, packed.answers, valid)
        losses["end"] = mean_loss(output.end, torch.full_like(packed.answers, EOS), valid)
        scale = self.config.word_weight.at(progress.fraction)
        auxiliary = word_losses(output.read, batch, targets)
        losses |= {name: scale * loss for name, loss in auxiliary.items()}
        return StepOutput(losses, {**self._metrics(batch, targets, packed, output)})

    def _metrics(
        self, batch: Batch, targets: PatchTargets, packed: Packed, output: AnswerOutput
    ) -> dict[str, Tensor]:
        right = output.answer.argmax(-1) == packed.answers
        nonce = ~batch.lessons.plain[:, None]
        return {
            "accuracy": share(right, batch.decided() & nonce),
            **word_metrics(output.read, batch, targets),
        }

    def metric_names(self) -> tuple[str, ...]:
        """Names of the accuracies of `evaluate`."""
        return ("accuracy", *WORD_METRICS, "zero_shot", "chance", "pair", "one", "plain")

    @torch.no_grad()
    def evaluate(self) -> Mapping[str, float]:
        """Evaluate with all examples, the right two, one of them or none; and on plain words."""
        device, total = self.model.device, self.config.validation_lessons
        batches: dict[str, list[Tensor]] = {}
        for indices in torch.arange(total).split(_EVALUATED):
            whole = self.make("validation", indices, device, 0.0, whole=True)
            features, targets, _ = self.encode_images(whole)
            plain = self.make("validation", indices, device, 1.0, whole=True)
            packed = pack(whole.lessons, whole.shown, features.shape[1])
            parts = self._metrics(whole, targets, packed, self.answer(features, packed))
            pair = whole.shown & whole.lessons.needs[:, 0]
            shown = {"zero_shot": torch.zeros_like(pair), "pair": pair}
            shown["one"] = pair & (pair.cumsum(1) == 1)
            for name, mask in shown.items():
                right = self._right(Batch(whole.lessons, mask), features)
                counted = whole.decided()
                if name != "zero_shot":  # examples of the first question only
                    right, counted = right[:, 0], counted[:, 0]
                parts[name] = share(right, counted)
            parts["chance"] = mean_where(whole.lessons.guess, whole.decided())
            parts["plain"] = share(self._right(plain, features), plain.decided())
            for name, value in parts.items():
                batches.setdefault(name, []).append(value)
        return {name: float(torch.stack(values).mean()) for name, values in batches.items()}

    def _right(self, batch: Batch, features: Tensor) -> Tensor:
        """Which questions are answered correctly: (lessons, 8)."""
        packed = pack(batch.lessons, batch.shown, features.shape[1])
        return self.answer(features, packed).answer.argmax(-1) == packed.answers


def train_learner(config: LearnerConfig, *, resume: bool = False) -> FitResult:
    """Train, then write the last weights as a model folder: `<run>/model`."""
    seed_everything(config.train.seed)
    return fit_and_save(LearnerTask(config), config.train, config.model, resume=resume)


def run(
    config: Annotated[LearnerConfig, str(Path(__file__).with_name("learner.yaml"))],
    *,
    resume: bool = False,
    json: bool = False,
) -> None:
    """Train the in-context learner; its model folder is <train.out>/<train.name>/model.

    Args:
        resume: Continue from the newest checkpoint in the run folder.
        json: Print one JSON document.
    """
    print_outcome(train_learner(config, resume=resume), json)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
