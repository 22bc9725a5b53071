"""How often the tiny LLaVA is right: held-out questions through stock `generate`.

Every question is a prompt of its own with an image of its own, on the test split. Beside it stand
chance and the blind baseline, which sees no image: the most frequent training answer to the same
words or, for words it has not met, to the same kind of question (as in `benchmarks.scenes.stats`).
Questions about a colour-shape pair that training never showed are reported apart as well.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from eligo.pretrained.chat import tokenize
from eligo.report.intervals import wilson_interval
from eligo.scenes.graph import draw_scenes
from eligo.scenes.painter import render
from eligo.scenes.question_kinds import ANSWERS, FAMILIES, KINDS, Kind
from eligo.scenes.questions import draw_questions
from eligo.scenes.vlm.config import VlmEvaluationConfig
from eligo.scenes.vlm.model import PROMPT, load_vlm

BAR = 0.95
"""What the model must reach in every family."""
_CHUNK = 64


@dataclass(frozen=True)
class Asked:
    """One question, what was answered, and what would have been right."""

    kind: str
    question: str
    answer: str
    held_out: bool
    """Whether an object that decides it has a colour-shape pair unknown from training."""
    said: str = ""
    """What the model says."""
    blind: str = ""
    """What the blind baseline says."""


@dataclass(frozen=True)
class Share:
    """A share of right answers, with its 95 % interval and what it is a share of."""

    right: int
    asked: int

    @property
    def value(self) -> float:
        """The share itself."""
        return self.right / self.asked if self.asked else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's."""
        return wilson_interval(self.right, self.asked)


@dataclass(frozen=True)
class Row:
    """One family of questions, one kind in a family, or all there are."""

    family: str
    kind: str
    """Name of the kind, or "all" for the family as a whole."""
    accuracy: Share
    held_out: Share
    blind: Share
    chance: float

    @property
    def met(self) -> bool:
        """Whether the bar is reached."""
        return self.accuracy.value >= BAR


def draw_exam(config: VlmEvaluationConfig) -> Iterator[tuple[Asked, Tensor]]:
    """Questions with their images (3, height, width), family by family, a scene each."""
    each = config.questions // len(FAMILIES)
    for number, family in enumerate(FAMILIES):
        found, start = 0, number * 1_000_000  # no scene serves two families
        while found < each:
            graph = draw_scenes(config.scenes, config.split, range(start, start + _CHUNK))
            start += _CHUNK
            questions = draw_questions(graph, 1, (family,))
            rows = questions.valid[:, 0].nonzero()[:, 0][: each - found]
            images = render(graph).rgb
            unknown = (questions.deciding[:, 0] & graph.held_out).any(-1)
            for row in rows.tolist():
                yield (
                    Asked(
                        kind=KINDS[int(questions.kind[row, 0])].name,
                        question=questions.text(row, 0),
                        answer=questions.answer_text(row, 0),
                        held_out=bool(unknown[row]),
                    ),
                    images[row],
                )
            found += len(rows)


def fit_blind(config: VlmEvaluationConfig) -> Callable[[str, str], str]:
    """What to answer, from text and kind: most frequent in training for the text, else the kind."""
    tallies: dict[str, list[int]] = {}
    for start in range(0, config.blind_scenes, _CHUNK * 8):
        stop = min(start + _CHUNK * 8, config.blind_scenes)
        graph = draw_scenes(config.scenes, "train", range(start, stop))
        questions = draw_questions(graph, 12)
        for scene, place in questions.valid.nonzero().tolist():
            text = questions.text(scene, place)
            right = int(questions.answer[scene, place])
            kind = KINDS[int(questions.kind[scene, place])].name
            for known in (text, kind):
                tallies.setdefault(known, [0] * len(ANSWERS))[right] += 1

    def answer(text: str, kind: str) -> str:
        tally = tallies.get(text) or tallies.get(kind) or [1]
        return ANSWERS[tally.index(max(tally))]

    return answer


def evaluate_vlm(
    config: VlmEvaluationConfig, on_progress: Callable[[int], None] | None = None
) -> list[Asked]:
    """Ask all questions; `on_progress` hears how many are done."""
    device = config.resolved_device
    model, processor = load_vlm(config.model, device=device)
    blind = fit_blind(config)
    results: list[Asked] = []

    def answers(asked: list[Asked], images: list[Tensor]) -> list[str]:
        inputs = tokenize(
            processor,
            images=images,
            text=[PROMPT.format(question=item.question) for item in asked],
            padding=True,  # pyright: ignore[reportCallIssue]
            return_tensors="pt",  # pyright: ignore[reportCallIssue]
        ).to(device)
        generate = model.generate  # pyright: ignore[reportAttributeAccessIssue]
        output = generate(**inputs, max_new_tokens=4, do_sample=False)
        texts = processor.batch_decode(
            output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
        return [text.strip() for text in texts]

    def ask(batch: list[tuple[Asked, Tensor]]) -> None:
        asked, images = [item for item, _ in batch], [image for _, image in batch]
        results.extend(
            replace(item, said=said, blind=blind(item.question, item.kind))
            for item, said in zip(asked, answers(asked, images), strict=True)
        )
        if on_progress is not None:
            on_progress(len(results))

    batch: list[tuple[Asked, Tensor]] = []
    for pair in draw_exam(config):
        batch.append(pair)
        if len(batch) == config.batch_size:
            ask(batch)
            batch = []
    if batch:
        ask(batch)
    return results


def summarise(results: list[Asked]) -> list[Row]:
    """A row per family, one per kind where a family has several, and one for all together."""
    rows = []
    for family in FAMILIES:
        kinds = [kind for kind in KINDS if kind.family == family]
        rows.append(_row(results, kinds, family, "all"))
        if len(kinds) > 1:
            rows += [_row(results, [kind], family, kind.name) for kind in kinds]
    return [*rows, _row(results, list(KINDS), "all", "all")]


def _row(results: list[Asked], kinds: list[Kind], family: str, name: str) -> Row:
    chance = {kind.name: 1 / len(kind.answers) for kind in kinds}
    mine = [item for item in results if item.kind in chance]
    return Row(
        family=family,
        kind=name,
        accuracy=_share(mine, "said"),
        held_out=_share([item for item in mine if item.held_out], "said"),
        blind=_share(mine, "blind"),
        chance=sum(chance[item.kind] for item in mine) / max(1, len(mine)),
    )


def _share(results: list[Asked], field: str) -> Share:
    return Share(sum(getattr(item, field) == item.answer for item in results), len(results))
