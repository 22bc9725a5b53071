"""The clock on a laptop: how long the tiny LLaVA takes to answer, one question at a time.

Spec, "Real speed": whole answers through stock `generate`, entering `pruning` included. The same
question is answered by both sides in turn.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import fmean
from typing import Any

import torch

from eligo.errors import InputError
from eligo.scenes.config import SceneConfig
from eligo.tokens.data.examples import Collator, SceneExamples
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.inference.bench import WARM_UP, Bar, Timings
from eligo.tokens.plan import Plan

ANSWER_SPEEDUP = 1.5
MAX_NEW_TOKENS = 8
_NUM_QUESTIONS = 6  # one of each family


def time_answers(
    model: Any,
    processor: Any,
    plan: Plan,
    rounds: int,
    on_turn: Callable[[int], None] = lambda _done: None,
) -> tuple[dict[str, Timings], dict[str, float]]:
    """Milliseconds per answer of both sides, and how many tokens their answers had on average."""
    if rounds < 1:
        raise InputError(f"--rounds: got {rounds}, expected 1 or more")
    side = model.config.vision_config.image_size
    examples = SceneExamples(SceneConfig(height=side, width=side), "test", _NUM_QUESTIONS)
    batches = [Collator(processor)([examples[index]]) for index in range(_NUM_QUESTIONS)]
    plans = {"unpruned": None, "pruned": plan}
    found = {name: Timings() for name in plans}
    words: dict[str, list[int]] = {name: [] for name in plans}
    for turn in range(WARM_UP + rounds):
        batch = batches[turn % len(batches)]
        for number, (name, used) in enumerate(plans.items(), 1):
            start = time.perf_counter()
            with (
                torch.no_grad(),
                nullcontext() if used is None else pruning(model, used, batch.question_mask),
            ):
                output = model.generate(
                    **batch.inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False
                )
            took = 1000 * (time.perf_counter() - start)
            on_turn(turn * len(plans) + number)
            if turn >= WARM_UP:
                found[name].add({"answer": took})
                words[name].append(output.shape[1] - batch.inputs["input_ids"].shape[1])
    return found, {name: fmean(counts) for name, counts in words.items()}


def answer_bar(found: dict[str, Timings]) -> Bar:
    """At least 1.5 times as fast."""
    full, pruned = found["unpruned"]["answer"].p50, found["pruned"]["answer"].p50
    numbers = {"answer_full_ms": full, "answer_pruned_ms": pruned}
    return Bar("answer speed-up", full / pruned, ANSWER_SPEEDUP, numbers)
