"""Questions with two nonce words: the answer depends on which two examples are shown."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int64
from PIL import Image
from torch import Tensor

from eligo.cli.demo.part import DemoSettings, MethodResult, Part, pick_examples
from eligo.explorer.record import Answer, ExplorerRecord
from eligo.pretrained.load import shipped_models
from eligo.report.pictures import rgb_picture
from eligo.scenes.config import SceneConfig
from eligo.scenes.graph import Split
from eligo.scenes.phrases import to_text
from eligo.scenes.vlm import FIRST_WORD, load_vlm
from eligo.selection import Selection
from eligo.shots.baselines import KNN, MMR, Random, ZeroShot
from eligo.shots.config import SamplerConfig
from eligo.shots.inference.learned_selector import LearnedSelector
from eligo.shots.inference.record import record
from eligo.shots.learner.lessons import EXAMPLES, Lessons, draw_lessons
from eligo.shots.learner.load import LEARNER, NUM_CANDIDATES, UNCLEAR, find_learner, scenes_for
from eligo.shots.learner.scoring import Answers, LearnerScorer
from eligo.shots.learner.world import FIRST_LEXICON, PER_LEXICON, LearnerWorld, make_world
from eligo.shots.model.pretrained import FILE, load_pointer
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import Sampler
from eligo.shots.selector import PoolSelector
from eligo.train.progress import ProgressBar

NAME, QUESTION = "shots", "which examples enter the prompt?"
NONE, NEAREST = "zero-shot", "kNN"
BEST = "shots_v1_gate"
SHOTS = 2
_BALANCE = 0.6  # of MMR, as the study tuned it for two examples (docs/shots_study.md)
_LEXICONS, _QUERIES = 8, 16
_RECORDS = 3
_NOTE = (
    "{count} questions with two made-up words each, {shots} examples of {candidates} in the prompt "
    "of a small LLaVA that learns words in context. Score: accuracy; guessing from the image "
    "without knowing the words scores {guess:.0f} %."
)


def run(settings: DemoSettings) -> Part:
    """Compare the shipped selectors with zero-shot, random, kNN and MMR."""
    selectors = shipped_selectors()
    if LEARNER not in shipped_models() or not selectors:
        return Part(NAME, QUESTION, "no trained model is shipped yet")
    learner: Any = load_vlm(find_learner(), device=torch.device(settings.device))[0]
    learner.requires_grad_(False)
    scenes = scenes_for(learner.config.vision_config.image_size, settings.seed)
    world = make_world(learner, scenes, "test", settings.count(_LEXICONS))
    queries, _ = world.draw(_QUERIES)
    learned = {selector_label(name): on_pool(name, world.pool) for name in selectors}
    chosen = choose(world, queries, learned, settings.seed)
    scorer = LearnerScorer(learner, world)
    with ProgressBar(NAME, len(chosen)) as bar:
        answers: dict[str, Answers] = {}
        for name, selections in chosen.items():
            picks = torch.stack([selection.indices for selection in selections])
            answers[name] = scorer.answers(queries, picks)
            bar.update(len(answers))
    rows = tuple(
        MethodResult.of_hits(
            name,
            result.right.tolist(),
            f"{int(chosen[name][0].num_kept)} of {NUM_CANDIDATES}",
            is_ours=name in learned,
        )
        for name, result in answers.items()
    )
    guess = 100 * float(world.guess[queries].mean())
    note = _NOTE.format(count=len(queries), shots=SHOTS, candidates=NUM_CANDIDATES, guess=guess)
    records = _Records(world, scenes, queries, chosen, answers, ours=next(iter(learned)))
    return Part(NAME, QUESTION, note, rows, tuple(records.make()))


def shipped_selectors() -> list[str]:
    """Return the names of the shipped pointer selectors, the best of the study first."""
    return sorted(shipped_models(f"{FILE}.safetensors"), key=lambda name: name != BEST)


def selector_label(name: str) -> str:
    """Return the name of a shipped selector in tables."""
    return f"pointer {name.removeprefix('shots_')}"


def on_pool(name: str, pool: Pool) -> LearnedSelector:
    """Load a shipped selector for a new pool of examples."""
    return LearnedSelector.of(load_pointer(name), pool)


def choose(
    world: LearnerWorld,
    rows: Int64[Tensor, " queries"],
    learned: Mapping[str, PoolSelector],
    seed: int,
) -> dict[str, list[Selection]]:
    """Return the selections of every selector for every query, all among the same candidates."""
    baselines = {
        NONE: ZeroShot(),
        "random": Random(seed=seed),
        NEAREST: KNN(),
        "MMR": MMR(_BALANCE),
    }
    selectors = {name: baseline.fit([], world.pool) for name, baseline in baselines.items()}
    selectors |= learned
    sampler = Sampler(world.pool, SamplerConfig(kind="random", num_candidates=NUM_CANDIDATES))
    queries = [world.queries.query(row) for row in rows.tolist()]
    names = [sampler.names(query) for query in queries]
    return {
        name: [
            selector.select(query, SHOTS, candidates=candidates)
            for query, candidates in zip(queries, names, strict=True)
        ]
        for name, selector in selectors.items()
    }


def draw_pool_lessons(
    scenes: SceneConfig, split: Split, numbers: Int64[Tensor, " lessons"]
) -> Lessons:
    """Draw lessons of a world again, for their pictures; the first one has number 0."""
    return draw_lessons(
        scenes,
        split,
        FIRST_LEXICON * PER_LEXICON + numbers,
        torch.device("cpu"),
        unclear=UNCLEAR,
        per_lexicon=PER_LEXICON,
    )


def scene_of(group: str | None) -> int:
    """Return the number of the scene that a pool's group names."""
    return int(str(group).removeprefix("scene "))


