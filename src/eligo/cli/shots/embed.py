"""`eligo shots embed`: embed examples and queries."""

from pathlib import Path
from typing import Literal

from eligo.cli.console import print_result
from eligo.errors import InputError


def run(
    data: Path,
    out: Path = Path("embedded"),
    queries: Path | None = None,
    images: Path | None = None,
    annotations: Path | None = None,
    query_annotations: Path | None = None,
    encoder: str = "words",
    vectors: Path | None = None,
    query_vectors: Path | None = None,
    candidate_text: Literal["question_answer", "question"] = "question_answer",
    device: str = "auto",
    json: bool = False,
) -> None:
    """Embed examples (by question and answer) and queries (by question alone).

    Args:
        data: The examples: JSON lines with id, input, output (text), or with image, question,
            answers; or the questions of VQAv2 (.json).
        out: The folder to write to.
        queries: The questions to choose examples for, in the same forms, for predict also without
            answers; by default every example is also a query, which never gets itself.
        images: Folder of the images; by default the folder of the lines.
        annotations: Annotations of VQAv2, for --data.
        query_annotations: Annotations of VQAv2, for --queries.
        encoder: words (counts words, text only), or the folder or hub name of a model: of
            sentence-transformers, another text model, CLIP or SigLIP.
        vectors: Instead of an encoder, your own vectors of the examples: .npy (a row for each line
            of --data), .safetensors (the same for each view, or a vector for each id) or .parquet
            (columns id and vector).
        query_vectors: The same for the queries; by default, without --queries, those of --vectors.
        candidate_text: Which text of an example is embedded; question is the published form.
        device: Where the encoder runs: auto, cpu or cuda.
        json: Print one JSON document.
    """
    if vectors is not None and encoder != "words":
        raise InputError(f"got --encoder {encoder} and --vectors {vectors}, expected one of them")
    if query_vectors is not None and vectors is None:
        raise InputError("--query_vectors goes with --vectors, the vectors of the examples")
    from eligo.shots.data.items import read_items
    from eligo.shots.inference.embed import embed, embed_given
    from eligo.shots.inference.encoders import open_encoder

    items = read_items(data, annotations, images)
    query_items = None
    if queries is not None:
        query_items = read_items(queries, query_annotations, images, need_answers=False)
    if vectors is not None:
        pool, query_pool = embed_given(out, items, query_items, vectors, query_vectors)
    else:
        model = open_encoder(encoder, device)
        pool, query_pool = embed(
            out, items, query_items, model, name=encoder, candidate_text=candidate_text
        )
    summary = {
        "examples": len(pool),
        "queries": len(query_pool),
        "views": list(pool.views),
        "width": pool.vectors.shape[1],
        "written": out,
    }
    print_result(summary, json)
