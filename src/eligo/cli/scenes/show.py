"""`eligo scenes show`: generated scenes on one page."""

from pathlib import Path
from typing import Annotated

from eligo.cli.console import print_result
from eligo.config.bounds import Bounds


def run(
    out: Path = Path("runs/scenes"), scenes: Annotated[int, Bounds(1, 100)] = 6, json: bool = False
) -> None:
    """Render a few scenes, with their annotations, into one HTML page.

    Args:
        out: The folder to write to.
        scenes: How many scenes to show.
        json: Print one JSON document.
    """
    from eligo.scenes.page import write_scenes_page

    index, sheet = write_scenes_page(out, scenes)
    if json:
        print_result({"page": index, "contact_sheet": sheet, "scenes": scenes}, json)
    else:
        head = "1 scene" if scenes == 1 else f"{scenes} scenes"
        print(f"{head} with depth, labels, captions, tags and questions:")
        print(f"  {index}  (open it in a browser)")
        print(f"  {sheet}")
