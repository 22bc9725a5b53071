"""A minimal stand-in for lmms-eval 0.7, used where that package is not installed.

Read off its interface: `lmms_eval.api.model.lmms`, `lmms_eval.models.registry_v2.ModelManifest`,
`lmms_eval.models.model_utils.gen_metrics.log_metrics`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType
from typing import Any


class Lmms(ABC):
    is_simple = True

    def __init__(self) -> None:
        self._rank, self._world_size = 0, 1
        self.task_dict: dict[str, Any] = {}

    @property
    def rank(self) -> int:
        return self._rank

    @abstractmethod
    def loglikelihood(self, requests: Any) -> Any: ...

    @abstractmethod
    def generate_until(self, requests: Any) -> Any: ...

    @abstractmethod
    def generate_until_multi_round(self, requests: Any) -> Any: ...


@dataclass(frozen=True)
class ModelManifest:
    model_id: str
    simple_class_path: str | None = None
    chat_class_path: str | None = None
    aliases: tuple[str, ...] = ()


def log_metrics(
    total_elapsed_time: float,
    total_gen_tokens: int,
    avg_speed: float,
    additional_metrics: dict[str, Any] | None = None,
) -> None:
    raise AssertionError("tests listen here")


def modules() -> dict[str, ModuleType]:
    """For sys.modules."""
    contents: dict[str, dict[str, Any]] = {
        "lmms_eval": {},
        "lmms_eval.api": {},
        "lmms_eval.api.model": {"lmms": Lmms},
        "lmms_eval.models": {},
        "lmms_eval.models.registry_v2": {"ModelManifest": ModelManifest},
        "lmms_eval.models.model_utils": {},
        "lmms_eval.models.model_utils.gen_metrics": {"log_metrics": log_metrics},
    }
    fakes = {}
    for name, names in contents.items():
        fakes[name] = ModuleType(name)
        fakes[name].__dict__.update(names, __path__=[])
    return fakes
