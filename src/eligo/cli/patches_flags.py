"""What several `patches` commands understand alike: which model, on which device."""

from pathlib import Path
from typing import TYPE_CHECKING

from eligo.errors import InputError

if TYPE_CHECKING:
    from eligo.patches.model import RetrievalModel

SHIPPED = Path(__file__).parents[1] / "scenes" / "models" / "patches"


def model_folder(model: str | None) -> Path:
    """A given folder, or that of the model that comes with eligo."""
    if model is not None:
        return Path(model)
    if not SHIPPED.is_dir():
        raise InputError(
            "--model: none was given and none comes with this eligo; train one with "
            "`eligo patches train` and give its folder"
        )
    return SHIPPED


def open_model(model: str | None, device: str) -> "RetrievalModel":
    """The model of a folder (of a model or a run), ready to use."""
    folder = model_folder(model)
    from eligo.devices import resolve_device
    from eligo.patches.model import RetrievalModel

    return RetrievalModel.from_pretrained(folder, device=resolve_device(device))
