"""Lessons of the in-context learner: true examples, questions that need two of them."""

import pytest
import torch

from eligo.scenes import words
from eligo.scenes.phrases import VOCABULARY, to_text
from eligo.shots.learner.lessons import EXAMPLES, OFFSETS, QUESTIONS, draw_lessons
from eligo.shots.learner.load import scenes_for
from shipped_models import LEARNER

SCENES = scenes_for(LEARNER.image_size)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def lessons():
    return draw_lessons(SCENES, "train", torch.arange(12), CPU)


def objects(lessons, scene: int) -> list[list[int]]:
    graph = lessons.rendered.graph
    return graph.attributes[scene][graph.askable[scene]].tolist()


def test_examples_are_true_and_clear_examples_unambiguous(lessons):
    unclear = 0
    for lesson in range(len(lessons)):
        lexicon = {
            int(name): (attribute, value)
            for attribute, row in enumerate(lessons.names[lesson].tolist())
            for value, name in enumerate(row)
            if name >= 0
        }
        for demo in range(EXAMPLES):
            attribute, value = lexicon[int(lessons.example_word[lesson, demo])]
            assert OFFSETS[attribute] + value == int(lessons.example_value[lesson, demo])
            text = to_text(lessons.example_text[lesson, demo].tolist())
            assert text.startswith(f"what {words.ATTRIBUTES[attribute]} is the ")
            assert text.endswith("?")
            noun = text[:-1].split()[4:]
            by = (
                (words.COLOUR, words.COLOURS)
                if noun[-1] == "thing"
                else (words.SHAPE, words.SHAPES)
            )
            visible = objects(lessons, lesson * (EXAMPLES + 1) + demo)
            meant = {o[attribute] for o in visible if by[1][o[by[0]]] == noun[0]}
            assert value in meant
            assert bool(lessons.clear[lesson, demo]) == (len(meant) == 1)
            unclear += len(meant) > 1
    assert unclear


def test_questions_need_two_examples_and_have_one_answer(lessons):
    for lesson in range(len(lessons)):
        meaning = {
            int(lessons.example_word[lesson, demo]): (
                int(lessons.example_value[lesson, demo]),
                demo,
            )
            for demo in range(EXAMPLES)
        }
        visible = objects(lessons, lesson * (EXAMPLES + 1) + EXAMPLES)
        for number in range(QUESTIONS):
            ids = [i for i in lessons.text[lesson, number].tolist() if i >= 0]
            used = [meaning[i] for i in ids if i in meaning]
            assert len(used) == 2
            needs = lessons.needs[lesson, number].nonzero().flatten().tolist()
            assert sorted(demo for _, demo in used) == needs
            expected = []
            for value, _ in used:
                attribute = max(a for a in range(4) if OFFSETS[a] <= value)
                expected.append((attribute, value - OFFSETS[attribute]))
            attribute = words.ATTRIBUTES.index(VOCABULARY[ids[1]])
            assert attribute not in [attribute for attribute, _ in expected]
            found = [o for o in visible if all(o[a] == v for a, v in expected)]
            assert bool(lessons.valid[lesson, number]) == (len(found) == 1)
            if len(found) == 1:
                assert lessons.meant[lesson, number].tolist() == found[0]
                answer = words.name(attribute, found[0][attribute])
                assert VOCABULARY[int(lessons.answer[lesson, number])] == answer
    assert lessons.valid.float().mean() > 0.5


def test_lessons_in_plain_words():
    drawn = draw_lessons(SCENES, "train", torch.arange(3), CPU, plain=1.0)
    assert VOCABULARY[int(drawn.example_word[0, 0])] in {n for row in words.VALUES for n in row}
    nonce = draw_lessons(SCENES, "validation", torch.arange(3), CPU)
    assert VOCABULARY[int(nonce.example_word[0, 0])] in words.NONCE
