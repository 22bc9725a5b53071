"""Learn which of your examples help with which question, then pick some for a new question.

    python examples/select_shots.py qa.jsonl "where is the key?"
    python examples/select_shots.py vqa.jsonl "what is this?" photo.jpg CLIP HOST

Lines of qa.jsonl have `id, input, output`, lines of vqa.jsonl `image, question, answers`; for
VQAv2, give `questions.json,annotations.json,images`. CLIP (or SigLIP) and HOST (a vision-language
model) are folders or hub names; text alone needs neither.
"""

import sys
from pathlib import Path

from eligo.errors import exit_on_error
from eligo.shots import LearnedSelector, predict
from eligo.shots.config import TeachConfig
from eligo.shots.data.items import read_items
from eligo.shots.inference.embed import embed
from eligo.shots.inference.encoders import open_encoder
from eligo.shots.teacher.read import read_records
from eligo.shots.teacher.run import teach


@exit_on_error()
def main(data: str, question: str, photo=None, clip=None, host=None) -> None:
    items = read_items(*data.split(","))
    out = Path("runs/select_shots") / Path(data.split(",")[0]).stem
    encoder = open_encoder(clip or "words")
    pool, queries = embed(out / "embedded", items, None, encoder, name=clip or "words")
    settings = {"shots": 2, "num_queries": 200, "host": {"model": host}}
    teach(TeachConfig(data=out / "embedded", out=out / "taught", **settings))
    records = read_records(out / "taught", pool, queries).records
    selector = LearnedSelector("v2_gru").fit(records, pool)
    selector.save(out / "selector")  # read by `eligo.shots.load_selector`
    found = predict(question, photo, selector=selector, encoder=encoder, num_shots=2)
    for row in found.chosen:
        print(f"{row['id']}: {row['says']}")


main(*sys.argv[1:]) if len(sys.argv) in (3, 6) else sys.exit(__doc__)
