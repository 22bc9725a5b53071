"""The figures that the published pointer-selector designs expect, beside those that were measured.

The designs (docs/sources.md) state them for lists of 6 of 32 candidates and embeddings of width
768, without data or code to check them. The design of V2 has the lower bounds and the epochs, that
of V3 compares V1 and V3. Ours are of the test queries, with the study's first number of examples.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from eligo.cli.console import compact_table
from eligo.config.yaml import read_yaml
from eligo.io.reading import read_json, reading
from eligo.shots.config import NAMED
from eligo.shots.model.pretrained import build_model, load_pointer

VERSIONS = ("v1", "v2", "v3")
TRAINED = "trained.json"
"""In the folder of a finished training."""
_EXPECTED = {
    "top1": ("step top-1, %", ">= 35; V1 72.5, V3 73.2"),
    "top3": ("step top-3, %", "V1 85.1, V3 86.8"),
    "top5": ("step top-5, %", ">= 70"),
    "mrr": ("MRR", "V1 0.785, V3 0.812"),
    "ndcg": ("NDCG", "at 6: V1 0.821, V3 0.847"),
    "logits_std": ("std of the logits", "0.8 to 1.5"),
    "best epoch": ("best epoch", "5 to 10"),
    "parameters": ("parameters at width 768, M", "V1 0.13, V2 0.59, V3 0.13"),
}


def training_summary(runs: Sequence[Path]) -> dict[str, Any]:
    """Epochs of the best and of the last step of each run, and the number of parameters."""
    best, last = zip(*map(_epochs, runs), strict=True)
    parameters = sum(weight.numel() for weight in load_pointer(runs[0]).parameters())
    return {"best epoch": best, "last epoch": last, "parameters": parameters}


def _epochs(run: Path) -> tuple[float | None, float]:
    """Epochs until the best and the last step; there is one evaluation in each epoch."""
    with reading(run / TRAINED, "the result of a training; remove it to train again"):
        steps, every = read_json(run / TRAINED), read_yaml(run / "config.yaml")[0]["train"]
        best, last, every = steps["best_step"], steps["last_step"], every["evaluate_every"]
        return None if best is None else best / every, last / every


def expected_figures(
    table: Sequence[Mapping[str, Any]], training: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return every expected figure with those of the versions in a table of means."""
    measured = {row["row"]: dict(row) for row in table if row["row"] in VERSIONS}
    for version, row in measured.items():
        # Designs count parameters at their own width; ours depends on the learner's embeddings.
        parameters = sum(weight.numel() for weight in build_model(NAMED[version]).parameters())
        epochs = [epoch for epoch in training[version]["best epoch"] if epoch is not None]
        row |= {"parameters": [parameters / 1e6]}
        row |= {"best epoch": [sum(epochs) / len(epochs)]} if epochs else {}
    return [
        {"figure": figure, "expected": expected}
        | {version: row[key][0] for version, row in measured.items() if key in row}
        for key, (figure, expected) in _EXPECTED.items()
    ]


def expected_table(figures: Iterable[Mapping[str, Any]]) -> Table:
    """Return the table to print."""
    caption = "expected: by the published designs, for lists of 6; measured: means over seeds"
    names = ["figure", "expected"]
    table = compact_table("expected and measured", caption, names, list(VERSIONS))
    for row in figures:
        cells = (f"{row[version]:.3g}" if version in row else "-" for version in VERSIONS)
        table.add_row(row["figure"], row["expected"], *cells)
    return table
