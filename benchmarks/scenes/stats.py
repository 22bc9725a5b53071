"""Statistics of scenes and questions, and the accuracy of the blind baseline.

The blind baseline learns, on the training split, the most frequent answer to every question text
(to every kind of question, for new texts) and is tested on the validation split. It should be near
chance: a kind is flagged if it is more than five points above chance, and chance is outside its
confidence interval.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int64
from pydantic import Field
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import Tensor

from eligo.cli import run_script
from eligo.cli.console import print_result, results
from eligo.config import Config
from eligo.report.intervals import wilson_interval
from eligo.scenes import draws, words
from eligo.scenes.config import SceneConfig
from eligo.scenes.graph import SPLITS, SceneGraph, Split, draw_scenes
from eligo.scenes.question_kinds import ANSWERS, CHANCE, FAMILIES, FAMILY_OF, KINDS
from eligo.scenes.questions import draw_questions
from eligo.train.progress import ProgressBar

MARGIN = 0.05
"""How far above chance the blind baseline may be."""
_CHUNK = 512


class StatsConfig(Config):
    """Scenes and questions to count."""

    task: Literal["scenes.stats"] = "scenes.stats"
    """Which kind of config this is."""
    scenes: SceneConfig = SceneConfig()
    """The scenes."""
    train: int = Field(12_000, ge=1)
    """Training scenes, on which the blind baseline is fitted."""
    validation: int = Field(4000, ge=1)
    """Validation scenes, on which everything is measured."""
    questions: int = Field(16, ge=1, le=256)
    """Questions on each scene."""


@dataclass(frozen=True)
class KindStats:
    """One kind of question, or one family of kinds, on the validation split."""

    family: str
    kind: str
    """Name of the kind, or "all" for the family as a whole."""
    count: int
    valid: float
    """Share of draws that gave a question."""
    chance: float
    """Accuracy of guessing evenly among the answers the kind can have."""
    blind: float
    """Accuracy of the blind baseline."""
    seen: float
    """Share of the questions whose exact text is in the training split."""
    interval: tuple[float, float]
    """Its 95 % Wilson interval."""
    fair: bool
    """False if it is significantly above chance, by more than `MARGIN`."""
    answers: dict[str, float]
    """How often each answer is the right one."""


@dataclass(frozen=True)
class Stats:
    """All statistics."""

    rows: list[KindStats]
    objects: dict[str, dict[str, float]]
    """Per property of the things in a scene, the share of each value (validation split)."""
    held_out: dict[str, float]
    """Share of objects with a held-out colour-shape pair, per split."""

    @property
    def fair(self) -> bool:
        """Whether every kind is fair."""
        return all(row.fair for row in self.rows)


@dataclass(frozen=True)
class _Sample:
    """Questions of many scenes, concatenated, invalid ones included (answer -1)."""

    text: Int64[Tensor, " questions"]
    """A 64-bit hash of the question's words."""
    kind: Int64[Tensor, " questions"]
    answer: Int64[Tensor, " questions"]


def scene_stats(config: StatsConfig, on_progress: Callable[[int], None] | None = None) -> Stats:
    """Draw scenes and questions, and count; `on_progress` receives the number of scenes."""
    train = _sample(config, "train", on_progress)
    test = _sample(config, "validation", on_progress, done=config.train)
    guess, seen = _blind_answers(train, test)
    rows = []
    for number, family in enumerate(FAMILIES):
        kinds = [index for index, owner in enumerate(FAMILY_OF) if owner == number]
        rows.append(_row(test, guess, seen, kinds, family, "all"))
        if len(kinds) > 1:
            rows += [_row(test, guess, seen, [kind], family, KINDS[kind].name) for kind in kinds]
    return Stats(
        rows,
        _objects(draw_scenes(config.scenes, "validation", range(config.validation))),
        {split: _held_out_share(config, split) for split in SPLITS},
    )


