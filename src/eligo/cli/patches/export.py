"""`eligo patches export`: the vectors of an index, for a vector database."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import tyro

from eligo.cli.console import print_result


def run(
    index: Annotated[Path, tyro.conf.Positional],
    *,
    to: Literal["lancedb", "qdrant"],
    out: Path | None = None,
    url: str | None = None,
    json: bool = False,
) -> None:
    """Write the vectors of an index of images for LanceDB or Qdrant, as multi-vectors for MaxSim.

    Queries come from `eligo.patches.index.export.query_vectors`. The database ranks by MaxSim;
    what that loses against `eligo patches search` is in docs/patches_export.md.

    Args:
        index: The folder that `eligo patches index` wrote.
        to: The database.
        out: The folder to write to: a LanceDB database, or the local mode of Qdrant.
        url: Instead of a folder, the address of a Qdrant server.
        json: Print one JSON document.
    """
    from eligo.patches.index.export import export_index

    print_result(asdict(export_index(index, to, out=out, url=url)), json)
