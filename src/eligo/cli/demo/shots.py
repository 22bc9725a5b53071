"""Questions with two words that nobody knows: which two examples are shown decides the answer."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int64
from PIL import Image
from torch import Tensor

from eligo.cli.demo.part import Part, Row, Work, worth_showing
from eligo.explorer.record import Answer, ExplorerRecord
from eligo.pretrained.load import shipped_model, shipped_models
from eligo.report.pictures import rgb_picture
from eligo.scenes.config import SceneConfig
from eligo.scenes.phrases import to_text
from eligo.scenes.vlm import FIRST_WORD, load_vlm
from eligo.selection import Selection
from eligo.shots.baselines import KNN, MMR, Random, ZeroShot
from eligo.shots.config import SamplerConfig
from eligo.shots.data.items import as_query
from eligo.shots.inference.learned_selector import LearnedSelector
from eligo.shots.inference.record import record
from eligo.shots.learner.config import ExamConfig
from eligo.shots.learner.lessons import EXAMPLES, draw_lessons
from eligo.shots.learner.scoring import Answers, LearnerScorer
from eligo.shots.learner.stages import LEARNER, MADE_BY
from eligo.shots.learner.world import FIRST_LEXICON, PER_LEXICON, ExamWorld, make_world
from eligo.shots.model.pretrained import FILE, load_pointer
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import Sampler
from eligo.shots.selector import PoolSelector
from eligo.train.progress import ProgressBar

NAME, ASKS = "shots", "which examples enter the prompt?"
NONE, NEAREST = "zero-shot", "kNN"
BEST = "shots_v1_gate"
SHOTS = 2
_BALANCE = 0.6  # of MMR, as `eligo shots exam` tuned it for two examples
_EXAM = ExamConfig()
_LEXICONS, _QUERIES = 8, 16
_RECORDS = 3
_NOTE = (
    "{count} questions with two made-up words each, {shots} examples of {candidates} in the prompt "
    "of a small LLaVA that learns words in context. Score: right answers; who sees the image and "
    "knows no word gets {guess:.0f} %."
)


def run(work: Work) -> Part:
    """Choose by nobody, by chance, by likeness, with variety, and by what was learned; ask."""
    selectors = shipped_selectors()
    if LEARNER not in shipped_models() or not selectors:
        return Part(NAME, ASKS, "no trained model is shipped yet")
    folder = shipped_model(LEARNER, made_by=MADE_BY)
    learner: Any = load_vlm(folder, device=torch.device(work.device))[0]
    learner.requires_grad_(False)
    size = learner.config.vision_config.image_size
    scenes = _EXAM.scenes.replace({"seed": work.seed, "height": size, "width": size})
    world = make_world(learner, scenes, "test", work.count(_LEXICONS), unclear=_EXAM.unclear)
    asked = world.draw(_QUERIES, 0)[0]
    learned = {
        f"pointer {name.removeprefix('demos_')}": on_pool(name, world.pool) for name in selectors
    }
    chosen = choose(world, asked, learned, work.seed)
    scorer = LearnerScorer(learner, world)
    with ProgressBar(NAME, len(chosen)) as bar:
        answers: dict[str, Answers] = {}
        for name, picked in chosen.items():
            picks = torch.stack([one.indices for one in picked])
            answers[name] = scorer.answers(asked, picks)
            bar.update(len(answers))
    rows = tuple(
        Row.of_hits(
            name,
            found.right.tolist(),
            f"{int(chosen[name][0].num_kept)} of {_EXAM.num_candidates}",
            is_ours=name in learned,
        )
        for name, found in answers.items()
    )
    guess = 100 * float(world.guess[asked].mean())
    note = _NOTE.format(count=len(asked), shots=SHOTS, candidates=_EXAM.num_candidates, guess=guess)
    shown = _Shown(world, scenes, asked, chosen, answers, ours=next(iter(learned)))
    return Part(NAME, ASKS, note, rows, tuple(shown.records()))


def shipped_selectors() -> list[str]:
    """Names of the pointer selectors that come with eligo, the best of the exam first."""
    return sorted(shipped_models(f"{FILE}.safetensors"), key=lambda name: name != BEST)


def on_pool(name: str, pool: Pool) -> LearnedSelector:
    """A shipped selector; it was trained on other examples and can judge these as well."""
    return LearnedSelector.of(load_pointer(name), pool)


def choose(
    world: ExamWorld,
    asked: Int64[Tensor, " queries"],
    learned: Mapping[str, PoolSelector],
    seed: int,
) -> dict[str, list[Selection]]:
    """What every selector picks for every query, all among the same candidates."""
    baselines = {
        NONE: ZeroShot(),
        "random": Random(seed=seed),
        NEAREST: KNN(),
        "MMR": MMR(_BALANCE),
    }
    arms = {name: baseline.fit([], world.pool) for name, baseline in baselines.items()} | dict(
        learned
    )
    sampler = Sampler(world.pool, SamplerConfig(num_candidates=_EXAM.num_candidates))
    queries = [as_query(world.queries, row) for row in asked.tolist()]
    names = [sampler.names(query) for query in queries]
    return {
        arm: [
            selector.select(query, SHOTS, candidates=some)
            for query, some in zip(queries, names, strict=True)
        ]
        for arm, selector in arms.items()
    }


class _Shown:
    """Some of the questions, with their pictures."""

    def __init__(
        self,
        world: ExamWorld,
        scenes: SceneConfig,
        asked: Int64[Tensor, " queries"],
        chosen: Mapping[str, list[Selection]],
        answers: Mapping[str, Answers],
        *,
        ours: str,
    ) -> None:
        self.world, self.scenes, self.asked, self.ours = world, scenes, asked, ours
        self.chosen, self.answers = chosen, answers

    def records(self) -> list[ExplorerRecord]:
        """Won against kNN, lost by ours, then whatever comes first."""
        ours, nearest = self.answers[self.ours].right, self.answers[NEAREST].right
        places = worth_showing((ours & ~nearest).tolist(), (~ours).tolist(), _RECORDS)
        return [self._record(place) for place in places]

    def _record(self, place: int) -> ExplorerRecord:
        world, row = self.world, int(self.asked[place])
        assert world.queries.payload is not None
        payload = world.queries.payload[row]
        # Ours first: that is what the page opens.
        names = [self.ours, *(name for name in self.chosen if name not in (self.ours, NONE))]
        picked = {name: self.chosen[name][place] for name in names}
        candidates = world.pool.names(picked[self.ours].mask.nonzero().flatten())
        pictures = self._pictures(world.pool, world.pool.rows(candidates).tolist())
        said = tuple(
            Answer(
                name,
                to_text([int(found.said[place]) - FIRST_WORD]) or "(no word)",
                bool(found.right[place]),
            )
            for name, found in self.answers.items()
        )
        return record(
            payload["question"],
            world.pool,
            candidates,
            picked,
            picture=self._pictures(world.queries, [row])[world.queries.ids[row]],
            pictures=pictures,
            answers=said,
            note=f"the answer is: {payload['answer']}; scores are those before the first pick",
        )

    def _pictures(self, pool: Pool, rows: list[int]) -> dict[str, Image.Image]:
        """The scenes of some examples or queries, drawn again."""
        assert pool.groups is not None
        scenes = [int(str(pool.groups[row]).removeprefix("scene ")) for row in rows]
        lessons = sorted({scene // (EXAMPLES + 1) for scene in scenes})
        drawn = draw_lessons(
            self.scenes,
            "test",
            FIRST_LEXICON * PER_LEXICON + torch.tensor(lessons),
            torch.device("cpu"),
            unclear=_EXAM.unclear,
            per_lexicon=PER_LEXICON,
        ).rendered.rgb
        return {
            pool.ids[row]: rgb_picture(
                drawn[
                    lessons.index(scene // (EXAMPLES + 1)) * (EXAMPLES + 1) + scene % (EXAMPLES + 1)
                ]
            )
            for row, scene in zip(rows, scenes, strict=True)
        }