def _sample(
    config: StatsConfig,
    split: Literal["train", "validation"],
    on_progress: Callable[[int], None] | None,
    done: int = 0,
) -> _Sample:
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for chunk in _chunks(getattr(config, split)):
        questions = draw_questions(draw_scenes(config.scenes, split, chunk), config.questions)
        text = torch.zeros_like(questions.answer)
        for column in questions.words.unbind(-1):
            text = draws.mix(text + column + 2)
        parts.append((text.flatten(), questions.kind.flatten(), questions.answer.flatten()))
        if on_progress is not None:
            on_progress(done + chunk.stop)
    return _Sample(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _chunks(scenes: int) -> Iterator[range]:
    return (range(start, min(start + _CHUNK, scenes)) for start in range(0, scenes, _CHUNK))


def _blind_answers(
    train: _Sample, test: _Sample
) -> tuple[Int64[Tensor, " questions"], Bool[Tensor, " questions"]]:
    """Return the most frequent training answer to the text of each test question, or to its kind
    for new texts; and whether the text is in the training split."""
    valid = train.answer >= 0
    by_kind = torch.zeros(len(KINDS), len(ANSWERS), dtype=torch.int64)
    by_kind.index_put_((train.kind[valid], train.answer[valid]), torch.tensor(1), accumulate=True)
    texts, place = train.text[valid].unique(return_inverse=True)
    by_text = torch.zeros(len(texts), len(ANSWERS), dtype=torch.int64)
    by_text.index_put_((place, train.answer[valid]), torch.tensor(1), accumulate=True)
    at = torch.searchsorted(texts, test.text).clamp(max=len(texts) - 1)
    seen = texts[at] == test.text
    return torch.where(seen, by_text.argmax(-1)[at], by_kind.argmax(-1)[test.kind]), seen


def _row(
    test: _Sample, guess: Tensor, seen: Tensor, kinds: list[int], family: str, name: str
) -> KindStats:
    selected = torch.isin(test.kind, torch.tensor(kinds))
    valid = selected & (test.answer >= 0)
    count = int(valid.sum())
    right = int((guess == test.answer)[valid].sum())
    table = torch.tensor(CHANCE, dtype=torch.float64)
    chance = table[test.kind[valid] if count else torch.tensor(kinds)].mean().item()
    possible = dict.fromkeys(answer for kind in kinds for answer in KINDS[kind].answers)
    given = torch.bincount(test.answer[valid], minlength=len(ANSWERS)).double() / max(1, count)
    share = {answer: given[ANSWERS.index(answer)].item() for answer in possible}
    blind, interval = right / max(1, count), wilson_interval(right, count)
    return KindStats(
        family=family,
        kind=name,
        count=count,
        valid=count / max(1, int(selected.sum())),
        chance=chance,
        blind=blind,
        seen=int(seen[valid].sum()) / max(1, count),
        interval=interval,
        fair=blind <= chance + MARGIN or interval[0] <= chance,
        answers=share,
    )


def _objects(graph: SceneGraph) -> dict[str, dict[str, float]]:
    askable = graph.askable
    shares = {"number": _shares(askable.sum(1), {str(n): n for n in range(9)})}
    for index, names in enumerate(words.VALUES):
        values = graph.attributes[..., index][askable]
        shares[words.ATTRIBUTES[index]] = _shares(values, {n: i for i, n in enumerate(names)})
    kinds = graph.kind.expand_as(graph.exists)[graph.exists]
    names = ("object", "decoy", "camouflaged", "painted")
    shares["kind of thing"] = _shares(kinds, {name: index for index, name in enumerate(names)})
    return shares


def _shares(values: Tensor, names: dict[str, int]) -> dict[str, float]:
    """Return the share of each named value that occurs."""
    shares = {name: (values == value).double().mean().item() for name, value in names.items()}
    return {name: share for name, share in shares.items() if share > 0}


def _held_out_share(config: StatsConfig, split: Split) -> float:
    graph = draw_scenes(config.scenes, split, range(config.validation))
    return (graph.held_out & graph.askable).sum().item() / int(graph.askable.sum())


def as_plain(stats: Stats) -> dict[str, Any]:
    """Return all statistics as JSON."""
    return {
        "fair": stats.fair,
        "margin": MARGIN,
        "questions": [vars(row) for row in stats.rows],
        "objects": stats.objects,
        "held_out": stats.held_out,
    }


def run(config: StatsConfig, *, json: bool = False) -> None:
    """Count questions, answers and objects, and measure the blind baseline.

    The blind baseline gives the most frequent training answer, without the image. A kind of
    question is marked !! if that is significantly, and by more than five points, above chance.

    Args:
        json: Print one JSON document.
    """
    with ProgressBar("scenes", config.train + config.validation) as bar:
        stats = scene_stats(config, bar.update)
    if json:
        print_result(as_plain(stats), json=True)
    else:
        results().print(
            Group(_questions(stats), _answers(stats), _object_table(stats), _conclusion(stats))
        )


def _questions(stats: Stats) -> Table:
    table = Table(title="questions on the validation split (%)", title_justify="left")
    for name in ("family", "kind"):
        table.add_column(name, no_wrap=True)
    for name in ("count", "valid", "chance", "blind", "95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(min_width=2)
    for row in stats.rows:
        table.add_row(*_cells(row), style="bold" if row.kind == "all" else "")
    return table


def _cells(row: KindStats) -> list[str | Text]:
    low, high = row.interval
    numbers = [f"{100 * share:.1f}" for share in (row.valid, row.chance, row.blind)]
    between = f"{100 * low:.1f}-{100 * high:.1f}"
    mark = Text("OK", "green") if row.fair else Text("!!", "bold red")
    family = row.family if row.kind == "all" else ""
    return [family, row.kind, str(row.count), *numbers, between, mark]


def _answers(stats: Stats) -> Table:
    kinds_of = Counter(row.family for row in stats.rows)
    single = [row for row in stats.rows if row.kind != "all" or kinds_of[row.family] == 1]
    names = [row.family if row.kind == "all" else row.kind for row in single]
    return _share_table(
        "answers (%)", dict(zip(names, (row.answers for row in single), strict=True))
    )


def _object_table(stats: Stats) -> Table:
    held_out = {"held-out pairs": stats.held_out}
    return _share_table("things in a scene (%)", {**stats.objects, **held_out})


def _share_table(title: str, rows: dict[str, dict[str, float]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, shares in rows.items():
        listed = (f"{value} {100 * share:.1f}" for value, share in shares.items())
        table.add_row(name, ", ".join(listed))
    return table


def _conclusion(stats: Stats) -> Text:
    above = [row for row in stats.rows if row.blind > row.chance + MARGIN]
    unfair, unsure = (
        ", ".join(f"{row.family}/{row.kind}" for row in above if row.fair is fair)
        for fair in (False, True)
    )
    far = f"more than {100 * MARGIN:.0f} points above chance without the image"
    if unfair:
        return Text(f"!! significantly, and {far}: {unfair}", "bold red")
    if unsure:
        return Text(f"OK, but too few questions to be sure; {far}: {unsure}", "green")
    return Text(f"OK: none is {far}", "green")


if __name__ == "__main__":
    raise SystemExit(run_script(run))
