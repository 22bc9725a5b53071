"""Accuracy of the tiny LLaVA on held-out questions, with stock `generate`.

Every question has its own prompt and image, on the test split. Chance and the blind baseline are
reported for comparison; the latter gives, without an image, the most frequent training answer to
the same text or, for new texts, to the same kind of question (as in `benchmarks.scenes.stats`).
Questions about colour-shape pairs that are not in the training split are also reported separately.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from rich.table import Table
from torch import Tensor

from eligo.cli import run_script
from eligo.cli.console import OutFile, compact_table, print_result, results, write_result_file
from eligo.config import Config
from eligo.pretrained.chat import tokenize
from eligo.report.intervals import wilson_interval
from eligo.scenes.blind import fit_blind
from eligo.scenes.config import SceneConfig, Split
from eligo.scenes.graph import draw_scenes
from eligo.scenes.painter import render
from eligo.scenes.question_kinds import FAMILIES, KINDS, Kind
from eligo.scenes.questions import draw_questions
from eligo.scenes.vlm import PROMPT, load_vlm
from eligo.train.progress import ProgressBar

TARGET = 0.95
"""The accuracy to reach in every family."""
_CHUNK = 64


class VlmEvaluationConfig(Config):
    """The model and the questions of the evaluation."""

    task: Literal["scenes.evaluate-vlm"] = "scenes.evaluate-vlm"
    """Which kind of config this is."""
    model: Path | None = None
    """Folder of the model; none: the shipped one."""
    questions: int = Field(default=600, ge=6)
    """Questions in all, the same number from each of the six families."""
    batch_size: int = Field(default=1, ge=1)
    """Prompts in one call of `generate`; each holds one image and one question."""
    device: str = "auto"
    """Where to run: auto, cpu or cuda."""
    scenes: SceneConfig = SceneConfig()
    """The scenes."""
    split: Split = "test"
    """Which scenes."""
    blind_scenes: int = Field(default=4000, ge=1)
    """Training scenes on which the blind baseline is fitted."""

    @property
    def resolved_device(self) -> str:
        """The device; `auto` is a GPU if there is one."""
        from eligo.pretrained.devices import resolve_device

        return str(resolve_device(self.device))


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question, its answer, and the answers of the model and the blind baseline."""

    kind: str
    question: str
    answer: str
    held_out: bool
    """Whether a deciding object has a colour-shape pair that is not in the training split."""
    said: str = ""
    """The model's answer."""
    blind: str = ""
    """The blind baseline's answer."""


