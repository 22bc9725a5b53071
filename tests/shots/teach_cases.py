"""A small text world to teach on, and a teacher that can be killed."""

import os
import signal
import sys
from pathlib import Path

import torch

from eligo.shots.config import TeachConfig
from eligo.shots.data.items import Item
from eligo.shots.hosts.prompt import UnscorableError
from eligo.shots.hosts.scorer import Scores
from eligo.shots.inference.embed import embed
from eligo.shots.inference.encoders import WordsEncoder

WORDS = ["red ball", "blue cube", "green cone", "red cone", "blue ball", "green cube"]


def text_items(count: int = 18, start: int = 0) -> list[Item]:
    """Two examples per group."""
    return [
        Item(f"t{n}", f"what is number {n}?", (f"the {WORDS[n % 6]}",), None, f"g{n // 2}")
        for n in range(start, start + count)
    ]


def embedded(folder: Path, count: int = 18) -> Path:
    """The folder that `embed` writes."""
    embed(folder, text_items(count), None, WordsEncoder(), name="words")
    return folder


def teach_config(folder: Path, **changes) -> TeachConfig:
    """Small and fast."""
    settings = {
        "data": folder / "embedded", "out": folder / "taught", "shots": 2, "beam": 2,
        "sampler": {"num_candidates": 6}, "shard_size": 4,
    }  # fmt: skip
    return TeachConfig.model_validate({**settings, **changes})


class FakeScorer:
    """Scores by a formula of the ids; counts its calls."""

    def __init__(self, calls: list | None = None) -> None:
        self.calls = [] if calls is None else calls

    def value(self, query: str, names) -> float:
        self.calls.append((query, tuple(names)))
        seed = sum(ord(c) * (place + 3) for place, c in enumerate(f"{query}|{'/'.join(names)}"))
        return -float(torch.rand((), generator=torch.Generator().manual_seed(seed))) * 3

    def baseline(self, query) -> Scores:
        return Scores(torch.tensor([self.value(query.id, ())]), 2)

    def score(self, query, prefix, candidates) -> Scores:
        values = [self.value(query.id, (*prefix, name)) for name in candidates]
        return Scores(torch.tensor(values), 2)


class PoolingFake(FakeScorer):
    """The same for the prompts of several queries at once; `mute` queries have no token."""

    def __init__(self, together: int = 40, mute: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.calls_together, self.mute = together, mute
        self.windows: list[list[str]] = []

    def score_all(self, requests) -> list:
        self.windows.append([query.id for query, _ in requests])
        return [
            UnscorableError("no token") if query.id in self.mute
            else Scores(torch.tensor([self.value(query.id, names) for names in lists]), 2)
            for query, lists in requests
        ]  # fmt: skip


class KillingScorer(FakeScorer):
    """Kills its process once, at a given query."""

    def __init__(self, mark: Path, at: str) -> None:
        super().__init__()
        self.mark, self.at = mark, at

    def baseline(self, query) -> Scores:
        if query.id == self.at and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().baseline(query)


def files_of(folder: Path) -> dict[str, bytes]:
    """All files of a run."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


if __name__ == "__main__":  # a teacher that dies in the middle: FOLDER QUERY
    from eligo.shots.teacher.run import teach

    where, at = Path(sys.argv[1]), sys.argv[2]
    teach(teach_config(where), lambda *_: KillingScorer(where / "killed", at))
