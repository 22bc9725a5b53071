"""Which host, and how it is asked. Imports no torch."""

from typing import Literal

from pydantic import Field

from eligo.config import Config


class ShotsHostConfig(Config):
    """The frozen model."""

    model: str | None = None
    """Folder, shipped name or hub name (OWNER/NAME) of a vision-language model or a causal language
    model; none: no model, answers are compared by shared pairs of words (text only)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Its weights' type; auto: as they were saved."""
    device: str = "auto"
    """Where it runs: auto, cpu or cuda."""
    batch_size: int = Field(default=16, ge=1)
    """Prompts read at a time."""
    instruction: str = ""
    """Put behind every question, such as "Answer in one word."."""
    placement: Literal["prepend", "append"] = "prepend"
    """Where the next pick goes: prepend: the first pick stands nearest the question."""
