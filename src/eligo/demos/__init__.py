"""Which examples enter the prompt?

A pool of examples, a query, and a selector that picks a few of them: pointer selectors V0 to V3,
which learn from a teacher (`LearnedSelector`), and the rivals they must beat. `Pool`, `Query` and
`Record` are the data; every selector has `fit`, `select`, `save` and `load`.

Names are imported on first use: configs and `--help` need no torch.
"""

from typing import TYPE_CHECKING

from eligo.lazy import lazy_names

if TYPE_CHECKING:
    from eligo.demos.data.pool import Pool
    from eligo.demos.data.query import Query
    from eligo.demos.data.records import Record
    from eligo.demos.data.sampler import Sampler
    from eligo.demos.data.sampler_config import SamplerConfig
    from eligo.demos.data.text import embed_texts, embed_tokens, read_texts, text_pool
    from eligo.demos.hosts.generator import HostGenerator
    from eligo.demos.hosts.reader import Reader
    from eligo.demos.hosts.scorer import HostScorer, Scorer
    from eligo.demos.index import PoolIndex
    from eligo.demos.learned.config import FitConfig
    from eligo.demos.learned.selector import LearnedSelector
    from eligo.demos.models.bi_encoder import (
        PointerSelectorV1,
        PointerSelectorV2,
        PointerSelectorV3,
    )
    from eligo.demos.models.build import (
        build_model,
        build_model_v0,
        build_model_v1,
        build_model_v2,
        build_model_v3,
    )
    from eligo.demos.models.config import (
        PointerSelectorV0Config,
        PointerSelectorV1Config,
        PointerSelectorV2Config,
        PointerSelectorV3Config,
    )
    from eligo.demos.models.decoder import PointerSelectorV0
    from eligo.demos.models.output import PointerOutput, PointerPrediction
    from eligo.demos.models.pointer import PointerSelector
    from eligo.demos.rivals import (
        BM25,
        DPP,
        KNN,
        MMR,
        BeamOracle,
        BestFixed,
        GreedyOracle,
        Random,
        StaticOracle,
        Utility,
        UtilityTable,
        ZeroShot,
    )
    from eligo.demos.search import beam_search, num_calls
    from eligo.demos.selector import PoolSelector, Selector, load_selector
    from eligo.demos.teach.teacher import Lesson, teach_query

_HOME = {
    "BM25": "rivals",
    "BeamOracle": "rivals",
    "BestFixed": "rivals",
    "DPP": "rivals",
    "FitConfig": "learned.config",
    "GreedyOracle": "rivals",
    "HostGenerator": "hosts.generator",
    "HostScorer": "hosts.scorer",
    "KNN": "rivals",
    "LearnedSelector": "learned.selector",
    "Lesson": "teach.teacher",
    "MMR": "rivals",
    "PointerOutput": "models.output",
    "PointerPrediction": "models.output",
    "PointerSelector": "models.pointer",
    "PointerSelectorV0": "models.decoder",
    "PointerSelectorV0Config": "models.config",
    "PointerSelectorV1": "models.bi_encoder",
    "PointerSelectorV1Config": "models.config",
    "PointerSelectorV2": "models.bi_encoder",
    "PointerSelectorV2Config": "models.config",
    "PointerSelectorV3": "models.bi_encoder",
    "PointerSelectorV3Config": "models.config",
    "Pool": "data.pool",
    "PoolIndex": "index",
    "PoolSelector": "selector",
    "Query": "data.query",
    "Random": "rivals",
    "Reader": "hosts.reader",
    "Record": "data.records",
    "Sampler": "data.sampler",
    "SamplerConfig": "data.sampler_config",
    "Scorer": "hosts.scorer",
    "Selector": "selector",
    "StaticOracle": "rivals",
    "Utility": "rivals",
    "UtilityTable": "rivals",
    "ZeroShot": "rivals",
    "beam_search": "search",
    "build_model": "models.build",
    "build_model_v0": "models.build",
    "build_model_v1": "models.build",
    "build_model_v2": "models.build",
    "build_model_v3": "models.build",
    "embed_texts": "data.text",
    "embed_tokens": "data.text",
    "load_selector": "selector",
    "num_calls": "search",
    "read_texts": "data.text",
    "teach_query": "teach.teacher",
    "text_pool": "data.text",
}
__all__ = [
    "BM25",
    "DPP",
    "KNN",
    "MMR",
    "BeamOracle",
    "BestFixed",
    "FitConfig",
    "GreedyOracle",
    "HostGenerator",
    "HostScorer",
    "LearnedSelector",
    "Lesson",
    "PointerOutput",
    "PointerPrediction",
    "PointerSelector",
    "PointerSelectorV0",
    "PointerSelectorV0Config",
    "PointerSelectorV1",
    "PointerSelectorV1Config",
    "PointerSelectorV2",
    "PointerSelectorV2Config",
    "PointerSelectorV3",
    "PointerSelectorV3Config",
    "Pool",
    "PoolIndex",
    "PoolSelector",
    "Query",
    "Random",
    "Reader",
    "Record",
    "Sampler",
    "SamplerConfig",
    "Scorer",
    "Selector",
    "StaticOracle",
    "Utility",
    "UtilityTable",
    "ZeroShot",
    "beam_search",
    "build_model",
    "build_model_v0",
    "build_model_v1",
    "build_model_v2",
    "build_model_v3",
    "embed_texts",
    "embed_tokens",
    "load_selector",
    "num_calls",
    "read_texts",
    "teach_query",
    "text_pool",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME)
