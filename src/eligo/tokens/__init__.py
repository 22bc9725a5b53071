"""Which vision tokens survive inside the language model?

Say what to keep with a `Plan`, run a model `with pruning(model, plan):`, read the `Trace`. Methods
live in `methods`, learned parts in `modules`, what it all costs in `cost`.

Names are imported on first use: configs and `--help` need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eligo.tokens.config import TokensTrainConfig
    from eligo.tokens.cost import Cost, Schedule, count_cost, plan_cost
    from eligo.tokens.data import Collator, FileExamples, SceneExamples, TokenBatch, TokenExample
    from eligo.tokens.discriminator import Discriminator
    from eligo.tokens.export import export_stage1
    from eligo.tokens.hosts import Host, host_of
    from eligo.tokens.load import load_host
    from eligo.tokens.masked import Relaxer, SoftCut, SoftMerge, masking
    from eligo.tokens.methods import METHODS
    from eligo.tokens.modules import LayerPruners, TokenMerger
    from eligo.tokens.plan import Cut, Plan, Stage1
    from eligo.tokens.proposals import Proposal, default_schedule, propose
    from eligo.tokens.reducer import Reducer, ReducerContext
    from eligo.tokens.removal import pruning
    from eligo.tokens.shapes import HostShape
    from eligo.tokens.trace import StageTrace, Trace, answer_loss
    from eligo.tokens.train import TokensTask

_HOME = {
    "METHODS": "methods",
    "Collator": "data",
    "Cost": "cost",
    "Cut": "plan",
    "Discriminator": "discriminator",
    "FileExamples": "data",
    "Host": "hosts",
    "HostShape": "shapes",
    "LayerPruners": "modules",
    "Plan": "plan",
    "Proposal": "proposals",
    "Reducer": "reducer",
    "ReducerContext": "reducer",
    "Relaxer": "masked",
    "SceneExamples": "data",
    "Schedule": "cost",
    "SoftCut": "masked",
    "SoftMerge": "masked",
    "Stage1": "plan",
    "StageTrace": "trace",
    "TokenBatch": "data",
    "TokenExample": "data",
    "TokenMerger": "modules",
    "TokensTask": "train",
    "TokensTrainConfig": "config",
    "Trace": "trace",
    "answer_loss": "trace",
    "count_cost": "cost",
    "default_schedule": "proposals",
    "export_stage1": "export",
    "host_of": "hosts",
    "load_host": "load",
    "masking": "masked",
    "plan_cost": "cost",
    "propose": "proposals",
    "pruning": "removal",
}
__all__ = [
    "METHODS",
    "Collator",
    "Cost",
    "Cut",
    "Discriminator",
    "FileExamples",
    "Host",
    "HostShape",
    "LayerPruners",
    "Plan",
    "Proposal",
    "Reducer",
    "ReducerContext",
    "Relaxer",
    "SceneExamples",
    "Schedule",
    "SoftCut",
    "SoftMerge",
    "Stage1",
    "StageTrace",
    "TokenBatch",
    "TokenExample",
    "TokenMerger",
    "TokensTask",
    "TokensTrainConfig",
    "Trace",
    "answer_loss",
    "count_cost",
    "default_schedule",
    "export_stage1",
    "host_of",
    "load_host",
    "masking",
    "plan_cost",
    "propose",
    "pruning",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"eligo.tokens.{_HOME[name]}"), name)
    raise AttributeError(f"module 'eligo.tokens' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
