"""From a config to a model."""

from eligo.shots.model.bi_encoder import PointerSelectorV1, PointerSelectorV2, PointerSelectorV3
from eligo.shots.model.config import (
    AnyPointerConfig,
    PointerSelectorV0Config,
    PointerSelectorV1Config,
    PointerSelectorV2Config,
    PointerSelectorV3Config,
)
from eligo.shots.model.decoder import PointerSelectorV0
from eligo.shots.model.pointer import PointerSelector


def build_model_v0(config: PointerSelectorV0Config | None = None) -> PointerSelectorV0:
    """V0, with fresh weights."""
    return PointerSelectorV0(config)


def build_model_v1(config: PointerSelectorV1Config | None = None) -> PointerSelectorV1:
    """V1, with fresh weights."""
    return PointerSelectorV1(config)


def build_model_v2(config: PointerSelectorV2Config | None = None) -> PointerSelectorV2:
    """V2, with fresh weights."""
    return PointerSelectorV2(config)


def build_model_v3(config: PointerSelectorV3Config | None = None) -> PointerSelectorV3:
    """V3, with fresh weights."""
    return PointerSelectorV3(config)


def build_model(config: AnyPointerConfig) -> PointerSelector:
    """Whichever version the config is of."""
    match config:
        case PointerSelectorV0Config():
            return build_model_v0(config)
        case PointerSelectorV1Config():
            return build_model_v1(config)
        case PointerSelectorV2Config():
            return build_model_v2(config)
        case PointerSelectorV3Config():
            return build_model_v3(config)
