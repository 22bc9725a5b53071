"""The blind baseline, which answers questions without the image.

It gives the most frequent training answer to the same text or, for a new text, to the same kind of
question.
"""

from collections.abc import Callable

from eligo.scenes.config import SceneConfig
from eligo.scenes.graph import draw_scenes
from eligo.scenes.question_kinds import ANSWERS, KINDS
from eligo.scenes.questions import draw_questions

_CHUNK = 512


def fit_blind(scenes: SceneConfig, num_scenes: int) -> Callable[[str, str], str]:
    """Fit the blind baseline; it maps the text and the kind of a question to an answer."""
    counts_of: dict[str, list[int]] = {}
    for start in range(0, num_scenes, _CHUNK):
        stop = min(start + _CHUNK, num_scenes)
        graph = draw_scenes(scenes, "train", range(start, stop))
        questions = draw_questions(graph, 12)
        for scene, position in questions.valid.nonzero().tolist():
            text = questions.text(scene, position)
            answer_id = int(questions.answer[scene, position])
            kind = KINDS[int(questions.kind[scene, position])].name
            for key in (text, kind):
                counts_of.setdefault(key, [0] * len(ANSWERS))[answer_id] += 1

    def answer(text: str, kind: str) -> str:
        counts = counts_of.get(text) or counts_of.get(kind) or [1]
        return ANSWERS[counts.index(max(counts))]

    return answer