class _Records:
    """The explorer records of a few questions."""

    def __init__(
        self,
        world: LearnerWorld,
        scenes: SceneConfig,
        queries: Int64[Tensor, " queries"],
        chosen: Mapping[str, list[Selection]],
        answers: Mapping[str, Answers],
        *,
        ours: str,
    ) -> None:
        self.world, self.scenes, self.queries, self.ours = world, scenes, queries, ours
        self.chosen, self.answers = chosen, answers

    def make(self) -> list[ExplorerRecord]:
        """Return records of questions that ours answers and kNN does not, or that ours misses."""
        ours, nearest = self.answers[self.ours].right, self.answers[NEAREST].right
        places = pick_examples((ours & ~nearest).tolist(), (~ours).tolist(), _RECORDS)
        return [self._record(place) for place in places]

    def _record(self, place: int) -> ExplorerRecord:
        world, row = self.world, int(self.queries[place])
        assert world.queries.payload is not None
        payload = world.queries.payload[row]
        # Ours first: the page opens with it.
        names = [self.ours, *(name for name in self.chosen if name not in (self.ours, NONE))]
        selections = {name: self.chosen[name][place] for name in names}
        candidates = world.pool.names(selections[self.ours].mask.nonzero().flatten())
        answers = tuple(
            Answer(
                name,
                to_text([int(result.token[place]) - FIRST_WORD]) or "(no word)",
                bool(result.right[place]),
            )
            for name, result in self.answers.items()
        )
        return record(
            payload["question"],
            world.pool,
            candidates,
            selections,
            picture=self._pictures(world.queries, [row])[world.queries.ids[row]],
            pictures=self._pictures(world.pool, world.pool.rows(candidates).tolist()),
            answers=answers,
            note=f"the answer is: {payload['answer']}; scores are those before the first pick",
        )

    def _pictures(self, pool: Pool, rows: list[int]) -> dict[str, Image.Image]:
        """Draw the scenes of some examples or queries again."""
        assert pool.groups is not None
        per_lesson = EXAMPLES + 1
        scenes = [scene_of(pool.groups[row]) for row in rows]
        lessons = sorted({scene // per_lesson for scene in scenes})
        images = draw_pool_lessons(self.scenes, "test", torch.tensor(lessons)).rendered.rgb
        first = {lesson: per_lesson * place for place, lesson in enumerate(lessons)}
        return {
            pool.ids[row]: rgb_picture(images[first[scene // per_lesson] + scene % per_lesson])
            for row, scene in zip(rows, scenes, strict=True)
        }
