"""The stages of the exam, each kept in files: what is there is not made again. Section 6.

health.json          is it an exam?
embedded/<split>/    examples and queries, as `eligo shots embed` writes them
taught/<split>/      lessons, as `eligo shots teach` writes them: `eligo shots train` reads them
selectors/<arm>_<n>/ run folders of `eligo shots train`
measured/<row>.json  what a row of the table chose, and what came of it, query by query
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from eligo.errors import InputError
from eligo.io.files import kept_json, make_folder
from eligo.io.locks import one_writer
from eligo.pretrained.load import find_model, shipped_model
from eligo.scenes.graph import Split
from eligo.scenes.vlm import load_vlm
from eligo.shots.config import SamplerConfig
from eligo.shots.data.items import as_query
from eligo.shots.inference.embed import ABOUT, open_embedded, save_embedded
from eligo.shots.learner.config import ExamConfig
from eligo.shots.learner.health import exam_health
from eligo.shots.learner.scoring import LearnerScorer
from eligo.shots.learner.teaching import teach_together
from eligo.shots.learner.world import ExamWorld, make_world
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import Sampler
from eligo.shots.teacher.read import read_lessons
from eligo.shots.teacher.shards import (
    DATA,
    FORMAT,
    PARTS,
    RECORDS,
    agree_on_meta,
    finish,
    is_listed,
    write_shard,
)
from eligo.shots.teacher.teacher import Lesson

LEARNER, MADE_BY = "shots_learner", "eligo shots train-learner learner"
HELD = "processor_config.json"
"""A file that a model which answers questions has, and no selector."""
SHARD = 256
Tell = Callable[[str, int, int], None]


def find_learner(name: str | None) -> Path:
    """The model folder of a learner: by its folder or its run's, its name on the hub, or ours."""
    found = shipped_model(LEARNER, made_by=MADE_BY) if name is None else find_model(name, HELD)
    for folder in (found, found / "model"):
        if (folder / HELD).is_file():
            return folder
    raise InputError(f"{found}: holds no learner; expected the folder of a run of `{MADE_BY}`")


@dataclass(frozen=True, eq=False)
class Asked:
    """The queries of a split, with what they can get."""

    world: ExamWorld
    queries: Int64[Tensor, " queries"]
    """Rows of the world's queries."""
    spare: Int64[Tensor, " others"]
    """Rows of other queries of the same lexicons."""
    candidates: Int64[Tensor, "queries candidates"]
    """Rows of the pool."""


