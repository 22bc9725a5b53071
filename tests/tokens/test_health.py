"""Each trouble of the guide's list is named while it happens, with what helps."""

import logging
import re

import pytest
import torch

from eligo.config.problems import dotted_keys
from eligo.errors import EligoError
from eligo.tokens.config import TokensTrainConfig
from eligo.tokens.training.health import REMEDIES, Trouble, find_troubles, memory_guard
from eligo.tokens.training.validate import Validation

FINE = {
    "accuracy_baseline": 0.97,
    "accuracy_merge_only": 0.965,
    "accuracy_hard": 0.955,
    "vision_keep_mean": 0.25,
    "avg_original_tokens": 576.0,
    "avg_merged_tokens": 288.0,
    "disc_prob_real": 0.72,
    "disc_prob_fake": 0.31,
    "temperature": 0.1,
    "temperature_start": 1.0,
    "temperature_end": 0.1,
}


def names(fraction: float = 1.0, **changes: float) -> list[str]:
    return [trouble.name for trouble in find_troubles(FINE | changes, fraction)]


def test_a_healthy_run_is_left_alone():
    assert names() == []
    assert find_troubles({}, 0.5) == []


def test_tokens_that_do_not_shrink():
    assert names(vision_keep_mean=0.95) == ["tokens_not_shrinking"]
    (trouble,) = find_troubles(FINE | {"vision_keep_mean": 0.95, "avg_merged_tokens": 570}, 1.0)
    assert "570 of 576" in str(trouble)
    assert "merger.ratio" in trouble.remedy


def test_accuracy_that_falls_is_told_late_and_says_where():
    assert names(accuracy_hard=0.90) == ["accuracy_falling"]
    assert names(0.3, accuracy_hard=0.5) == []  # choices are still meant to be noisy
    (by_cuts,) = find_troubles(FINE | {"accuracy_hard": 0.90}, 1.0)
    assert "by the cuts" in by_cuts.symptom
    (by_merge,) = find_troubles(FINE | {"accuracy_hard": 0.90, "accuracy_merge_only": 0.91}, 1.0)
    assert "by merging" in by_merge.symptom


def test_a_discriminator_that_is_too_strong():
    assert names(disc_prob_real=0.97, disc_prob_fake=0.02) == ["discriminator_too_strong"]
    assert names(disc_prob_real=0.97, disc_prob_fake=0.4) == []


def test_a_temperature_that_is_stuck():
    assert names(0.5, temperature=1.0) == ["temperature_stuck"]
    assert names(0.05, temperature=1.0) == []
    assert names(0.5, temperature=1.0, temperature_end=1.0) == []  # as it was told


def test_running_out_of_memory_says_what_helps():
    helps = r"out of memory: a step .* lower train\.batch_size"
    with pytest.raises(EligoError, match=helps), memory_guard("a step"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(ZeroDivisionError), memory_guard("a step"):
        _ = 1 / 0


def test_remedies_name_keys_that_exist():
    keys = set(dotted_keys(TokensTrainConfig))
    words = set(re.findall(r"[a-z_]+(?:\.[a-z_]+)+", " ".join(REMEDIES.values())))
    assert words
    assert words <= keys, words - keys


def test_a_trouble_is_told_when_it_begins_and_not_at_every_evaluation(caplog):
    validation = Validation.__new__(Validation)
    validation.told = set()
    trouble = Trouble("temperature_stuck", "still 1.00")
    with caplog.at_level(logging.WARNING, logger="eligo.tokens"):
        for found in ([trouble], [trouble], [], [trouble]):
            validation._tell(found)
    assert len(caplog.records) == 2
    assert "temperature stuck: still 1.00; raise train.total_steps" in caplog.text
