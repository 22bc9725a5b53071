"""Statistics of scenes: counts, and the accuracy of a blind baseline."""

from collections import Counter, defaultdict

import pytest
import torch

from benchmarks.scenes import stats as stats_module
from benchmarks.scenes.stats import StatsConfig, as_plain, scene_stats
from eligo.scenes import SceneConfig, draw_questions, draw_scenes
from eligo.scenes.question_kinds import ANSWERS, FAMILIES, KINDS, Questions

CONFIG = StatsConfig(train=300, validation=100, questions=8)


@pytest.fixture(scope="module")
def stats():
    return scene_stats(CONFIG)


def plain_questions(split, scenes):
    """(kind, text, answer) of every question, in plain Python."""
    drawn = draw_questions(draw_scenes(SceneConfig(), split, range(scenes)), CONFIG.questions)
    return [
        (KINDS[int(drawn.kind[s, q])], drawn.text(s, q), int(drawn.answer[s, q]))
        for s in range(scenes)
        for q in range(CONFIG.questions)
    ]


def test_counts_match_plain_python(stats):
    by_text, by_kind = defaultdict(Counter), defaultdict(Counter)
    for kind, text, answer in plain_questions("train", 300):
        if answer >= 0:
            by_text[text][answer] += 1
            by_kind[kind.name][answer] += 1

    def most(counter: Counter) -> int:  # ties go to the lowest answer
        return min(counter, key=lambda answer: (-counter[answer], answer))

    rows = {(row.family, row.kind): row for row in stats.rows}
    counts, right, answers, places = Counter(), Counter(), defaultdict(Counter), Counter()
    met = Counter()
    for kind, text, answer in plain_questions("validation", 100):
        for name in (kind.name, "all"):
            places[kind.family, name] += 1
            if answer < 0:
                continue
            guess = most(by_text[text] if text in by_text else by_kind[kind.name])
            counts[kind.family, name] += 1
            met[kind.family, name] += text in by_text
            right[kind.family, name] += guess == answer
            answers[kind.family, name][ANSWERS[answer]] += 1
    for key, row in rows.items():
        assert row.count == counts[key]
        assert row.blind == pytest.approx(right[key] / counts[key])
        assert row.seen == pytest.approx(met[key] / counts[key])
        assert row.valid == pytest.approx(counts[key] / places[key])
        for answer, share in row.answers.items():
            assert share == pytest.approx(answers[key][answer] / counts[key])
        assert row.interval[0] <= row.blind <= row.interval[1]
    assert {row.family for row in stats.rows} == set(FAMILIES)


def test_shares_add_up(stats):
    for shares in stats.objects.values():
        assert sum(shares.values()) == pytest.approx(1)
    for row in stats.rows:
        assert sum(row.answers.values()) == pytest.approx(1)
        assert 0 < row.chance <= 0.5
    assert stats.held_out["train"] == stats.held_out["validation"] == 0
    assert 0.05 < stats.held_out["test"] < 0.25
    assert as_plain(stats)["fair"] == stats.fair


def test_world_that_leaks_answers_is_flagged(monkeypatch):
    def leaky(graph, count) -> Questions:
        drawn = draw_questions(graph, count)
        answer = torch.where(drawn.answer >= 0, drawn.answer.clamp(max=0), -1)
        return Questions(**{**vars(drawn), "answer": answer})  # every answer is "yes"

    monkeypatch.setattr(stats_module, "draw_questions", leaky)
    found = scene_stats(CONFIG)
    assert not found.fair
    assert all(row.blind == 1 and not row.fair for row in found.rows)


def test_progress_reaches_the_end():
    progress = []
    scene_stats(StatsConfig(train=600, validation=10, questions=1), progress.append)
    assert progress == [512, 600, 610]
