"""What `embed` writes: the examples, the queries, and how both were embedded. Section 2.

pool/       the examples (see `Pool.save`)
queries/    the queries, in the same form: embedded by their question alone
embed.json  the encoder, and what of an example it read
"""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from eligo.errors import InputError
from eligo.io.files import writing, writing_folder
from eligo.io.interrupts import Delayed, Interrupted
from eligo.io.locks import one_writer
from eligo.io.reading import read_object
from eligo.shots.pool.pool import ITEMS, VECTORS, Pool

POOL, QUERIES, ABOUT = "pool", "queries", "embed.json"


def save_embedded(folder: Path, pool: Pool, queries: Pool, about: dict[str, Any]) -> None:
    """Write the folder; embed.json last, so that it is there only if all is.

    A signal waits until all is written: examples of one call never meet queries of another.
    """
    with (
        Delayed() as signals,
        one_writer(folder),
        writing(folder / ABOUT) as told,
        _writing_pool(folder / POOL) as examples,
        _writing_pool(folder / QUERIES) as asked,
    ):  # nothing older is replaced before all of it is written
        pool.save(examples)
        queries.save(asked)
        told.write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    if signals.number:
        raise Interrupted(signals.number, f"stopped; {folder} is written")


def _writing_pool(folder: Path) -> AbstractContextManager[Path]:
    return writing_folder(folder, marker=ITEMS, holds=(ITEMS, VECTORS))


def open_embedded(folder: Path) -> tuple[Pool, Pool, dict[str, Any]]:
    """Examples, queries, and how they were embedded."""
    if not (folder / ABOUT).is_file():
        raise InputError(
            f"{folder}: holds no embedded examples (no {ABOUT}); make it with `eligo shots embed "
            f"--data examples.jsonl --out {folder}`"
        )
    about = read_object(folder / ABOUT, "`eligo shots embed`")
    return Pool.load(folder / POOL), Pool.load(folder / QUERIES), about
