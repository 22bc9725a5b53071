"""Index a folder of photos, and find those that match a text.

    python examples/search_photos.py PHOTOS "a dog on a red sofa" [MODEL]

MODEL: a retrieval model (a folder or a name), made by `eligo patches train` or `convert`. The
default is the shipped model, which knows only generated scenes, no photos.
"""

import sys
from pathlib import Path

from eligo.errors import exit_on_error
from eligo.patches import RetrievalModel
from eligo.patches.index import ImageFiles, Searcher, build_index


@exit_on_error()
def main(photos: str, text: str, name: str = "patches") -> None:
    images = ImageFiles.under(Path(photos))
    out = Path("runs/search_photos") / Path(photos).resolve().name
    model = RetrievalModel.from_pretrained(name)
    built = build_index(lambda: model, images, out)
    print(f"{built.entries} photos, {built.bytes_per_entry / 1024:.0f} KiB each, in {built.folder}")
    for skipped in built.skipped:
        print(f"not read: {skipped['id']}: {skipped['why']}")

    searcher = Searcher(model, built.folder)
    hits = searcher.search(model.text_side([text]), k=5)
    for entry, score in zip(searcher.ids(hits), hits.scores.tolist(), strict=True):
        print(f"{score:.3f}  {entry['id']}")


main(*sys.argv[1:]) if len(sys.argv) in (3, 4) else sys.exit(__doc__)