@dataclass(frozen=True)
class Share:
    """A share of right answers."""

    right: int
    asked: int

    @property
    def value(self) -> float:
        """The share, 0 to 1."""
        return self.right / self.asked if self.asked else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % Wilson interval."""
        return wilson_interval(self.right, self.asked)


@dataclass(frozen=True)
class FamilyResult:
    """The result of one family of questions, of one kind, or of all questions."""

    family: str
    kind: str
    """Name of the kind, or "all" for the family as a whole."""
    accuracy: Share
    held_out: Share
    blind: Share
    chance: float

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.accuracy.value >= TARGET


def draw_test_questions(config: VlmEvaluationConfig) -> Iterator[tuple[AnsweredQuestion, Tensor]]:
    """Yield questions with their images (3, height, width), family by family, one per scene."""
    each = config.questions // len(FAMILIES)
    for number, family in enumerate(FAMILIES):
        count, start = 0, number * 1_000_000  # no scene is used for two families
        while count < each:
            graph = draw_scenes(config.scenes, config.split, range(start, start + _CHUNK))
            start += _CHUNK
            questions = draw_questions(graph, 1, (family,))
            rows = questions.valid[:, 0].nonzero()[:, 0][: each - count]
            images = render(graph).rgb
            unknown = (questions.deciding[:, 0] & graph.held_out).any(-1)
            for row in rows.tolist():
                yield (
                    AnsweredQuestion(
                        kind=KINDS[int(questions.kind[row, 0])].name,
                        question=questions.text(row, 0),
                        answer=questions.answer_text(row, 0),
                        held_out=bool(unknown[row]),
                    ),
                    images[row],
                )
            count += len(rows)


def evaluate_vlm(
    config: VlmEvaluationConfig, on_progress: Callable[[int], None] | None = None
) -> list[AnsweredQuestion]:
    """Answer all questions; `on_progress` receives the number of finished questions."""
    device = config.resolved_device
    model, processor = load_vlm(config.model, device=device)
    blind = fit_blind(config.scenes, config.blind_scenes)
    results: list[AnsweredQuestion] = []

    def answers(items: list[AnsweredQuestion], images: list[Tensor]) -> list[str]:
        inputs = tokenize(
            processor,
            images=images,
            text=[PROMPT.format(question=item.question) for item in items],
            padding=True,  # pyright: ignore[reportCallIssue]
            return_tensors="pt",  # pyright: ignore[reportCallIssue]
        ).to(device)
        generate = model.generate  # pyright: ignore[reportAttributeAccessIssue]
        output = generate(**inputs, max_new_tokens=4, do_sample=False)
        texts = processor.batch_decode(
            output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
        return [text.strip() for text in texts]

    def evaluate(batch: list[tuple[AnsweredQuestion, Tensor]]) -> None:
        items, images = [item for item, _ in batch], [image for _, image in batch]
        results.extend(
            replace(item, said=answer, blind=blind(item.question, item.kind))
            for item, answer in zip(items, answers(items, images), strict=True)
        )
        if on_progress is not None:
            on_progress(len(results))

    batch: list[tuple[AnsweredQuestion, Tensor]] = []
    for pair in draw_test_questions(config):
        batch.append(pair)
        if len(batch) == config.batch_size:
            evaluate(batch)
            batch = []
    if batch:
        evaluate(batch)
    return results


def summarise(results: list[AnsweredQuestion]) -> list[FamilyResult]:
    """Return a row per family, per kind if a family has several, and for all together."""
    rows = []
    for family in FAMILIES:
        kinds = [kind for kind in KINDS if kind.family == family]
        rows.append(_row(results, kinds, family, "all"))
        if len(kinds) > 1:
            rows += [_row(results, [kind], family, kind.name) for kind in kinds]
    return [*rows, _row(results, list(KINDS), "all", "all")]


def _row(
    results: list[AnsweredQuestion], kinds: list[Kind], family: str, name: str
) -> FamilyResult:
    chance = {kind.name: 1 / len(kind.answers) for kind in kinds}
    selected = [item for item in results if item.kind in chance]
    return FamilyResult(
        family=family,
        kind=name,
        accuracy=_share(selected, "said"),
        held_out=_share([item for item in selected if item.held_out], "said"),
        blind=_share(selected, "blind"),
        chance=sum(chance[item.kind] for item in selected) / max(1, len(selected)),
    )


def _share(results: list[AnsweredQuestion], field: str) -> Share:
    return Share(sum(getattr(item, field) == item.answer for item in results), len(results))


def run(config: VlmEvaluationConfig, *, out: OutFile | None = None, json: bool = False) -> None:
    """Answer held-out questions with stock `generate`, and count the right answers.

    Args:
        out: Also write the result, with date, hardware and command, to this JSON file.
        json: Print one JSON document.
    """
    device = config.resolved_device  # raises before any work if it is not available
    with ProgressBar("questions", config.questions) as bar:
        answered = evaluate_vlm(config, bar.update)
    rows = summarise(answered)
    document = {"target": TARGET, "rows": [_plain(row) for row in rows]}
    if json:
        print_result(document, json=True)
    else:
        results().print(_table(rows, config.split, TARGET))
    wrong = [[a.kind, a.question, a.answer, a.said] for a in answered if a.said != a.answer]
    write_result_file(out, device, document | {"wrong": wrong})


def _plain(row: FamilyResult) -> dict[str, Any]:
    shares = {
        name: {"right": share.right, "asked": share.asked, "share": round(share.value, 4)}
        | {"interval": [round(end, 4) for end in share.interval]}
        for name in ("accuracy", "held_out", "blind")
        if (share := getattr(row, name)).asked
    }
    head = {"family": row.family, "kind": row.kind}
    reached = {"met": row.met} if row.kind == "all" else {}
    return head | reached | {"chance": round(row.chance, 4)} | shares


def _table(rows: list[FamilyResult], split: str, target: float) -> Table:
    table = compact_table(
        f"right answers on the {split} split (%)",
        "interval: 95 % · unknown: about a colour-shape pair that is not in the training split · "
        "blind: no image, the most frequent training answer to the same text",
        ("questions",),
        ("asked", "right", "interval", "unknown", "blind", "chance"),
    )
    table.add_column(f">={100 * target:.0f}", no_wrap=True)
    for row in rows:
        if not row.accuracy.asked:
            continue
        whole = row.kind == "all"
        low, high = row.accuracy.interval
        table.add_row(
            row.family if whole else f"  {row.kind}",
            str(row.accuracy.asked),
            _percent(row.accuracy),
            f"{100 * low:.1f}-{100 * high:.1f}",
            _percent(row.held_out),
            _percent(row.blind),
            f"{100 * row.chance:.1f}",
            ("[green]met[/]" if row.met else "[bold red]no[/]") if whole else "",
            style="bold" if whole else "",
        )
    return table


def _percent(share: Share) -> str:
    return f"{100 * share.value:.1f}" if share.asked else "-"


if __name__ == "__main__":
    raise SystemExit(run_script(run))
