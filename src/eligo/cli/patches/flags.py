"""Flags that several `patches` commands share: the model and its device."""

from typing import TYPE_CHECKING

from eligo.pretrained.load import shipped_model

if TYPE_CHECKING:
    from eligo.patches.model.retrieval_model import RetrievalModel

SHIPPED = "patches"
GENERATED = (
    "note: the shipped model knows generated scenes only; for photos, give --model "
    "openai/clip-vit-base-patch32, or a model of your own"
)


def open_model(model: str | None, device: str) -> "RetrievalModel":
    """Load a model by the folder of a model or run, or by name; by default the shipped one."""
    given = model or shipped_model(SHIPPED, made_by="eligo patches train")
    from eligo.patches.model.retrieval_model import RetrievalModel
    from eligo.pretrained.devices import resolve_device

    return RetrievalModel.from_pretrained(given, device=resolve_device(device))
