"""`python -m benchmarks.explorer.photos`: what methods keep of two photos, for `eligo demo`.

The model needs a trained vision tower only. Methods that read the question or work inside the
language model are left out, and no answer is recorded: its projector may be untrained.
"""

from dataclasses import replace
from pathlib import Path

import torch

from eligo.cli import run_script
from eligo.cli.console import print_text
from eligo.cli.demo.page import PHOTOS
from eligo.cli.flags import Count
from eligo.explorer.folder import save_record
from eligo.explorer.record import ExplorerRecord, Stage
from eligo.images import open_image
from eligo.io.files import write_text
from eligo.tokens.config import HostConfig
from eligo.tokens.inference.load import load_host
from eligo.tokens.inference.predict import predict
from eligo.tokens.inference.record import record
from eligo.tokens.inference.resolve import place_method
from eligo.tokens.methods import METHODS, VIDEO_METHODS, Method, build
from eligo.tokens.reducer import TOWER_ROWS

KIND, PHOTO = "real photos", "photo.jpg"
_BASELINES = ("random", "uniform", "pool")
_PNG = "picture_00.png"  # of `save_record`
_MARK = "Real photo, real vision tower ({tower}), training-free methods; precomputed."
_NOTE = (
    "Without a trained language model of photos there is no answer to show, and methods that read "
    "the question or work inside the language model are left out."
)


def tower_methods() -> list[Method]:
    """Return the training-free methods that read nothing but the vision tower, baselines last."""
    others = ("none", "oracle", *VIDEO_METHODS)
    methods = [build(name) for name in METHODS if name not in others]
    methods = [each for each in methods if "before" in each.where and each.needs <= {*TOWER_ROWS}]
    return sorted(methods, key=lambda each: each.name in _BASELINES)


def run(*, model: str, tower: str, budget: Count = 64, photos: Path = PHOTOS) -> None:
    """Record what the methods keep of each photo, beside it.

    Args:
        model: Folder of a vision-language model, such as `eligo tokens build` writes.
        tower: What to call its vision tower on the page.
        budget: Vision tokens to keep.
        photos: A folder for each photo, which holds it as photo.jpg, a square.
    """
    host, processor = load_host(HostConfig(model=model))
    methods = tower_methods()
    for path in sorted(photos.glob(f"*/{PHOTO}")):
        photo, stages, supply = open_image(path), list[Stage](), 0
        for method in methods:
            plan = place_method(method, (budget,))
            prediction = predict(
                photo,
                path.parent.name,
                model=host,
                processor=processor,
                plan=plan,
                max_new_tokens=1,
            )
            supply = prediction.cost.schedule.vision
            (stage,) = record(prediction).stages
            stages.append(_small(stage, note=(type(method).__doc__ or "").partition("\n")[0]))
        shown = ExplorerRecord(
            title=f"{path.parent.name.capitalize()}: what {len(methods)} methods keep",
            kind=KIND,
            query=_MARK.format(tower=tower),
            stages=tuple(stages),
            pictures={"image": photo},
            cost={"vision tokens": f"{supply} > {budget}"},
            note=_NOTE,
        )
        _save(shown, path)
        print_text(f"written: {path.parent}")


def _small(stage: Stage, note: str) -> Stage:
    """Return the stage with weights in half precision: the page shows two digits."""
    selection = stage.selection
    if selection.assignment is not None:
        selection = replace(selection, assignment=selection.assignment.to(torch.float16))
    return replace(stage, selection=selection, note=note)


def _save(shown: ExplorerRecord, photo: Path) -> None:
    """Save a record that refers to the photo beside it, which is smaller than a PNG of it."""
    file = save_record(shown, photo.parent)
    (photo.parent / _PNG).unlink()
    write_text(file, file.read_text(encoding="utf-8").replace(_PNG, photo.name))


if __name__ == "__main__":
    raise SystemExit(run_script(run))
