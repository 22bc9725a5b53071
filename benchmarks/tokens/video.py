"""`python -m benchmarks.tokens.video`: accuracy on generated clips from fewer tokens.

For each seed, a tiny Qwen2.5-VL (`video_host`) learns to answer questions about clips of
`eligo.scenes.clips`, and a token merger learns to prune it. Then all methods that work before the
language model answer the same questions of the test split from 1/2, 1/4 and 1/8 of the tokens of a
clip. The training-free methods have their default settings. Intervals are 95 %, paired, from a
bootstrap over clips and seeds.

The seeds run side by side. `--show FILE` prints the tables of a result file (docs/tokens_video.md).
"""

import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from benchmarks.studies import print_end
from benchmarks.tokens.video_host import (
    ANSWER,
    ASSISTANT,
    END,
    PAD,
    VideoHostConfig,
    ask,
    draw_training_clips,
    patches_of,
    prompt_inputs,
    token_ids,
    train_host,
)
from eligo.cli import run_script
from eligo.cli.console import print_text
from eligo.cli.flags import Count, Positive
from eligo.config.bounds import Seed
from eligo.io.files import write_text
from eligo.io.reading import read_json
from eligo.report.intervals import bootstrap_means
from eligo.report.provenance import provenance
from eligo.scenes.clips import KINDS, ClipGraph, Kind, draw_clip_graphs
from eligo.scenes.config import Split
from eligo.scenes.painter import render_all
from eligo.tokens.config import TemperatureConfig
from eligo.tokens.hooks.masking import masking
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.hosts import host_of
from eligo.tokens.methods import METHODS
from eligo.tokens.metrics import ALL
from eligo.tokens.model.relaxer import Relaxation, TrainingRelaxer
from eligo.tokens.model.token_merger import MergerShape, TokenMerger
from eligo.tokens.plan import Plan, Stage1
from eligo.tokens.training.batch import HostBatch
from eligo.tokens.training.objective import losses_of, observe
from eligo.vqa import fit_usual_answers

RATIOS = {"1/2": 0.5, "1/4": 0.25, "1/8": 0.125}
WHOLE, LEARNED = "none", "learned"
CONTROLS = ("no video", "other clip", "frames shuffled", "question only")
_LEFT_OUT = ("none", "oracle")  # nothing to prune; knows the objects of scenes only
_BATCH = 500
_RESAMPLES = 2000
_WEIGHTS = {"task": 1.0, "kl": 1.0, "hidden": 0.5, "sparsity": 1e-4}


@dataclass(frozen=True)
class Settings:
    """What a run does."""

    host: VideoHostConfig = field(default_factory=VideoHostConfig)
    seconds: float = 120
    plan_seconds: float = 25
    clips: int = 1000
    usual_clips: int = 4000
    steps: int | None = None

    @classmethod
    def quick(cls) -> "Settings":
        """Return a test run on a CPU."""
        scenes = VideoHostConfig().scenes.replace({"height": 32, "width": 32})
        small = {"vision_width": 32, "vision_layers": 2, "width": 32, "layers": 2, "head": 16}
        host = VideoHostConfig(
            scenes=scenes, num_frames=4, patch=4, questions=3, batch_size=4, **small
        )
        return cls(host, clips=6, usual_clips=8, steps=4)


# ------------------------------------------------------------------ questions


@dataclass(frozen=True)
class Row:
    """A question on a test clip."""

    clip: int
    kind: Kind
    question: str
    answer: str


@dataclass(frozen=True)
class TestClips:
    """Test clips with their questions."""

    rgb: UInt8[Tensor, "clips frames 3 height width"]
    rows: tuple[Row, ...]

    def batches(self) -> Iterator[list[int]]:
        """Yield numbers of rows of one kind, so that their prompts have equal lengths."""
        for kind in KINDS:
            numbers = [n for n, row in enumerate(self.rows) if row.kind == kind]
            yield from (numbers[i : i + _BATCH] for i in range(0, len(numbers), _BATCH))


def draw_test_clips(settings: Settings, device: torch.device) -> TestClips:
    """Draw the clips of the test split."""
    config = settings.host
    clips = _draw(config, "test", settings.clips, device)
    rgb = render_all(clips.frames()).rgb.unflatten(0, (-1, config.num_frames))
    return TestClips(rgb, tuple(_rows(_draw(config, "test", settings.clips))))


