"""A pruned host under lmms-eval: `lmms-eval --model eligo --model_args pretrained=...,plan=...`.

lmms-eval finds `manifest` by the entry point `lmms_eval.models` of this package; it is called while
lmms-eval is still being imported, so it only names the class. Written for lmms-eval 0.7.
"""

from typing import Any

NAME = "eligo"


def manifest() -> Any:
    """What lmms-eval's registry wants to know."""
    from lmms_eval.models.registry_v2 import (  # pyright: ignore[reportMissingImports]
        ModelManifest,
    )

    return ModelManifest(model_id=NAME, chat_class_path=f"{__name__}.model.PrunedModel")
