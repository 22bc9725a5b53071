"""Index a folder of photos, find those that match a text, and show them on a page.

    python examples/search_photos.py PHOTOS "a dog on a red sofa" [MODEL]

MODEL: a CLIP or SigLIP model, or one made by `eligo patches train` (a folder or a name). The
default is the shipped model, which knows only generated scenes, no photos. Run it again after you
added photos: only those are encoded.
"""

import sys
from pathlib import Path

from eligo.errors import exit_on_error
from eligo.patches import RetrievalModel
from eligo.patches.index import ImageFiles, Searcher, build_index
from eligo.report.search_page import search_page, write_page


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
    found = searcher.found(searcher.search(model.text_side([text]), k=5))
    for row in found:
        print(f"{row['score']:.3f}  {row['id']}")
    page = write_page(f"{out}.html", search_page(images.root, [(text, found)]))
    print(f"open {page} in a browser")


main(*sys.argv[1:]) if len(sys.argv) in (3, 4) else sys.exit(__doc__)
