"""The blind baseline: the most frequent training answer to a question, without any image."""

from collections.abc import Callable

from eligo.scenes.config import SceneConfig
from eligo.scenes.graph import draw_scenes
from eligo.scenes.question_kinds import ANSWERS, KINDS
from eligo.scenes.questions import draw_questions

_CHUNK = 512  # scenes drawn at once


def fit_blind(scenes: SceneConfig, num_scenes: int) -> Callable[[str, str], str]:
    """Return a function from question and kind to an answer, fitted on training scenes.

    It answers with the most frequent answer to the same words or, if they are new, to the kind.
    """
    tallies: dict[str, list[int]] = {}
    for start in range(0, num_scenes, _CHUNK):
        graph = draw_scenes(scenes, "train", range(start, min(start + _CHUNK, num_scenes)))
        questions = draw_questions(graph, 12)
        for scene, place in questions.valid.nonzero().tolist():
            answer = int(questions.answer[scene, place])
            kind = KINDS[int(questions.kind[scene, place])].name
            for known in (questions.text(scene, place), kind):
                tallies.setdefault(known, [0] * len(ANSWERS))[answer] += 1

    def answer_blindly(question: str, kind: str) -> str:
        tally = tallies.get(question) or tallies.get(kind) or [1]
        return ANSWERS[tally.index(max(tally))]

    return answer_blindly
