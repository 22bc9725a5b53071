"""Train the tiny LLaVA: first the vision tower, then the whole model.

For `vision_steps`, the tower alone learns patch attributes (`vlm_heads`); then the whole model
learns from many questions packed behind one image, under a block mask: a question attends to the
image and to itself, not to other questions. Scenes are generated on the device; none is used twice.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from accelerate import PartialState
from jaxtyping import Bool, Float, Int64
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import LlavaForConditionalGeneration

from eligo.cli import run_script
from eligo.cli.console import print_outcome
from eligo.config import Config
from eligo.nn import record_outputs
from eligo.scenes.config import FamilyWeights, SceneConfig, VlmConfig
from eligo.scenes.graph import Split, draw_scenes, take
from eligo.scenes.painter import Rendered, render
from eligo.scenes.phrases import word_ids
from eligo.scenes.question_kinds import ANSWERS, FAMILIES, FAMILY_OF, Questions
from eligo.scenes.questions import draw_questions
from eligo.scenes.vlm import (
    ASSISTANT,
    BOS,
    EOS,
    FIRST_WORD,
    PAD,
    USER,
    build_processor,
    build_vlm,
    pixel_values,
    save_vlm,
)
from eligo.scenes.vlm_heads import PatchTargets, PhraseHeads, VisionHeads, patch_targets
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
from eligo.train.config import OptimizerConfig, TrainConfig

_LENGTH = 20  # question (at most 15 words), ASSISTANT:, answer (at most 2), </s>
_ANSWER = 3  # tokens to learn: answer and </s>
_AHEAD = 16  # steps whose scenes are drawn together


class Packed(NamedTuple):
    """Questions of a scene as token rows, one row of `_LENGTH` each."""

    tokens: Int64[Tensor, "scenes questions length"]
    start: Int64[Tensor, "scenes questions"]
    """Position of ASSISTANT: in the row, from where the answer is predicted."""
    targets: Int64[Tensor, "scenes questions answer"]
    """Answer tokens and </s>; -100 elsewhere."""


class Batch(NamedTuple):
    """One step's scenes."""

    rendered: Rendered
    targets: PatchTargets
    questions: Questions | None

    def part(self, rows: slice, ask: bool) -> "Batch":
        """Return some of the scenes."""
        return Batch(
            self.rendered[rows],
            take(self.targets, rows),
            take(self.questions, rows) if ask and self.questions else None,
        )


def _answer_tokens(device: torch.device) -> Int64[Tensor, "answers 3"]:
    rows = torch.full((len(ANSWERS), _ANSWER), PAD)
    for row, answer in enumerate(ANSWERS):
        ids = [index + FIRST_WORD for index in word_ids(answer)] + [EOS]
        rows[row, : len(ids)] = torch.tensor(ids)
    return rows.to(device)


def pack(questions: Questions, answers: Int64[Tensor, "answers 3"]) -> Packed:
    """Write each question as `words ASSISTANT: answer </s>`, padded on the right."""
    length = (questions.words >= 0).sum(-1)
    tokens = torch.where(questions.words >= 0, questions.words + FIRST_WORD, PAD)
    tokens = F.pad(tokens, (0, max(0, _LENGTH - tokens.shape[-1])), value=PAD)[..., :_LENGTH]
    answer = answers[questions.answer.clamp(min=0)]  # (scenes, questions, 3)
    assistant = torch.full_like(length[..., None], ASSISTANT)
    tail = torch.cat([assistant, answer], -1)
    places = length[..., None] + torch.arange(_ANSWER + 1, device=length.device)
    tokens = tokens.scatter(-1, places.clamp(max=_LENGTH - 1), tail)
    targets = torch.where((answer != PAD) & questions.valid[..., None], answer, -100)
    return Packed(tokens, length, targets)


