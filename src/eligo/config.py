"""Typed configs: frozen pydantic models <-> YAML <-> command line."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Base of every config: frozen, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True
    )
