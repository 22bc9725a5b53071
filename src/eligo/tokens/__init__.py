"""Which vision tokens survive inside the language model?

Say what to keep with a `Plan`, run a model `with pruning(model, plan):`, read the `Trace`.

Rooms: `methods` (training-free rivals), `learned` (merger, pruners, discriminator), `hosts` (which
models), `inside` (how tokens leave them), `data`, `training`, `measure` (evaluation, exam, sweep,
bench), `cost` (what it saves).

Names are imported on first use: configs and `--help` need no torch.
"""

from typing import TYPE_CHECKING

from eligo.lazy import lazy_names

if TYPE_CHECKING:
    from eligo.tokens.cost.count import Cost, Schedule, count_cost
    from eligo.tokens.cost.of_plan import plan_cost
    from eligo.tokens.cost.proposals import Proposal, default_schedule, propose
    from eligo.tokens.cost.shapes import HostShape
    from eligo.tokens.data.examples import (
        Collator,
        FileExamples,
        SceneExamples,
        TokenBatch,
        TokenExample,
    )
    from eligo.tokens.export import export_stage1
    from eligo.tokens.hosts import Host, host_of
    from eligo.tokens.inside.masked import Relaxer, SoftCut, SoftMerge, masking
    from eligo.tokens.inside.removal import pruning
    from eligo.tokens.learned.discriminator import Discriminator
    from eligo.tokens.learned.modules import LayerPruners, TokenMerger
    from eligo.tokens.load import load_host
    from eligo.tokens.methods import METHODS
    from eligo.tokens.plan import Cut, Plan, Stage1
    from eligo.tokens.reducer import Reducer, ReducerContext
    from eligo.tokens.trace import StageTrace, Trace, answer_loss
    from eligo.tokens.training.config import TokensTrainConfig
    from eligo.tokens.training.train import TokensTask

_HOME = {
    "METHODS": "methods",
    "Collator": "data.examples",
    "Cost": "cost.count",
    "Cut": "plan",
    "Discriminator": "learned.discriminator",
    "FileExamples": "data.examples",
    "Host": "hosts",
    "HostShape": "cost.shapes",
    "LayerPruners": "learned.modules",
    "Plan": "plan",
    "Proposal": "cost.proposals",
    "Reducer": "reducer",
    "ReducerContext": "reducer",
    "Relaxer": "inside.masked",
    "SceneExamples": "data.examples",
    "Schedule": "cost.count",
    "SoftCut": "inside.masked",
    "SoftMerge": "inside.masked",
    "Stage1": "plan",
    "StageTrace": "trace",
    "TokenBatch": "data.examples",
    "TokenExample": "data.examples",
    "TokenMerger": "learned.modules",
    "TokensTask": "training.train",
    "TokensTrainConfig": "training.config",
    "Trace": "trace",
    "answer_loss": "trace",
    "count_cost": "cost.count",
    "default_schedule": "cost.proposals",
    "export_stage1": "export",
    "host_of": "hosts",
    "load_host": "load",
    "masking": "inside.masked",
    "plan_cost": "cost.of_plan",
    "propose": "cost.proposals",
    "pruning": "inside.removal",
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

__getattr__, __dir__ = lazy_names(__name__, _HOME)
