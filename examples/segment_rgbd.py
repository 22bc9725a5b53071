"""Segment a photo with its depth image, guided by a few words.

    python examples/segment_rgbd.py rgb.png depth.png "desk,chair" [MODEL]

MODEL: a segmentation model (a folder or a name), made by `eligo pixels train` or `convert`. The
default is the shipped model, which knows only generated rooms. Without depth, give `-`; without
words, an empty text.
"""

import sys

from eligo.errors import exit_on_error
from eligo.pixels import Segmenter, predict


@exit_on_error()
def main(rgb: str, depth: str, words: str, *given: str) -> None:
    segmenter = Segmenter.from_pretrained(*given)
    found = predict(
        rgb,
        None if depth == "-" else depth,
        tags=[word.strip() for word in words.split(",") if word.strip()],
        model=segmenter,
    )
    found.save("runs/segment_rgbd")  # label.png, overlay.png, a map for each word
    summary = found.summary()
    for row in summary["classes"]:
        print(f"{row['share']:6.1%}  {row['class']}  (sure: {row['confidence']:.0%})")
    for row in summary["words"]:
        print(f"{row['word']}: attention {row['attention']:.2f}")


main(*sys.argv[1:]) if len(sys.argv) in (4, 5) else sys.exit(__doc__)
