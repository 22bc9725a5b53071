"""Learn which of your examples help with which question, then pick some for a new one.

    python examples/select_demos.py qa.jsonl "where is the key?"
    python examples/select_demos.py vqa.jsonl "what is this?" photo.jpg CLIP HOST

qa.jsonl has `id, input, output` on each line, vqa.jsonl `image, question, answers`; the files of
VQAv2 are `questions.json,annotations.json,images`. CLIP (or SigLIP) and HOST (a vision-language
model) are folders or hub names; questions without images need neither.
"""

import sys
from pathlib import Path

from eligo.demos import LearnedSelector
from eligo.demos.data.items import read_items
from eligo.demos.pipeline.embed import embed, embed_query
from eligo.demos.pipeline.encoders import open_encoder
from eligo.demos.teach.config import TeachConfig
from eligo.demos.teach.read import read_records
from eligo.demos.teach.run import teach
from eligo.errors import told_plainly


@told_plainly()
def main(data: str, question: str, photo=None, clip=None, host=None) -> None:
    items = {item.id: item for item in read_items(*data.split(","))}
    out = Path("runs/select_demos") / Path(data.split(",")[0]).stem
    encoder = open_encoder(clip or "words")
    query = embed_query(encoder, "new", question, photo)
    pool, queries = embed(out / "embedded", [*items.values()], None, encoder, name=clip or "words")
    asked = {"shots": 2, "num_queries": 200, "host": {"model": host}}
    teach(TeachConfig(data=out / "embedded", out=out / "taught", **asked))
    records = read_records(out / "taught", pool, queries).records
    selector = LearnedSelector("v2_gru").fit(records, pool)
    selector.save(out / "selector")  # `eligo.demos.load_selector` reads it
    for name in pool.picked(selector.select(query, shots=2)):
        print(f"{name}: {items[name].question} {items[name].answer}")


main(*sys.argv[1:]) if len(sys.argv) in (3, 6) else sys.exit(__doc__)