def _draw(
    config: VideoHostConfig, split: Split, count: int, device: torch.device | str = "cpu"
) -> ClipGraph:
    return draw_clip_graphs(
        config.scenes, split, range(count), device, num_frames=config.num_frames
    )


def _rows(clips: ClipGraph) -> Iterator[Row]:
    for clip in range(len(clips)):
        for one in clips.questions(clip):
            yield Row(clip, one.kind, one.question, one.answer)


def answer(
    model: Any, config: VideoHostConfig, test: TestClips, plan: Plan | None, *, blind: bool = False
) -> str:
    """Return which questions are answered right, a 0 or a 1 for each."""
    right = ["0"] * len(test.rows)
    device = test.rgb.device
    for numbers in test.batches():
        rows = [test.rows[number] for number in numbers]
        text = torch.tensor([[*token_ids(row.question), ASSISTANT] for row in rows], device=device)
        pixels = None
        if not blind:
            pixels = patches_of(test.rgb[[row.clip for row in rows]], config.patch)
        inputs = prompt_inputs(config, text, pixels)
        length = inputs["input_ids"].shape[1]
        is_question = torch.arange(length, device=device) >= length - text.shape[1]
        question = is_question.expand(len(rows), -1)
        context = nullcontext() if plan is None else pruning(model, plan, question)
        with torch.no_grad(), context:
            found = model.generate(**inputs, max_new_tokens=ANSWER, do_sample=False)[:, length:]
        for number, row, tokens in zip(numbers, rows, found.tolist(), strict=True):
            given = [token for token in tokens if token != PAD]
            expected = [*token_ids(row.answer), END]
            right[number] = "01"[given[: len(expected)] == expected]
    return "".join(right)


# ------------------------------------------------------------------ the learned plan


