"""`eligo patches search`: images for a text, or texts for an image."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from eligo.cli.console import print_message, print_result, print_text, warn_unknown_words
from eligo.cli.flags import Count
from eligo.cli.patches.flags import open_model
from eligo.errors import InputError, OutputError

if TYPE_CHECKING:
    from eligo.patches.index import Calibration, Searcher
    from eligo.patches.model.inputs import Images, Texts
    from eligo.patches.model.retrieval_model import RetrievalModel

_DEV_QUERIES, _BATCH = 200, 16
_TOP = 10  # results that stage 1 should find


def run(
    index: Annotated[Path, tyro.conf.Positional],
    text: Annotated[str | None, tyro.conf.Positional] = None,
    *,
    image: Path | None = None,
    dense: str | None = None,
    k: Count = 10,
    rerank: Count | Literal["auto"] = 128,
    exhaustive: bool = False,
    dev: Path | None = None,
    approximate: bool = False,
    model: str | None = None,
    device: str = "auto",
    json: bool = False,
) -> None:
    """Search an index: a text finds images, --image FILE finds texts.

    Stage 1 matches without a selection, stage 2 scores the best of stage 1 exactly. Also prints the
    share of the exhaustive top 10 that stage 1 finds: on dev queries (--rerank auto, or --dev), and
    with --exhaustive for this query. A model with one vector per image and text, such as CLIP, has
    one stage, which is exact.

    Args:
        index: The folder that `eligo patches index` wrote.
        text: The text to find images for.
        image: The image to find texts for.
        dense: Its dense caption, for a model that was trained with them.
        k: Number of results.
        rerank: Entries of stage 1 to score exactly; auto: the fewest that reach 99.5 % on dev.
        exhaustive: Score every entry exactly.
        dev: Queries to measure stage 1 with: a file of texts, or a folder of images for a text
            index. By default (an index of scenes) captions of the validation split.
        approximate: Let FAISS choose the entries of stage 1, by one vector per entry: faster, but
            entries that it misses are lost.
        model: Folder or hub name of the model that the index was built with; by default the
            shipped model.
        device: Where to run: auto, cpu or cuda.
        json: Print one JSON document.
    """
    if (text is None) == (image is None):
        raise InputError("expected a query: a text in quotes, or --image FILE")
    if dense is not None and image is None:
        raise InputError("--dense: goes with --image; a text has no dense caption")
    from eligo.patches.index import Calibration, Searcher

    opened = open_model(model, device)
    searcher = Searcher(opened, index, approximate=approximate)
    one_vector = bool(opened.note)  # per entry: stage 1 scores exactly
    if one_vector and (dev is not None or rerank == "auto"):
        raise InputError(
            f"{'--dev' if dev else '--rerank auto'}: the model has one vector per entry, and every "
            "entry is scored exactly: there is nothing to measure; leave it out"
        )
    whole = exhaustive or (one_vector and not approximate)
    measured = Calibration.load(searcher.index)
    if dev is not None or (rerank == "auto" and measured is None):
        measured = _measure(opened, searcher, dev)
        try:
            measured.save(searcher.index)
        except OutputError as error:  # a read-only index can be searched too
            print_message(f"the measurement is not stored: {error}")
    if rerank == "auto":
        assert measured is not None
        rerank = max(k, measured.smallest())
    started = time.perf_counter()
    query = _query(opened, text, image, dense)
    encoded = time.perf_counter()
    count = max(k, _TOP) if exhaustive else k
    best = searcher.search(query, k=count, rerank=None if whole else rerank)
    hits = best.first(k)
    done = time.perf_counter()
    rows = zip(searcher.ids(hits), hits.scores.tolist(), hits.guesses.tolist(), strict=True)
    results = [
        {"rank": place, **entry, "score": round(score, 4)}
        | ({} if one_vector else {"stage 1": round(guess, 4)})
        for place, (entry, score, guess) in enumerate(rows, 1)
    ]
    about: dict[str, Any] = {
        "entries": len(searcher.index),
        "scored exactly": len(searcher.index) if whole else min(rerank, len(searcher.index)),
        "encoding ms": round(1000 * (encoded - started), 1),
        "search ms": round(1000 * (done - encoded), 1),
    }
    if one_vector:
        about["note"] = opened.note
    else:
        about["stage 1 recall of top 10 on dev"] = (
            None if measured is None or approximate else measured.recall(rerank)
        )
    if exhaustive and (approximate or not one_vector):
        candidates = searcher.candidates(query, rerank).rows
        about["stage 1 recall of top 10 here"] = best.first(_TOP).share_in(candidates)
    if json:
        print_result({"found": results, **about}, json=True)
        return
    print_result(results, json=False)
    for line in _lines(about, rerank, measured, approximate):
        print_text(line)


def _query(
    model: "RetrievalModel", text: str | None, image: Path | None, dense: str | None
) -> "Texts | Images":
    if text is not None:
        if not text.strip():
            raise InputError("the text to search for is empty")
        warn_unknown_words(model.text_encoder.tokenizer, [text])
        return model.text_side([text])
    from eligo.images import open_image

    assert image is not None
    model.check_dense(dense is not None)
    picture = open_image(image, model.image_encoder.image_size)
    return model.image_side([picture], None if dense is None else [dense])


def _measure(model: "RetrievalModel", searcher: "Searcher", dev: Path | None) -> "Calibration":
    """Measure stage 1 by exhaustive searches for dev queries."""
    from eligo.patches.index import ImageFiles, TextLines, calibrate
    from eligo.patches.index.sources import Loaded, scene_captions
    from eligo.train.progress import ProgressBar

    manifest = searcher.index.manifest
    if dev is None and "scenes" not in manifest.source:
        raise InputError(
            "--rerank auto: stage 1 of this index was never measured; give dev queries with --dev, "
            + ("a folder of images" if manifest.kind == "texts" else "a file of captions")
            + " of your validation split"
        )
    if manifest.kind == "texts":
        assert dev is not None
        if model.uses_dense:
            raise InputError("--dev: a text index is measured with a model without dense captions")
        files = replace(ImageFiles.under(dev), side=model.image_encoder.image_size)
        loaded = files.load(range(min(_DEV_QUERIES, len(files.ids))))
        queries = [model.image_side([item.value]) for item in loaded if isinstance(item, Loaded)]
        count = len(queries)
    else:
        texts = scene_captions(_DEV_QUERIES) if dev is None else TextLines.of(dev).texts
        texts = list(texts)[:_DEV_QUERIES]
        model.text_encoder.warn_truncated(texts)
        starts = range(0, len(texts), _BATCH)
        queries = [model.text_side(texts[start : start + _BATCH]) for start in starts]
        count = len(texts)
    with ProgressBar("dev queries", count) as bar:
        source = "captions of validation scenes" if dev is None else str(dev)
        return calibrate(searcher, queries, source, on_done=bar.update)


def _lines(
    about: dict[str, Any], rerank: int, measured: "Calibration | None", approximate: bool
) -> list[str]:
    lines = [
        f"{about['scored exactly']} of {about['entries']} scored exactly, "
        f"{about['search ms']} ms (and {about['encoding ms']} ms to encode the query)"
    ]
    if approximate:
        lines.append("FAISS's recall was not measured; --exhaustive shows it for one query")
    elif measured is not None:
        lines.append(
            f"stage 1 at R={rerank} finds {100 * measured.recall(rerank):.1f} % of the exhaustive "
            f"top 10 ({measured.queries} dev queries: {measured.source}); "
            f"99.5 % need R={measured.smallest()}"
        )
    if (here := about.get("stage 1 recall of top 10 here")) is not None:
        lines.append(f"for this query it would have found {100 * here:.0f} %")
    elif measured is None and not approximate and "note" not in about:
        lines.append("stage 1's recall is not measured: use --rerank auto, --dev or --exhaustive")
    return [*lines, about["note"]] if "note" in about else lines