class Stages:
    """What arms and baselines are measured on, made when it is first wanted."""

    def __init__(
        self, config: ExamConfig, out: Path, device: torch.device, tell: Tell = lambda *_: None
    ) -> None:
        self.config, self.device, self.tell = config, device, tell
        self.learner = find_learner(config.learner)
        self.out = make_folder(out)
        self._asked: dict[Split, Asked] = {}

    # -------------------------------------------------------------- the learner and its world

    @cached_property
    def model(self) -> Any:
        """The learner, frozen."""
        return load_vlm(self.learner, device=self.device)[0].requires_grad_(False)

    @cached_property
    def learner_hash(self) -> str:
        """Of its weights."""
        digest = hashlib.sha256()
        for path in sorted(self.learner.glob("*.safetensors")):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    def asked(self, split: Split) -> Asked:
        """Scenes drawn, looked at and embedded: seconds on a GPU, so only pools are kept."""
        if split not in self._asked:
            config = self.config
            size = self.model.config.vision_config.image_size
            scenes = config.scenes.replace({"height": size, "width": size})
            count = getattr(config.lexicons, split)
            world = make_world(self.model, scenes, split, count, unclear=config.unclear)
            queries, spare = world.draw(
                config.queries, config.fixed_queries if split == "test" else 0
            )
            sampler = Sampler(world.pool, self._sampler)
            candidates = torch.stack(
                [sampler.rows(as_query(world.queries, int(row))) for row in queries]
            )
            self._asked[split] = Asked(world, queries, spare, candidates)
        return self._asked[split]

    def scorer(self, split: Split) -> LearnerScorer:
        """Who teaches and judges."""
        return LearnerScorer(self.model, self.asked(split).world)

    @property
    def _sampler(self) -> SamplerConfig:
        return SamplerConfig(num_candidates=self.config.num_candidates)

    # -------------------------------------------------------------- embed, teach

    def embed(self, split: Split) -> tuple[Pool, Pool]:
        """Examples and queries of a split, in their folder."""
        folder = self.out / "embedded" / split
        about = {"format": 1, "encoder": "learner", "candidate_text": "question_answer"}
        about |= {"learner": self.learner_hash, "lexicons": getattr(self.config.lexicons, split)}
        about |= {"queries": self.config.queries, "unclear": self.config.unclear}
        if (folder / ABOUT).is_file():
            pool, queries, there = open_embedded(folder)
            if there == about:
                return pool, queries
        asked = self.asked(split)
        pool, queries = asked.world.pool, asked.world.queries.take(asked.queries)
        save_embedded(folder, pool, queries, about)
        return pool, queries

    def teach(self, split: Split) -> Path:
        """The folder of the lessons of a split; an unfinished one is gone on with."""
        with one_writer(self.out / "taught" / split) as folder:
            return self._teach(split, folder)

    def _teach(self, split: Split, folder: Path) -> Path:
        config = self.config
        pool, queries = self.embed(split)
        shots = config.train_shots if split == "train" else max(config.train_shots, *config.shots)
        agree_on_meta(
            folder,
            {
                "format": FORMAT, "pool": pool.content_hash, "queries": queries.content_hash,
                "sampler": self._sampler.model_dump(mode="json"), "host": self.learner_hash,
                "objective": "logprob", "placement": "prepend", "shots": shots,
                "beam": config.beam, "shard_size": SHARD,
                DATA: str(self.out / "embedded" / split),
            },
        )  # fmt: skip
        if (folder / RECORDS).exists() and not (folder / PARTS).exists():
            return folder
        starts = range(0, len(queries), SHARD)
        for shard, start in enumerate(starts):
            self.tell(f"teach {split}", shard, len(starts))
            if not is_listed(folder, shard):
                self._teach_shard(folder, shard, split, slice(start, start + SHARD), shots)
        self.tell(f"teach {split}", len(starts), len(starts))
        finish(folder, len(starts))
        return folder

    def _teach_shard(self, folder: Path, shard: int, split: Split, rows: slice, shots: int) -> None:
        asked = self.asked(split)
        lessons = teach_together(
            self.scorer(split), asked.queries[rows], asked.candidates[rows],
            shots=shots, beam=self.config.beam,
        )  # fmt: skip
        known = {lesson.query.id: lesson for lesson in lessons}
        write_shard(
            folder, shard, [lesson.query for lesson in lessons], lambda query: known[query.id]
        )

    def lessons(self, split: Split) -> list[Lesson]:
        """What was taught, query by query."""
        folder = self.teach(split)
        return list(read_lessons(folder, self.embed(split)[1]))

    # -------------------------------------------------------------- health

    def health(self) -> dict[str, Any]:
        """Of the validation split, so that nothing is chosen on the test split."""
        shots, beam = self.config.shots[0], self.config.beam

        def look() -> dict[str, Any]:
            lessons = self.lessons("validation")
            return exam_health(self.scorer("validation"), lessons, shots=shots, beam=beam)

        return self.kept("health.json", {"shots": shots}, look)

    # -------------------------------------------------------------- files

    def kept(self, name: str, key: dict[str, Any], make: Callable[[], Any]) -> Any:
        """A file of the exam's folder, made again if anything it depends on has changed."""
        taught = {"learner", "scenes", "unclear", "lexicons", "queries", "num_candidates", "beam"}
        asked = self.config.model_dump(mode="json", include=taught - {"learner"})
        key = json.loads(json.dumps({**asked, "learner": self.learner_hash, **key}))
        return kept_json(self.out / name, key, make)
