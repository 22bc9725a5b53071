"""What several `patches` commands understand alike: which model, where it runs, how long a text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eligo.cli.console import remark
from eligo.pretrained import shipped_model

if TYPE_CHECKING:
    from eligo.patches.model import RetrievalModel

SHIPPED = "patches"


def open_model(model: str | None, device: str) -> "RetrievalModel":
    """A model by its folder (or its run's) or its name, or the one that comes with eligo."""
    given = model or shipped_model(SHIPPED, made_by="eligo patches train")
    from eligo.devices import resolve_device
    from eligo.patches.model import RetrievalModel

    return RetrievalModel.from_pretrained(given, device=resolve_device(device))


def say_cut(model: "RetrievalModel", texts: Sequence[str], *, dense: bool = False) -> None:
    """Tell of texts that are too long for the model, which reads their beginning alone."""
    counts = model.text_encoder.count_pieces(texts)
    read = model.text_encoder.longest(dense=dense)
    if cut := [count for count in counts if count > read]:
        what = "dense caption" if dense else "text"
        which, of_them = (
            (f"the {what} is", "it")
            if len(texts) == 1
            else (f"{len(cut)} of {len(texts)} {what}s are", "the longest")
        )
        remark(f"{which} cut: {of_them} has {max(cut)} word pieces, and the model reads {read}")
