"""Problems of a training are found in its metrics and reported with a remedy."""

import logging
import re

import pytest
import torch

from eligo.config.problems import dotted_keys
from eligo.errors import EligoError
from eligo.tokens.config import TokensTrainConfig
from eligo.tokens.training.health import REMEDIES, Problem, find_problems, memory_guard
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
    return [problem.name for problem in find_problems(FINE | changes, fraction)]


def test_healthy_run_has_no_problems():
    assert names() == []
    assert find_problems({}, 0.5) == []


def test_number_of_tokens_that_does_not_fall_is_reported():
    assert names(vision_keep_mean=0.95) == ["tokens_not_shrinking"]
    (problem,) = find_problems(FINE | {"vision_keep_mean": 0.95, "avg_merged_tokens": 570}, 1.0)
    assert "570 of 576" in str(problem)
    assert "merger.ratio" in str(problem)


def test_falling_accuracy_is_reported_late_with_its_stage():
    assert names(accuracy_hard=0.90) == ["accuracy_falling"]
    assert names(0.3, accuracy_hard=0.5) == []  # selections are still noisy
    (by_cuts,) = find_problems(FINE | {"accuracy_hard": 0.90}, 1.0)
    assert "by the cuts" in by_cuts.symptom
    (by_merge,) = find_problems(FINE | {"accuracy_hard": 0.90, "accuracy_merge_only": 0.91}, 1.0)
    assert "by merging" in by_merge.symptom


def test_strong_discriminator_is_reported():
    assert names(disc_prob_real=0.97, disc_prob_fake=0.02) == ["discriminator_too_strong"]
    assert names(disc_prob_real=0.97, disc_prob_fake=0.4) == []


def test_constant_temperature_is_reported():
    assert names(0.5, temperature=1.0) == ["temperature_stuck"]
    assert names(0.05, temperature=1.0) == []
    assert names(0.5, temperature=1.0, temperature_end=1.0) == []  # as configured


def test_out_of_memory_error_has_a_remedy():
    message = r"out of memory: a step .* lower train\.batch_size"
    with pytest.raises(EligoError, match=message), memory_guard("a step"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(ZeroDivisionError), memory_guard("a step"):
        _ = 1 / 0


def test_remedies_name_keys_that_exist():
    keys = set(dotted_keys(TokensTrainConfig))
    words = set(re.findall(r"[a-z_]+(?:\.[a-z_]+)+", " ".join(REMEDIES.values())))
    assert words
    assert words <= keys, words - keys


def test_problem_is_logged_once_while_it_lasts(caplog):
    validation = Validation.__new__(Validation)
    validation.reported = set()
    problem = Problem("temperature_stuck", "still 1.00")
    with caplog.at_level(logging.WARNING, logger="eligo.tokens"):
        for found in ([problem], [problem], [], [problem]):
            validation._report(found)
    assert len(caplog.records) == 2
    assert "temperature stuck: still 1.00; raise train.total_steps" in caplog.text
