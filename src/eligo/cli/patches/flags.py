"""What several `patches` commands understand alike: which model, and where it runs."""

from typing import TYPE_CHECKING

from eligo.pretrained.load import shipped_model

if TYPE_CHECKING:
    from eligo.patches.model.retrieval_model import RetrievalModel

SHIPPED = "patches"


def open_model(model: str | None, device: str) -> "RetrievalModel":
    """A model by its folder (or its run's) or its name, or the one that comes with eligo."""
    given = model or shipped_model(SHIPPED, made_by="eligo patches train")
    from eligo.patches.model.retrieval_model import RetrievalModel
    from eligo.pretrained.devices import resolve_device

    return RetrievalModel.from_pretrained(given, device=resolve_device(device))