def block_mask(prefix: int, questions: int, device: torch.device) -> Bool[Tensor, "length length"]:
    """Return the causal mask in which questions attend to the prefix and themselves only."""
    block = torch.arange(questions, device=device).repeat_interleave(_LENGTH) + 1
    block = torch.cat([torch.zeros(prefix, dtype=block.dtype, device=device), block])
    order = torch.arange(block.numel(), device=device)
    same = (block[:, None] == block[None]) | (block[None] == 0)
    return same & (order[:, None] >= order[None])


class VlmTrainConfig(Config):
    """One training run of the tiny LLaVA."""

    task: Literal["scenes.train-vlm"] = "scenes.train-vlm"
    """Which kind of config this is."""
    train: TrainConfig
    """The loop."""
    model: VlmConfig = VlmConfig()
    """Size of the model."""
    scenes: SceneConfig = SceneConfig()
    """The scenes."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """One optimiser for all."""
    questions: int = Field(default=22, ge=1)
    """Questions packed behind one image."""
    weights: FamilyWeights = (2, 2, 2, 3, 4, 2)
    """Weights of the families: lookup, existence, count, comparison, relation, location."""
    vision_steps: int = Field(default=0, ge=0)
    """First steps that train the tower alone, on patch attributes."""
    vision_weight: float = Field(default=0.2, ge=0)
    """Weight of the patch-attribute loss afterwards."""
    phrase_weight: float = Field(default=0.5, ge=0)
    """Weight of the losses of phrases, in the middle of the language model."""
    validation_scenes: int = Field(default=512, ge=1)
    """Scenes of the validation split that choose `best`."""
    compile: bool = False
    """Compile the layers (pays off on a GPU only)."""

    @model_validator(mode="after")
    def _check(self) -> "VlmTrainConfig":
        size = self.model.image_size
        if (self.scenes.height, self.scenes.width) != (size, size):
            raise ValueError(
                f"scenes.height {self.scenes.height} and scenes.width {self.scenes.width}: "
                f"expected both to be {size}, model.image_size"
            )
        if min(self.weights) < 0 or not any(self.weights):
            raise ValueError(f"weights: got {self.weights}, expected none below 0 and one above")
        return self

    def build(self) -> Any:
        """Return the task for the training loop."""
        return VlmTask(self)

    def smoke(self) -> "VlmTrainConfig":
        """Return a tiny version of this run."""
        small = VlmConfig(image_size=56, vision_width=32, vision_layers=2, layers=2, width=32,
                          hidden=64, heads=2)  # fmt: skip
        return self.model_copy(
            update={
                "train": self.train.model_copy(
                    update={"total_steps": 4, "batch_size": 4, "evaluate_every": 2,
                            "checkpoint_every": 2, "precision": "no", "init_from": None}
                ),
                "model": small,
                "scenes": self.scenes.model_copy(update={"height": 56, "width": 56}),
                "validation_scenes": 4,
                "questions": 3,
                "vision_steps": min(self.vision_steps, 2),
                "compile": False,
            }
        )  # fmt: skip


class VlmTask(Task):
    """Vision targets first, then packed questions."""

    def __init__(self, config: VlmTrainConfig) -> None:
        self.config: VlmTrainConfig = config  # pyright: ignore[reportIncompatibleVariableOverride]
        self.model: LlavaForConditionalGeneration = build_vlm(config.model)
        self.heads = VisionHeads(config.model.vision_width)
        self.phrase_heads = PhraseHeads(config.model.width)
        self.modules = {
            "vlm": self.model,
            "vision_heads": self.heads,
            "phrase_heads": self.phrase_heads,
        }
        self.optimizers = {"all": OptimizerSpec(config.optimizer, tuple(self.modules))}
        if config.compile:
            compile_layers(self.model)

    @cached_property
    def _constants(self) -> tuple[Tensor, Tensor | BlockMask, Tensor]:
        """Answer tokens, attention mask and positions of a packed row."""
        device = self.model.device
        prefix = 2 + self.config.model.grid**2
        allowed = block_mask(prefix, self.config.questions, device)
        mask = allowed[None, None]
        if self.config.compile:  # a compiled block mask skips masked blocks
            self.model.model.language_model.set_attn_implementation("flex_attention")
            size = len(allowed)
            mask = create_block_mask(
                lambda _b, _h, query, key: allowed[query, key], None, None, size, size, device
            )
        places = torch.arange(_LENGTH, device=device).repeat(self.config.questions) + prefix
        places = torch.cat([torch.arange(prefix, device=device), places])
        return _answer_tokens(device), mask, places[None]

    def make(self, split: Split, indices: Tensor, device: torch.device, ask: bool) -> Batch:
        """Return rendered scenes with targets and, with `ask`, questions."""
        graph = draw_scenes(self.config.scenes, split, indices, device)
        rendered = render(graph)
        questions = None
        if ask:
            questions = draw_questions(graph, self.config.questions, weights=self.config.weights)
        return Batch(rendered, patch_targets(rendered, self.config.model.patch_size), questions)

    def batches(
        self, start_step: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[Batch]:
        """Yield new scenes for every step; other seeds give other scenes.

        Drawing is many small operations, so the scenes of `_AHEAD` steps are drawn at once.
        """
        size = self.config.train.batch_size
        part = size // world_size
        origin = self.config.train.seed << 32
        ahead = torch.arange(_AHEAD)[:, None] * size + rank * part + torch.arange(part)
        step = start_step
        while True:
            chunk = step - step % _AHEAD
            indices = origin + chunk * size + ahead[step - chunk :]
            ask = self.config.vision_steps
            drawn = self.make("train", indices.flatten(), device, step + _AHEAD > ask)
            for place in range(len(indices)):
                yield drawn.part(slice(place * part, (place + 1) * part), step >= ask)
                step += 1

    def encode(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the patch features for the language model, and the losses of the tower."""
        tower = self.model.model.vision_tower
        output = tower(pixel_values(batch.rendered.rgb), output_hidden_states=True)
        features = output.hidden_states[-2][:, 1:]
        return features, self.heads.losses(features, output.pooler_output, batch.targets)

    def answer(
        self, features: Tensor, packed: Packed
    ) -> tuple[
        Float[Tensor, "scenes questions answer words"],
        Float[Tensor, "scenes questions length width"],
    ]:
        """Return the logits of the answer tokens, and the states of the middle layer."""
        llava = self.model.model
        _, mask, places = self._constants
        vision = llava.multi_modal_projector(features)
        embed = llava.language_model.embed_tokens
        start = embed(torch.tensor([BOS, USER], device=features.device)).expand(len(vision), -1, -1)
        text = embed(packed.tokens.flatten(1))
        layers = llava.language_model.layers
        with record_outputs([layers[(len(layers) - 1) // 2]]) as middle:
            states = llava.language_model(
                inputs_embeds=torch.cat([start.to(vision.dtype), vision, text.to(vision.dtype)], 1),
                attention_mask=mask,
                position_ids=places,
                use_cache=False,
            ).last_hidden_state

        def of_questions(states: Tensor) -> Tensor:
            return states[:, -text.shape[1] :].unflatten(1, packed.tokens.shape[1:])

        states = of_questions(states)
        rows = packed.start[..., None] + torch.arange(_ANSWER, device=states.device)
        states = states.gather(2, rows[..., None].expand(-1, -1, -1, states.shape[-1]))
        return self.model.lm_head(states).float(), of_questions(middle[0])

    def step(self, batch: Batch, progress: Progress) -> StepOutput:  # noqa: ARG002 (all alike)
        """Return the vision losses and, after the first steps, the cross-entropy of the answers."""
        features, vision = self.encode(batch)
        metrics: dict[str, Tensor | float] = {
            name: value for name, value in vision.items() if name.startswith("accuracy")
        }
        weight = 1.0 if batch.questions is None else self.config.vision_weight
        losses = {name: weight * v for name, v in vision.items() if name not in metrics}
        if batch.questions is not None:
            packed = pack(batch.questions, self._constants[0])
            logits, middle = self.answer(features, packed)
            phrases = self.phrase_heads.losses(middle, batch.questions, batch.rendered.graph)
            for name, value in phrases.items():
                if name.startswith("accuracy"):
                    metrics[name] = value
                else:
                    losses[name] = self.config.phrase_weight * value
            losses["answer"] = F.cross_entropy(
                logits.flatten(0, -2), packed.targets.flatten(), ignore_index=-100
            )
            right = (logits[:, :, 0].argmax(-1) == packed.targets[:, :, 0])[batch.questions.valid]
            metrics["accuracy"] = right.float().mean().detach()
        return StepOutput(losses, metrics)

    def metric_names(self) -> list[str]:
        """Return the names: an accuracy for each family, for all, and the least."""
        return [*(f"accuracy_{name}" for name in FAMILIES), "accuracy", "accuracy_least"]

    def evaluate(self) -> Mapping[str, float]:
        """Return the share of right answers (all tokens) to validation questions, per family."""
        device = self.model.device
        size, total = 64, self.config.validation_scenes
        right = torch.zeros(len(FAMILIES), device=device)
        count = torch.zeros(len(FAMILIES), device=device)
        family_of = torch.tensor(FAMILY_OF, device=device)
        for first in range(0, total, size):
            indices = torch.arange(first, min(first + size, total))
            batch = self.make("validation", indices, device, ask=True)
            assert batch.questions is not None
            packed = pack(batch.questions, self._constants[0])
            guess = self.answer(self.encode(batch)[0], packed)[0].argmax(-1)
            good = ((guess == packed.targets) | (packed.targets == -100)).all(-1)
            family = family_of[batch.questions.kind].flatten()
            valid = batch.questions.valid.flatten().float()
            right.scatter_add_(0, family, good.flatten() * valid)
            count.scatter_add_(0, family, valid)
        shares = (right / count.clamp(min=1)).tolist()
        result = {f"accuracy_{name}": share for name, share in zip(FAMILIES, shares, strict=True)}
        result["accuracy"] = float(right.sum() / count.sum())
        result["accuracy_least"] = min(shares)
        return result


def compile_layers(model: LlavaForConditionalGeneration) -> None:
    """Compile the repeated blocks only, which takes one short compilation."""
    torch._dynamo.config.cache_size_limit = 64
    llava = model.model
    blocks = [m for m in llava.vision_tower.modules() if type(m).__name__ == "CLIPEncoderLayer"]
    for block in [*blocks, *llava.language_model.layers]:
        block.forward = torch.compile(block.forward, dynamic=False)


def train_vlm(config: VlmTrainConfig, *, resume: bool = False) -> FitResult:
    """Train, then write the last weights as a model folder: `<run>/model`.

    Not the best: the schedule anneals to the end. `best` stays in the run folder.
    """
    seed_everything(config.train.seed)
    return fit_and_save(config.build(), config.train, config.model, resume=resume)


def fit_and_save(task: Task, train: TrainConfig, size: VlmConfig, *, resume: bool) -> FitResult:
    """Train a task whose module `vlm` is a LLaVA of this size; save its last weights."""
    result = fit(task, train, resume=resume)
    if PartialState().is_main_process:
        model = build_vlm(size)
        load_weights(result.folder / "last", {"vlm": model})
        save_vlm(model, build_processor(size), result.folder / "model")
    return result


def run(config: VlmTrainConfig, *, resume: bool = False, json: bool = False) -> None:
    """Train a tiny LLaVA; the model folder is written to <train.out>/<train.name>/model.

    Args:
        resume: Continue from the newest checkpoint in the run folder.
        json: Print one JSON document.
    """
    print_outcome(train_vlm(config, resume=resume), json)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