def train_merger(
    model: Any, settings: Settings, seed: int, device: torch.device
) -> tuple[TokenMerger, dict[str, Any]]:
    """Train a question-aware merger for all ratios to imitate the unpruned host."""
    config, host = settings.host, host_of(model)
    model.requires_grad_(False)
    torch.manual_seed(seed)
    shape = MergerShape(
        kind="question_aware", width=host.feature_width, question_width=host.text_width, dim=64
    )
    merger = TokenMerger(shape).to(device)
    plans = [Plan(Stage1(merger, ratio=ratio)) for ratio in RATIOS.values()]
    optimizer = torch.optim.AdamW(merger.parameters(), 3e-4)
    watched: Sequence[nn.Module] = [host.layers[-1]]
    annealing, begin, step, history = TemperatureConfig(), time.monotonic(), 0, []
    while True:
        part = (time.monotonic() - begin) / settings.plan_seconds
        part = part if settings.steps is None else max(part, step / settings.steps)
        if part >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = 3e-4 * min(1.0, part / 0.1 + 0.01) * (1 - part)
        batch = _merger_batch(config, KINDS[step % 3], seed, step, device)
        now, annealed = annealing.at(part), part >= annealing.anneal_fraction
        noise = 0.0 if annealed else now / annealing.start
        relaxer = TrainingRelaxer(merger, None, Relaxation(now, noise, annealed))
        context = masking(model, plans[step // 3 % 3], batch.question_mask, relaxer=relaxer)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            with torch.no_grad():
                teacher = observe(model, watched, batch, nullcontext())
            student = observe(model, watched, batch, context)
            losses = losses_of(student, teacher, relaxer, batch)
        loss = torch.stack([_WEIGHTS[name] * value for name, value in losses.items()]).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(merger.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            history.append([step, round(loss.item(), 3)])
        step += 1
    return merger.eval(), {"steps": step, "history": history}


def _merger_batch(
    config: VideoHostConfig, kind: Kind, seed: int, step: int, device: torch.device
) -> HostBatch:
    """Return one question of a kind on each of new training clips."""
    first = (seed << 32) + (1 << 31) + step * config.batch_size
    drawn = draw_training_clips(config, "train", first + torch.arange(config.batch_size), device)
    asked = ask(drawn.clips, kind, 1)
    tokens = asked.tokens[:, 0]
    inputs = prompt_inputs(config, tokens, patches_of(drawn.rgb, config.patch))
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[:, -asked.num_answer :] = tokens[:, -asked.num_answer :]
    labels = labels.masked_fill(~asked.valid, -100)
    is_text = torch.zeros_like(labels, dtype=torch.bool)
    is_text[:, -tokens.shape[1] :] = True
    question = is_text.clone()
    question[:, -asked.num_answer :] = False
    return HostBatch(inputs, question, labels, is_text, tokens.shape[1], asked.num_answer)


# ------------------------------------------------------------------ the study


def run_seed(
    settings: Settings, seed: int, device: torch.device, report: Callable[[str], None] = print
) -> dict[str, Any]:
    """Train host and merger, and answer the test questions with all methods."""
    begin, failed = time.monotonic(), {}
    host, host_log = train_host(
        settings.host, seed, settings.seconds, device, max_steps=settings.steps, report=report
    )
    test, right = draw_test_clips(settings, device), {}
    result: dict[str, Any] = {"seed": seed, "host": host_log, "right": right, "failed": failed}

    def attempt(name: str, *arguments: Any, **options: Any) -> None:
        try:
            right[name] = answer(host, settings.host, *arguments, **options)
        except Exception as error:  # the other methods still count
            failed[name] = f"{type(error).__name__}: {error}"
            report(f"host {seed}: {name} failed: {failed[name]}")

    attempt(WHOLE, test, None)
    report(f"host {seed}: {right.get(WHOLE, '').count('1')} of {len(test.rows)} right")
    random = torch.Generator().manual_seed(0)
    orders = torch.stack([torch.randperm(test.rgb.shape[1], generator=random) for _ in test.rgb])
    shuffled = test.rgb[torch.arange(len(orders))[:, None], orders]
    attempt("no video", test, None, blind=True)
    attempt("other clip", TestClips(test.rgb.roll(1, 0), test.rows), None)
    attempt("frames shuffled", TestClips(shuffled, test.rows), None)
    try:
        merger, result["plan"] = train_merger(host, settings, seed, device)
        learned = {LEARNED: merger}
    except Exception as error:  # the other methods still count
        failed[LEARNED], learned = f"{type(error).__name__}: {error}", {}
        traceback.print_exc()
    methods = {
        name: method(**{"name": name, **method.before})
        for name, method in METHODS.items()
        if name not in _LEFT_OUT
    }
    methods = {name: one for name, one in methods.items() if "before" in one.where}
    for name, reducer in {**methods, **learned}.items():
        for label, ratio in RATIOS.items():
            attempt(f"{name}@{label}", test, Plan(Stage1(reducer, ratio=ratio)))
    result["seconds"] = round(time.monotonic() - begin, 1)
    report(f"host {seed}: done in {result['seconds']} s")
    return result


def _write_seed(settings: Settings, seed: int, device: str, path: Path) -> None:
    result = run_seed(settings, seed, torch.device(device))
    write_text(path, json.dumps(result) + "\n")


def question_only(settings: Settings, rows: Sequence[Row]) -> str:
    """Answer with the usual answer of training clips to the same words, or to the kind."""
    clips = _draw(settings.host, "train", settings.usual_clips)
    usual = fit_usual_answers((row.question, row.kind, row.answer) for row in _rows(clips))
    return "".join("01"[usual(row.question, row.kind) == row.answer] for row in rows)


def merge(settings: Settings, seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the result file: answers of all seeds, and their summary."""
    config = settings.host
    rows = tuple(_rows(_draw(config, "test", settings.clips)))
    common = [name for name in seeds[0]["right"] if all(name in one["right"] for one in seeds)]
    right = {name: [one["right"][name] for one in seeds] for name in common}
    right["question only"] = [question_only(settings, rows)] * len(seeds)
    return {
        "config": config.model_dump(mode="json"),
        "tokens": config.num_tokens,
        "clips": settings.clips,
        "questions": {kind: sum(row.kind == kind for row in rows) for kind in KINDS},
        "trainings": [{k: v for k, v in one.items() if k != "right"} for one in seeds],
        "summary": summarise(rows, right),
        "right": {
            name: [f"{int('1' + bits, 2):x}" for bits in runs] for name, runs in right.items()
        },
    }


def summarise(rows: Sequence[Row], right: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Return for each method: percentages right, points lost, and the lead of the learned plan."""
    names = list(right)
    bits = torch.tensor([[[int(bit) for bit in run] for run in right[name]] for name in names])
    bits = 100 * bits.double()
    ours = {name: f"{LEARNED}@{name.partition('@')[2]}" for name in names if "@" in name}
    pairs = [(names.index(WHOLE), number) for number in range(len(names))]
    ours = {name: learned for name, learned in ours.items() if learned in names}
    pairs += [(names.index(ours.get(name, name)), number) for number, name in enumerate(names)]
    differences = torch.stack([bits[one] - bits[other] for one, other in pairs])
    clips = [row.clip for row in rows]
    intervals = bootstrap_means(differences.tolist(), resamples=_RESAMPLES, groups=clips)
    found = []
    for number, name in enumerate(names):
        accuracy = {ALL: bits[number].mean().item()}
        for kind in KINDS:
            chosen = torch.tensor([row.kind == kind for row in rows])
            accuracy[kind] = bits[number][:, chosen].mean().item()
        entry: dict[str, Any] = {"method": name, "accuracy": accuracy, "lost": intervals[number]}
        if name in ours and ours[name] != name:
            entry["learned_ahead"] = intervals[len(names) + number]
        found.append(entry)
    return found


def tables(document: Mapping[str, Any]) -> str:
    """Return the tables of the page as Markdown."""
    by_name = {row["method"]: row for row in document["summary"]}

    def cells(row: Mapping[str, Any]) -> list[str]:
        mean, low, high = row["lost"]
        shares = [f"{row['accuracy'][kind]:.1f}" for kind in (ALL, *KINDS)]
        return [*shares, f"{mean:.1f} ({low:.1f} to {high:.1f})"]

    def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    head = ["all", *KINDS, "lost (95 % interval)"]
    seeds = [", ".join(f"{one['host']['steps']}" for one in document["trainings"])]
    parts = [
        f"{document['tokens']} tokens a clip, {document['clips']} clips, questions: "
        f"{document['questions']}; hosts: {len(document['trainings'])}, steps: {seeds[0]}",
        table(
            ["All tokens", *head],
            [[n, *cells(by_name[n])] for n in (WHOLE, *CONTROLS) if n in by_name],
        ),
    ]
    for label in RATIOS:
        rows = [row for name, row in by_name.items() if name.endswith(f"@{label}")]
        rows.sort(key=lambda row: -row["accuracy"][ALL])
        lines = []
        for row in rows:
            mean, low, high = row.get("learned_ahead", (0.0, 0.0, 0.0))
            lead = f"{mean:.1f} ({low:.1f} to {high:.1f})" if "learned_ahead" in row else ""
            lines.append([row["method"].partition("@")[0], *cells(row), lead])
        parts.append(table([f"{label} of the tokens", *head, "learned ahead by"], lines))
    failed = {name: why for one in document["trainings"] for name, why in one["failed"].items()}
    parts += [f"failed: {name}: {why}" for name, why in failed.items()]
    return "\n\n".join(parts)


def run(
    *,
    seeds: tuple[Seed, ...] = (0, 1, 2),
    seconds: Positive = 170,
    plan_seconds: Positive = 25,
    clips: Count = 1000,
    out: Path = Path("runs/tokens_video/video.json"),
    quick: bool = False,
    show: Path | None = None,
) -> None:
    """Train a host and a merger for every seed, answer with every method, and compare.

    Args:
        seeds: Every seed is a process of its own.
        seconds: Time to train a host.
        plan_seconds: Time to train a merger.
        clips: Clips of the test split.
        out: The file to write.
        quick: A quick test on a CPU; its numbers are meaningless.
        show: Only print the tables of this result file.
    """
    if show is not None:
        print_text(tables(read_json(show)))
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = Settings.quick() if quick else Settings(
        seconds=seconds, plan_seconds=plan_seconds, clips=clips
    )  # fmt: skip
    files = [out.with_name(f"video_seed_{seed}.json") for seed in seeds]
    for path in files:
        path.unlink(missing_ok=True)
    work = [(settings, seed, device, path) for seed, path in zip(seeds, files, strict=True)]
    if len(work) == 1:
        _write_seed(*work[0])
    else:
        processes = [get_context("spawn").Process(target=_write_seed, args=one) for one in work]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    found = [read_json(path) for path in files if path.is_file()]
    document = provenance(device) | {"quick": quick} | merge(settings, found)
    written = write_text(out, json.dumps(document) + "\n")
    print_text(tables(document))
    print_end(quick, written)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
