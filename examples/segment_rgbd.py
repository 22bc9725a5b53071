"""Segment a photo with its depth image, guided by a few words.

    python examples/segment_rgbd.py rgb.png depth.png "desk,chair" [MODEL]
    python examples/segment_rgbd.py RGB_FOLDER DEPTH_FOLDER "desk,chair" [MODEL]

MODEL: a segmentation model (a folder or a name), made by `eligo pixels train` or `convert`. The
default is the shipped model, which knows only generated rooms. Without depth, give `-`; without
words, an empty text. Folders are read as a stream of frames, as a camera would give them.
"""

import sys
from pathlib import Path

from eligo.errors import exit_on_error
from eligo.pixels import Segmenter, predict, read_frames


@exit_on_error()
def main(rgb: str, depth: str, words: str, *given: str) -> None:
    segmenter = Segmenter.from_pretrained(*given)
    stored = None if depth == "-" else depth
    if Path(rgb).is_dir():
        frames = read_frames(rgb, stored, inputs=segmenter.config.inputs)
        for number, frame in enumerate(segmenter.segment_stream(frames, words)):
            largest = int(frame.labels.flatten().long().bincount().argmax())
            sure = float(frame.confidence.mean())
            print(f"frame {number}: mostly class {largest} (sure: {sure:.0%})")
        return
    found = predict(rgb, stored, tags=words, model=segmenter)
    found.save("runs/segment_rgbd")  # label.png, confidence.png, overlay.png, a map for each word
    summary = found.summary()
    for row in summary["classes"]:
        print(f"{row['share']:6.1%}  {row['class']}  (sure: {row['confidence']:.0%})")
    for row in summary["words"]:
        print(f"{row['word']}: attention {row['attention']:.2f}")


main(*sys.argv[1:]) if len(sys.argv) in (4, 5) else sys.exit(__doc__)
