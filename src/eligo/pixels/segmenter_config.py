"""All that a trained model remembers: network, class names, words, inputs. Imports no torch."""

from pydantic import model_validator

from eligo.pixels.config import PixelsConfig
from eligo.pixels.data_config import InputsConfig
from eligo.pixels.text_config import TextConfig


class SegmenterConfig(PixelsConfig):
    """A network with what it needs to read pictures and words."""

    classes: tuple[str, ...] = ()
    """Names of the classes, in order; a training fills them in from its data."""
    image_size: tuple[int, int] | None = None
    """Height and width of the images it was trained on; a training fills it in, if there is one."""
    text: TextConfig = TextConfig()
    """Words."""
    text_probe: tuple[float, ...] | None = None
    """How the text encoder of the training reads a certain sentence; a training fills it in, to
    notice another encoder under the same name. None: not checked."""
    inputs: InputsConfig = InputsConfig()
    """Pictures."""

    @property
    def guided(self) -> bool:
        """Whether words reach the network."""
        return self.text.source != "none" and bool(
            self.sam.encoder.stages or self.sam.decoder.stages
        )

    @model_validator(mode="after")
    def _names_fit(self) -> "SegmenterConfig":
        if self.classes and len(self.classes) != self.num_classes:
            raise ValueError(
                f"num_classes: got {self.num_classes}, expected {len(self.classes)}, the number of "
                "class names"
            )
        return self
