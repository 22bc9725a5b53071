"""Which host the learned parts of a plan were trained in: saved with them, compared when they run.

Training-free plans have no mark and fit every host. Imports no torch.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eligo.errors import InputError
from eligo.pretrained.identity import Weights, same_weights, sampled_weights

if TYPE_CHECKING:
    from eligo.tokens.hosts import Host

_log = logging.getLogger("eligo.tokens")


@dataclass(frozen=True)
class HostMark:
    """Architecture and a sample of the weights of a host."""

    architecture: Mapping[str, Any]
    weights: Weights
    _compared: set[int] = field(default_factory=set, compare=False, repr=False)
    """Models whose weights were looked at: once is enough."""

    @classmethod
    def of(cls, host: "Host") -> "HostMark":
        """The mark of a host."""
        return cls(_architecture(host), sampled_weights(host.core))

    def check(self, host: "Host") -> None:
        """Refuse a host of another architecture; say if only its weights are others."""
        now = _architecture(host)
        for name, expected in self.architecture.items():
            if name in now and now[name] != expected:
                raise InputError(
                    f"plan: was trained in a host with {name} {expected}, this one has "
                    f"{now[name]}; expected the host that it was trained in: train a plan for "
                    "this one with `eligo tokens train --host.model FOLDER`"
                )
        if id(host.core) in self._compared:
            return
        self._compared.add(id(host.core))
        if not same_weights(host.core, self.weights):
            _log.warning(
                "plan: was trained in a host of this architecture with other weights; what it "
                "keeps may be a poor choice here: compare it with `eligo tokens evaluate`, or "
                "train a plan for this host"
            )


def _architecture(host: "Host") -> dict[str, Any]:
    """What decides whether learned parts can mean anything, as JSON holds it."""
    feature = getattr(host.config, "vision_feature_layer", None)
    tower = getattr(host.tower, "config", None)
    return {
        "family": host.family,
        "layers": len(host.layers),
        "width": host.text_width,
        "feature width": host.feature_width,
        "tokens of an image": host.supply,
        "tower layers": getattr(tower, "num_hidden_layers", None),
        "patch size": getattr(tower, "patch_size", None),
        "vision feature layer": list(feature) if isinstance(feature, list | tuple) else feature,
    }
