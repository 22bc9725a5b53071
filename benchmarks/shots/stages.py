"""The stages of the study; each is stored in files and computed once.

health.json              is the learner fit for the study?
embedded/<split>/        examples and queries, as `eligo shots embed` writes them
taught/<split>/          the teacher's results, as `eligo shots teach` writes them
selectors/<variant>_<n>/ run folders of `eligo shots train`
measured/<row>.json      a row of the table: what was chosen and its outcome, per query
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

from benchmarks.shots.config import StudyConfig
from benchmarks.shots.list_search import teach_together
from benchmarks.shots.measure import check_health
from eligo.io.files import kept_json, make_folder
from eligo.io.locks import one_writer
from eligo.scenes.graph import Split
from eligo.scenes.vlm import load_vlm
from eligo.shots.config import SamplerConfig
from eligo.shots.inference.embed import ABOUT, open_embedded, save_embedded
from eligo.shots.learner.load import find_learner
from eligo.shots.learner.scoring import LearnerScorer
from eligo.shots.learner.world import LearnerWorld, make_world
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import Sampler
from eligo.shots.teacher.read import read_results
from eligo.shots.teacher.shards import (
    DATA,
    FORMAT,
    PARTS,
    RECORDS,
    check_meta,
    finish,
    is_finished,
    write_shard,
)
from eligo.shots.teacher.teacher import TeacherResult

SHARD = 256
Report = Callable[[str, int, int], None]
"""Called with a stage, its steps done and their total."""
_KEYS = {"scenes", "unclear", "lexicons", "queries", "num_candidates", "beam"}


@dataclass(frozen=True, eq=False)
class SplitQueries:
    """The queries of a split, with their candidates."""

    world: LearnerWorld
    rows: Int64[Tensor, " queries"]
    """Of the world's queries."""
    spare: Int64[Tensor, " others"]
    """Rows of other queries of the same lexicons."""
    candidates: Int64[Tensor, "queries candidates"]
    """Rows of the pool."""


class Stages:
    """What variants and baselines are measured with; computed on first use."""

    def __init__(
        self, config: StudyConfig, out: Path, device: torch.device, report: Report = lambda *_: None
    ) -> None:
        self.config, self.device, self.report = config, device, report
        self.learner = find_learner(config.learner)
        self.out = make_folder(out)
        self._queries: dict[Split, SplitQueries] = {}

    @cached_property
    def model(self) -> Any:
        """The learner, frozen."""
        return load_vlm(self.learner, device=self.device)[0].requires_grad_(False)

    @cached_property
    def learner_hash(self) -> str:
        """Hash of the learner's weights."""
        digest = hashlib.sha256()
        for path in sorted(self.learner.glob("*.safetensors")):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    def queries(self, split: Split) -> SplitQueries:
        """Draw and embed the scenes of a split; that is fast, so only pools are kept in files."""
        if split not in self._queries:
            config = self.config
            size = self.model.config.vision_config.image_size
            scenes = config.scenes.replace({"height": size, "width": size})
            count = getattr(config.lexicons, split)
            world = make_world(self.model, scenes, split, count, unclear=config.unclear)
            rows, spare = world.draw(config.queries, config.fixed_queries if split == "test" else 0)
            sampler = Sampler(world.pool, self._sampler)
            candidates = torch.stack([sampler.rows(world.queries.query(int(row))) for row in rows])
            self._queries[split] = SplitQueries(world, rows, spare, candidates)
        return self._queries[split]

    def scorer(self, split: Split) -> LearnerScorer:
        """Return the scorer that teaches and evaluates."""
        return LearnerScorer(self.model, self.queries(split).world)

    @property
    def _sampler(self) -> SamplerConfig:
        return SamplerConfig(kind="random", num_candidates=self.config.num_candidates)

    def embed(self, split: Split) -> tuple[Pool, Pool]:
        """Write examples and queries of a split to their folder, and return both."""
        folder = self.out / "embedded" / split
        about = {
            "format": 1, "encoder": "learner", "candidate_text": "question_answer",
            "learner": self.learner_hash, "lexicons": getattr(self.config.lexicons, split),
            "queries": self.config.queries, "unclear": self.config.unclear,
        }  # fmt: skip
        if (folder / ABOUT).is_file():
            pool, queries, written = open_embedded(folder)
            if written == about:
                return pool, queries
        drawn = self.queries(split)
        pool, queries = drawn.world.pool, drawn.world.queries.take(drawn.rows)
        save_embedded(folder, pool, queries, about)
        return pool, queries

    def teach(self, split: Split) -> Path:
        """Return the folder of the teacher's results of a split; continues an unfinished one."""
        with one_writer(self.out / "taught" / split) as folder:
            return self._teach(split, folder)

    def _teach(self, split: Split, folder: Path) -> Path:
        config = self.config
        pool, queries = self.embed(split)
        shots, diversity = max(config.train_shots, *config.shots), 0.0
        if split == "train":
            shots, diversity = config.train_shots, config.beam_diversity
        check_meta(
            folder,
            {
                "format": FORMAT, "pool": pool.content_hash, "queries": queries.content_hash,
                "sampler": self._sampler.model_dump(mode="json"), "host": self.learner_hash,
                "objective": "logprob", "placement": "prepend", "shots": shots,
                "beam": config.beam, "beam_diversity": diversity, "shard_size": SHARD,
                DATA: str(self.out / "embedded" / split),
            },
        )  # fmt: skip
        if (folder / RECORDS).exists() and not (folder / PARTS).exists():
            return folder
        starts = range(0, len(queries), SHARD)
        for shard, start in enumerate(starts):
            self.report(f"teach {split}", shard, len(starts))
            if not is_finished(folder, shard):
                drawn, rows = self.queries(split), slice(start, start + SHARD)
                results = teach_together(
                    self.scorer(split), drawn.rows[rows], drawn.candidates[rows],
                    shots=shots, beam=config.beam, diversity=diversity,
                )  # fmt: skip
                own = [result.query for result in results]
                taught = dict(zip([query.id for query in own], results, strict=True))
                write_shard(
                    folder, shard, own, lambda some, taught=taught: [taught[q.id] for q in some],
                    window=len(own),
                )  # fmt: skip
        self.report(f"teach {split}", len(starts), len(starts))
        finish(folder, len(starts))
        return folder

    def results(self, split: Split) -> list[TeacherResult]:
        """Return the teacher's result of each query."""
        folder = self.teach(split)
        return list(read_results(folder, self.embed(split)[1]))

    def health(self) -> dict[str, Any]:
        """Check the learner on the validation split; nothing is chosen on the test split."""
        shots, beam = self.config.shots[0], self.config.beam

        def check() -> dict[str, Any]:
            results = self.results("validation")
            return check_health(self.scorer("validation"), results, shots=shots, beam=beam)

        return self.kept("health.json", {"shots": shots}, check)

    def kept(self, name: str, key: dict[str, Any], make: Callable[[], Any]) -> Any:
        """Return the content of a file, computed again if anything it depends on has changed."""
        settings = self.config.model_dump(mode="json", include=_KEYS)
        key = json.loads(json.dumps({**settings, "learner": self.learner_hash, **key}))
        return kept_json(self.out / name, key, make)
