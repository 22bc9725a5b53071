"""A training run of a selector. Defaults are those of the guides' command. Imports no torch.

The guides' flags are understood too: see `documented`.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from eligo.config import Config
from eligo.shots.compat import translated_words
from eligo.shots.model.config import AnyPointerConfig
from eligo.shots.teacher.config import Objective
from eligo.train.config import SMOKE, TrainConfig


class SelectorTrainConfig(TrainConfig):
    """The loop, and the optimiser as the guides name its settings."""

    name: str = "shots"
    """Name of the run: its folder is out/name."""
    num_epochs: int | None = Field(default=20, ge=1)
    """Times that every record is seen; sets total_steps, and evaluates once in each. None:
    total_steps counts."""
    min_steps: int = Field(default=300, ge=1)
    """Steps at least where num_epochs counts: few records are seen more often, and evaluated 20
    times; patience stops nothing before."""
    batch_size: int = Field(default=64, ge=1)
    """Records in one step; fewer if there are fewer."""
    lr: float = Field(default=1e-4, gt=0)
    """Peak learning rate of AdamW; 5 % warm-up, then cosine."""
    weight_decay: float = Field(default=1e-2, ge=0)
    """Decoupled weight decay."""
    monitor: str = "ndcg"
    """Validation metric that chooses the best checkpoint; mrr where no record has dense scores."""
    mode: Literal["min", "max"] = "max"
    """Whether the monitored metric should fall or rise."""
    patience: int | None = Field(default=5, ge=1)
    """Stop after so many evaluations without a new best; none: never."""


class RecordsConfig(Config):
    """What is learned from."""

    path: Path = Path("taught")
    """Folder that `eligo shots teach` wrote, or a JSON file of the V3 guide or Lever-LM (or the
    folder it is in)."""
    embedded: Path | None = None
    """Folder that `eligo shots embed` wrote; none: the one that was taught on."""
    split: str | None = None
    """Where a folder holds several: the subfolder, or part of the file's name."""
    num_anchors: int | None = Field(default=None, ge=1)
    """Learn from so many queries, drawn by seed; none: all."""
    sampler: Literal["random", "text", "image", "mix"] | None = None
    """How candidates are drawn; none: as the teacher did, at random for files of other programs."""
    objective: Objective | None = None
    """What a pick is worth; none: the teacher's."""
    labels: Literal["best", "weighted"] = "best"
    """Learn the best list, or all beams by their softmax weight."""
    on_bad_label: Literal["error", "ignore"] = "error"
    """What to do with a label that comes twice or is not in the pool; ignore: leave it out, count
    it."""
    validation: float = Field(default=0.1, gt=0, lt=1)
    """Share of the queries (whole groups) that chooses the best step."""


class ShotsTrainConfig(Config):
    """One training run."""

    task: Literal["shots.train"] = "shots.train"
    """What this file trains."""
    train: SelectorTrainConfig = SelectorTrainConfig()
    """The loop."""
    model: AnyPointerConfig  # no default: another version would inherit its label smoothing
    """What is trained; d_model becomes the width of the embeddings."""
    data: RecordsConfig = RecordsConfig()
    """What it learns from."""

    def smoke(self) -> "ShotsTrainConfig":
        """Two steps on the same records."""
        return self.replace(SMOKE | {"train.num_epochs": None})

    @staticmethod
    def words(args: list[str]) -> list[str]:
        """A command line with the guides' flags, in our words."""
        return translated_words(args)
