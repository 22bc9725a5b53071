"""A teacher's step with the picks first (`append`): read once, or again for every candidate.

A random causal language model on long and short captions of generated scenes: what is measured does
not depend on what it knows. Section 8.
"""

from dataclasses import asdict
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.shots.clock import compare
from eligo.scenes import SceneConfig, draw_scenes
from eligo.scenes.dataset import scene_texts
from eligo.scenes.vlm import SPECIAL, VlmConfig, build_processor
from eligo.shots.data.query import Query
from eligo.shots.hosts.reader import Reader
from eligo.shots.hosts.scorer import HostScorer
from eligo.shots.pool.pool import Pool

PICKS, CANDIDATES = 5, 27
"""The last step for six shots and 32 candidates."""
_WIDTH, _LAYERS = 256, 4


def bench_teaching(device: str = "cpu", rounds: int = 15) -> dict[str, Any]:
    """Both ways, the ratio, and by how much their log-probabilities differ."""
    torch.manual_seed(0)
    scorers = _scorers(device)
    names = [f"d{number}" for number in range(PICKS + CANDIDATES)]
    query = Query("q", torch.ones(1))

    def scored(share: bool) -> torch.Tensor:
        return scorers[share].score(query, names[:PICKS], names[PICKS:]).logprob

    found = compare(
        lambda: scored(False), lambda: scored(True), device=device, rounds=max(3, rounds // 3)
    )
    return {**asdict(found), "difference": (scored(True) - scored(False)).abs().max().item()}


def _scorers(device: str) -> dict[bool, HostScorer]:
    """With and without sharing."""
    tokenizer = build_processor(VlmConfig()).tokenizer  # pyright: ignore[reportAttributeAccessIssue]
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=_WIDTH,
            intermediate_size=3 * _WIDTH,
            num_hidden_layers=_LAYERS,
            num_attention_heads=4,
            num_key_value_heads=4,
            pad_token_id=SPECIAL.index("<pad>"),
        )
    )
    reader = Reader(model.to(device), tokenizer)
    count = PICKS + CANDIDATES
    graph = draw_scenes(SceneConfig(), "train", range(count + 1))
    said = [
        {"question": scene.dense_caption, "answer": scene.captions[0]}
        for scene in scene_texts(graph, 0, 1)
    ]
    pool = Pool([f"d{n}" for n in range(count)], torch.ones(count, 1), payload=said[:count])
    queries = Pool(["q"], torch.ones(1, 1), payload=said[count:])
    return {
        share: HostScorer(
            reader, pool, queries, placement="append", batch_size=CANDIDATES, share=share
        )
        for share in (True, False)
    }
