"""`eligo scenes export`: scenes as files, in common formats."""

from pathlib import Path
from typing import Literal

from eligo.cli.console import print_result
from eligo.cli.flags import Count
from eligo.scenes.config import ExportConfig


def run(
    config: ExportConfig,
    *,
    out: Path,
    engine: Literal["local", "ray"] = "local",
    num_workers: Count = 1,
    json: bool = False,
) -> None:
    """Write scenes as VQAv2, Karpathy-split captions, NYUDepthv2, SUN RGB-D or plain JSON lines.

    The same command again continues a stopped export, or adds scenes if the config has more.

    Args:
        out: The folder to write to: a new one, or one with an export to continue.
        engine: In this process, or on workers of Ray; the files are the same.
        num_workers: Workers of Ray.
        json: Print one JSON document.
    """
    from eligo.scenes.export import export_scenes
    from eligo.train.progress import ProgressBar

    with ProgressBar("scenes", sum(config.num_scenes.values())) as bar:
        result = export_scenes(config, out, bar.update, engine=engine, num_workers=num_workers)
    print_result(result, json)
