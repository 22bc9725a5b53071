"""Training of merger and pruners inside a frozen host.

In every step the unpruned model (teacher, without gradient) and the pruned one in its training form
run on the same rows. One backward pass trains all parts: the discriminator is frozen in the loss of
the pruned model, and the pruned model is detached in the loss of the discriminator. The two-stage
pruning design (docs/sources.md) differs; see `model`, `objective` and `config`.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate import PartialState
from torch import nn

from eligo.errors import ConfigError, InputError
from eligo.io.files import write_text
from eligo.pretrained.chat import ContextWatch
from eligo.tokens.config import ScenesDataConfig, TokensTrainConfig
from eligo.tokens.data.examples import SceneExamples
from eligo.tokens.data.file_source import FileSource, Resized, can_share_images, read_examples
from eligo.tokens.data.scene_source import SceneSource, reads_scenes
from eligo.tokens.hooks.masking import masking
from eligo.tokens.hosts import host_of
from eligo.tokens.inference.load import load_host
from eligo.tokens.model.discriminator import Discriminator, DiscriminatorShape
from eligo.tokens.model.layer_pruners import LayerPruners, PrunersShape
from eligo.tokens.model.relaxer import Relaxation, TrainingRelaxer
from eligo.tokens.model.token_merger import MergerShape, TokenMerger
from eligo.tokens.plan import Cut, HostMark, Plan, Stage1
from eligo.tokens.training import objective
from eligo.tokens.training.batch import HostBatch, shared_images
from eligo.tokens.training.health import memory_guard
from eligo.tokens.training.objective import Observed, answers, observe, right_answers
from eligo.tokens.training.validate import Validation, listed, step_line, step_metrics
from eligo.train import OptimizerSpec, Progress, StepOutput, Task, reset_optimizer, seed_everything
from eligo.train.check import DataCheck

logger = logging.getLogger("eligo.tokens")

_NOMINAL_TOKENS = 576  # for costs, if the number of tokens depends on the image


class TokensTask(Task):
    """Merger, pruners and, if its loss has a weight, a discriminator, in a frozen host."""

    def __init__(self, config: TokensTrainConfig) -> None:
        seed_everything(config.train.seed)
        self.config, self.settings = config, config
        self.model, self.processor = load_host(config.host)
        self.host: Any = host_of(self.model)
        self.weights = config.weights
        if self.weights["attention"] > 0 and self.host.supply is None:
            raise ConfigError(
                f"losses.attention: the vision tokens of {self.host.family} depend on the image; "
                "expected a host with a fixed number"
            )
        self.source = open_source(config, self.processor, self.host.supply)
        _check_epochs(config, self.source.num_examples)
        self.schedule = config.schedule(
            self.host.supply or _NOMINAL_TOKENS, len(self.host.layers), self.source.num_text
        )
        self.merger, self.pruners, self.discriminator = self._build_parts()
        self.plan = self._build_plan()
        self.plans = self._scaled_plans()
        parts: dict[str, nn.Module | None] = {
            "token_merger": self.merger,
            "layer_pruners": self.pruners,
            "discriminator": self.discriminator,
        }
        self.modules = {name: part for name, part in parts.items() if part is not None}
        selectors = zip(parts, (config.optim.merger, config.optim.pruners), strict=False)
        self.optimizers = {
            name: OptimizerSpec(optimizer, (name,))
            for name, optimizer in [*selectors, ("discriminator", config.optim.discriminator)]
            if name in self.modules
        }
        self.watched = [self.host.layers[layer] for layer in self._watched_layers()]
        self.validation = Validation(self)
        self.fraction = 0.0
        self._latest: dict[str, Any] = {}
        self._is_main = PartialState().is_main_process
        self._context = ContextWatch(self.model)
        if self._is_main:
            self._warn_unused_settings()

    def _build_parts(
        self,
    ) -> tuple[TokenMerger | None, LayerPruners | None, Discriminator | None]:
        config, host = self.settings, self.host
        merger = pruners = discriminator = None
        sizes = {"dim", "num_heads", "diverse", "redundancy"}
        if config.merger is not None:
            kind = config.merger.kind
            words = host.text_width if kind == "question_aware" else None
            shape = config.merger.model_dump(include=sizes)
            merger = TokenMerger(
                MergerShape(kind=kind, width=host.feature_width, question_width=words, **shape)
            )
        if config.pruners is not None:
            layers = tuple(layer for layer, _ in self.schedule.cuts)
            shape = config.pruners.model_dump(include={"kind", *sizes})
            pruners = LayerPruners(PrunersShape(layers=layers, width=host.text_width, **shape))
        if self.weights["adversarial"] > 0:
            shape = config.discriminator.model_dump(include={"dim", "spectral_norm"})
            count = len(self._watched_layers())
            discriminator = Discriminator(
                DiscriminatorShape(width=host.text_width, num_layers=count, **shape)
            )
        return merger, pruners, discriminator

    def _build_plan(self) -> Plan:
        """Build a plan of budgets, or of ratios if the number of tokens depends on the image."""

        def amount(budget: int, given: bool) -> dict[str, Any]:
            if self.host.supply is not None or given:
                return {"budget": budget}
            return {"ratio": budget / self.schedule.vision}

        config, stage1, cuts = self.settings, None, []
        if self.merger is not None and config.merger is not None:
            given = config.merger.budget is not None and config.merger.ratio is None
            stage1 = Stage1(self.merger, **amount(self.schedule.merged, given))
        if self.pruners is not None and config.pruners is not None:
            given = config.pruners.budgets is not None
            cuts = [
                Cut(layer, self.pruners[layer], **amount(budget, given))
                for layer, budget in self.schedule.cuts
            ]
        return Plan(stage1, cuts, config.positions, config.size_bias, HostMark.of(self.host))

    def _scaled_plans(self) -> list[Plan]:
        """Return the plans that the steps take in turn."""
        plans = [self.plan.scaled(scale) for scale in self.settings.scales]
        for plan, scale in zip(plans, self.settings.scales, strict=True):
            try:
                plan.resolve(len(self.host.layers), self.host.supply)
            except InputError as error:
                raise ConfigError(f"scales: got {scale}: {error}") from None
        return plans

    def _watched_layers(self) -> list[int]:
        count = len(self.host.layers)
        layers = self.settings.discriminator.layers
        if any(not -count <= layer < count for layer in layers):
            raise ConfigError(
                f"discriminator.layers: got {list(layers)}, expected layers of the host, which has "
                f"{count}"
            )
        # In the order in which hooks fire.
        return sorted({layer % count for layer in layers})

    def _warn_unused_settings(self) -> None:
        """Report settings without effect on this host; see also `Config.without_effect`."""
        data, merger = self.settings.data, self.settings.merger
        sizes = f"{self.host.family} has a fixed number of vision tokens ({self.host.supply})"
        unused: dict[str, str] = {}
        for name in ("max_vision_tokens", "image_max_size"):
            if getattr(data, name) is None:
                continue
            if not _takes_any_size(self.processor, name):
                unused[f"data.{name}"] = sizes
            elif isinstance(data, ScenesDataConfig):
                unused[f"data.{name}"] = "data.scenes sets the size of scenes"
        if isinstance(data, ScenesDataConfig) and not isinstance(self.source, SceneSource):
            for name in data.model_fields_set & {"questions_per_image", "weights"}:
                if getattr(data, name) != type(data).model_fields[name].default:
                    unused[f"data.{name}"] = "only hosts with the vocabulary of the scenes use it"
        elif (
            isinstance(self.source, FileSource)
            and data.questions_per_image > self.source.questions_per_image
        ):
            unused["data.questions_per_image"] = "only a LLaVA shares images between questions"
        if merger is not None and merger.budget and merger.ratio and self.host.supply is None:
            unused["merger.budget"] = (
                "the number of tokens depends on the image; merger.ratio sets it"
            )
        for key, reason in unused.items():
            logger.warning("%s has no effect: %s", key, reason)

    def to(self, device: torch.device) -> None:
        """Move the parts and the host."""
        super().to(device)
        self.model.to(device)

    def batches(
        self, start_step: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[HostBatch]:
        """Yield the batches of this process."""
        train = self.settings.train
        self.fraction = start_step / train.total_steps  # an evaluation may come first
        settings = train.batch_size, train.seed, start_step
        return self.source.batches(*settings, rank, world_size, device)

    def metric_names(self) -> list[str]:
        """Return the names of the validation metrics."""
        return self.validation.names()

    def check(self, check: DataCheck) -> None:
        """Check the data files, if there are any."""
        if isinstance(self.source, FileSource):
            self.source.check(check)

    def relaxation(self, fraction: float, *, training: bool) -> Relaxation:
        """Return the relaxation when a fraction of the training is done."""
        temperature = self.settings.temperature
        now = temperature.at(fraction)
        assert temperature.end <= now <= temperature.start, (now, temperature)
        # After annealing the training form selects and merges as inference does: with noise to the
        # end, the parts relied on it and lost accuracy without it.
        annealed = fraction >= temperature.anneal_fraction
        return Relaxation(
            temperature=now,
            noise=now / temperature.start if training and not annealed else 0.0,
            hard=annealed,
            mode=self.settings.mask_mode,
        )

    def observe_whole(self, batch: HostBatch) -> Observed:
        """Run the unpruned model."""
        # Packed rows are cheaper, but round differently: a discriminator could recognise them.
        packed = batch.packed if self.discriminator is None else None
        recorded = nullcontext([None])
        if self.weights["attention"] > 0:
            recorded = objective.record_attention(self.host, batch, packed)
        with torch.no_grad(), recorded as attention:
            if packed is not None:
                whole = objective.observe_packed(self.model, self.watched, batch, packed)
            else:
                with shared_images(self.host.tower, batch.rows_per_image):
                    whole = observe(self.model, self.watched, batch, nullcontext())
        return replace(whole, attention=attention[0])

    def observe_pruned(
        self, batch: HostBatch, relaxation: Relaxation, plan: Plan | None = None
    ) -> tuple[Observed, TrainingRelaxer]:
        """Run the model with a plan (None: at its own budgets) in its training form."""
        relaxer = TrainingRelaxer(self.merger, self.pruners, relaxation, self.settings.size_bias)
        options = {"relaxer": relaxer, "acts_on": self.settings.mask_acts_on}
        context = masking(self.model, plan or self.plan, batch.question_mask, **options)
        with shared_images(self.host.tower, batch.rows_per_image):
            return observe(self.model, self.watched, batch, context), relaxer

    @property
    def needs_teacher(self) -> bool:
        """Whether a loss compares with the unpruned model."""
        compares = any(self.weights[name] > 0 for name in ("kl", "hidden", "attention"))
        return compares or self.discriminator is not None

    def step(self, batch: HostBatch, progress: Progress) -> StepOutput:
        """Compute all losses that have a weight."""
        if self._is_main:
            self._context.look(batch.inputs["input_ids"].shape[1])
        weights, relaxation = self.weights, self.relaxation(progress.fraction, training=True)
        with memory_guard("a training step"):
            plan = self.plans[progress.step % len(self.plans)]
            student, relaxer = self.observe_pruned(batch, relaxation, plan)
            metrics: dict[str, Any] = {"temperature": relaxation.temperature}
            metrics["accuracy"] = right_answers(student, batch).float().mean()
            teacher = self.observe_whole(batch) if self.needs_teacher else None
            losses = objective.losses_of(student, teacher, relaxer, batch)
            if self.discriminator is not None:
                assert teacher is not None
                adversarial, probabilities = objective.adversarial_losses(
                    self.discriminator, student, teacher, batch
                )
                losses, metrics = losses | adversarial, metrics | probabilities
        kept = {layer: stage.choice.kept.sum(-1) for layer, stage in relaxer.decisions.items()}
        metrics |= step_metrics(losses, kept)
        self._latest = metrics
        # The losses of the discriminator itself always have weight 1.
        weights = weights | {"real": 1.0, "fake": 1.0}
        used = {name: weights[name] * loss for name, loss in losses.items() if weights[name] > 0}
        return StepOutput(used, metrics, weight=(answers(batch) != -100).sum().float())

    def after_step(
        self, progress: Progress, optimizers: Mapping[str, torch.optim.Optimizer]
    ) -> None:
        """Log, and reset the discriminator with a small probability."""
        self.fraction = (progress.step + 1) / progress.total_steps
        step = progress.step + 1
        if self._latest and self._is_main and step % self.settings.train.log_every == 0:
            logger.info(step_line(step, tuple(self.modules), self._latest))
        chance = self.settings.discriminator.reinit_prob
        if self.discriminator is not None and torch.rand(()).item() < chance:
            self.discriminator.reinitialise()
            reset_optimizer(optimizers["discriminator"])

    def describe(self) -> list[str]:
        """Return lines that describe the training."""
        config, schedule = self.settings, self.schedule
        lines = [f"host: {self.host.family}, frozen; {len(self.host.layers)} layers"]
        if config.merger is not None:
            lines.append(
                f"token merger: {config.merger.kind}, {schedule.vision} > {schedule.merged} tokens"
            )
        if schedule.cuts:
            cuts = ", ".join(f"{budget} at layer {layer}" for layer, budget in schedule.cuts)
            lines.append(f"layer pruners: {cuts}")
        if config.scales != (1.0,):
            lines.append(f"budgets: multiplied by {', '.join(f'{s:g}' for s in config.scales)}")
        if self.discriminator is not None:
            lines.append(f"discriminator: layers {self._watched_layers()}")
        temperature = config.temperature
        weights = ", ".join(f"{name} {weight:g}" for name, weight in self.weights.items() if weight)
        lines.append(f"losses: {weights}")
        total = config.train.total_steps
        reached = f"after {round(temperature.anneal_fraction * total)} of {total} steps"
        lines.append(f"temperature: {temperature.start} > {temperature.end} {reached}")
        cost = self.validation.cost()
        return [*lines, cost.line(), *(f"note: {note}" for note in cost.warnings())]

    def evaluate(self) -> Mapping[str, float]:
        """Return accuracies with all tokens, merged, masked and removed, and the cost."""
        self._write_plan()
        with memory_guard("an evaluation"):
            metrics = self.validation.run(self.fraction)
        if self._is_main:
            logger.info("evaluation: %s", listed(metrics))
        return metrics

    def _write_plan(self) -> None:
        """Write `plan.json`, so that the run folder loads as a plan."""
        folder = self.settings.train.folder
        if folder.is_dir() and not (folder / "plan.json").exists():
            with TemporaryDirectory() as scratch:
                self.plan.save(scratch)
                write_text(folder / "plan.json", (Path(scratch) / "plan.json").read_text("utf-8"))


def open_source(
    config: TokensTrainConfig, processor: Any, supply: int | None
) -> SceneSource | FileSource:
    """Open the data of a config."""
    data = config.data
    if isinstance(data, ScenesDataConfig):
        if supply is not None and reads_scenes(processor):
            return SceneSource(data, supply)
        train = SceneExamples(data.scenes, "train", data.examples)
        validation = SceneExamples(data.scenes, "validation", data.validation)
        return FileSource(train, validation, processor)
    train, validation = read_examples(data)
    longest = data.image_max_size if _takes_any_size(processor, "image_max_size") else None
    area = None
    if data.max_vision_tokens and _takes_any_size(processor, "max_vision_tokens"):
        images = processor.image_processor
        area = data.max_vision_tokens * (images.patch_size * images.merge_size) ** 2
    if longest or area:
        train, validation = (Resized(part, longest, area) for part in (train, validation))
    return FileSource(
        train,
        validation,
        processor,
        instruction=data.instruction,
        questions_per_image=data.questions_per_image if can_share_images(processor, train) else 1,
        num_workers=data.num_workers,
    )


def _takes_any_size(processor: Any, key: str) -> bool:
    """Return whether the number of vision tokens depends on the image size."""
    images = processor.image_processor
    if key == "max_vision_tokens":
        return hasattr(images, "merge_size")
    return hasattr(images, "merge_size") or bool(getattr(images, "do_image_splitting", False))


def with_counted_steps(config: TokensTrainConfig) -> TokensTrainConfig:
    """Return the config with the total steps of its `epochs`, for data from files."""
    if config.epochs is None or isinstance(config.data, ScenesDataConfig):
        return config
    steps = config.steps_of(len(read_examples(config.data)[0]))  # pyright: ignore[reportArgumentType]
    return config.replace({"train.total_steps": steps})


def _check_epochs(config: TokensTrainConfig, num_examples: int) -> None:
    if config.epochs is None:
        return
    steps = config.steps_of(num_examples)
    if config.train.total_steps != steps:
        raise ConfigError(
            f"epochs {config.epochs} over {num_examples} examples are {steps} steps, but "
            f"train.total_steps is {config.train.total_steps}; set it to {steps}, or remove epochs"
        )
