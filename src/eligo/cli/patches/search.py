"""`eligo patches search`: images for a text or an image, or texts for an image."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from eligo.cli.console import (
    OutFile,
    OutFolder,
    print_error,
    print_message,
    print_result,
    print_text,
    warn_unknown_words,
)
from eligo.cli.flags import Count
from eligo.cli.patches.flags import GENERATED, open_model
from eligo.errors import InputError, OutputError

if TYPE_CHECKING:
    from eligo.patches.index import Calibration, Searcher
    from eligo.patches.model.inputs import Images, Texts
    from eligo.patches.model.retrieval_model import RetrievalModel

_DEV_QUERIES, _BATCH = 200, 16
_TOP = 10  # results that stage 1 should find


def run(
    index: Annotated[Path, tyro.conf.Positional],
    text: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    *,
    queries: Path | None = None,
    interactive: bool = False,
    image: Path | None = None,
    dense: str | None = None,
    k: Count = 10,
    rerank: Count | Literal["auto"] = 128,
    exhaustive: bool = False,
    dev: Path | None = None,
    approximate: bool = False,
    page: OutFile | None = None,
    copy_to: OutFolder | None = None,
    model: str | None = None,
    device: str = "auto",
    json: bool = False,
) -> None:
    """Search an index: a text finds images, --image FILE finds texts or similar images.

    Stage 1 matches without a selection, stage 2 scores the best of stage 1 exactly. Also prints the
    share of the exhaustive top 10 that stage 1 finds: on dev queries (--rerank auto, or --dev), and
    with --exhaustive for this query. A model with one vector per image and text, such as CLIP, has
    one stage, which is exact. So has the search for similar images.

    Args:
        index: The folder that `eligo patches index` wrote.
        text: The text to find images for; several, each in quotes, are searched one by one.
        queries: A file of texts to search for: one per line, or JSON lines with "text".
        interactive: Ask for texts until an empty line; model and index are loaded once.
        image: The image to find texts for or, in an index of images, similar images.
        dense: Its dense caption, for a model that was trained with them.
        k: Number of results.
        rerank: Entries of stage 1 to score exactly, at least k; auto: the fewest that reach 99.5 %
            on dev.
        exhaustive: Score every entry exactly.
        dev: Queries to measure stage 1 with: a file of texts, or a folder of images for a text
            index. By default (an index of scenes) captions of the validation split.
        approximate: Let FAISS choose the entries of stage 1, by one vector per entry: faster, but
            entries that it misses are lost.
        page: Write the results as a page with thumbnails, to open in a browser.
        copy_to: Copy the images that were found to this folder, with their subfolders.
        model: Folder or hub name of the model that the index was built with; by default the
            shipped model.
        device: Where to run: auto, cpu or cuda.
        json: Print one JSON document; with --interactive, one for each text.
    """
    given = bool(text), queries is not None, interactive, image is not None
    if sum(given) != 1:
        raise InputError(
            "expected a query: a text in quotes, --queries FILE, --interactive or --image FILE"
        )
    if dense is not None and image is None:
        raise InputError("--dense: goes with --image; a text has no dense caption")
    from eligo.patches.index import Calibration, Searcher, TextLines

    texts = list(TextLines.of(queries).texts) if queries is not None else list(text)
    opened = open_model(model, device)
    searcher = Searcher(opened, index, approximate=approximate)
    is_of_photos = model is None and "folder" in searcher.index.manifest.source
    note = GENERATED if is_of_photos else opened.note
    root = _folder_of(searcher, page, copy_to)
    if opened.note and (dev is not None or rerank == "auto"):
        raise InputError(
            f"{'--dev' if dev else '--rerank auto'}: the model has one vector per entry, and every "
            "entry is scored exactly: there is nothing to measure; leave it out"
        )
    measured = Calibration.load(searcher.index)
    if dev is not None or (rerank == "auto" and measured is None):
        measured = _measure(opened, searcher, dev)
        try:
            measured.save(searcher.index)
        except OutputError as error:  # a read-only index can be searched too
            print_message(f"the measurement is not stored: {error}")
    if rerank == "auto":
        assert measured is not None
        rerank = measured.smallest()
    search = _Search(searcher, k, max(k, rerank), exhaustive, approximate, measured)

    def show(done: list[dict[str, Any]]) -> None:
        if page is not None:
            _write_page(page, root, done, note)
        if copy_to is not None:
            _copy(copy_to, root, done)
        _print(done, search, note, json)

    if interactive:
        for line in _lines_of_user():
            try:
                show([search.text(line)])
            except InputError as error:
                print_error(str(error))
    elif image is not None:
        show([search.image(image, dense)])
    else:
        show([search.text(each) for each in texts])


@dataclass(frozen=True)
class _Search:
    """A searcher and its settings."""

    searcher: "Searcher"
    k: int
    rerank: int
    exhaustive: bool
    approximate: bool
    measured: "Calibration | None"

    def text(self, text: str) -> dict[str, Any]:
        """Search for a text."""
        if not text.strip():
            raise InputError("the text to search for is empty")
        model = self.searcher.model
        warn_unknown_words(model.text_encoder.tokenizer, [text])
        started = time.perf_counter()
        query = model.text_side([text])
        return {"query": text} | self._found(query, started)

    def image(self, image: Path, dense: str | None) -> dict[str, Any]:
        """Search for an image."""
        from eligo.images import open_image

        model = self.searcher.model
        if self.searcher.index.manifest.kind == "texts":
            model.check_dense(dense is not None)
        elif dense is not None:
            raise InputError("--dense: goes with an index of texts; similar images need none")
        started = time.perf_counter()
        picture = open_image(image, model.image_encoder.image_size)
        query = model.image_side([picture], None if dense is None else [dense])
        return {"query": str(image)} | self._found(query, started)

    def _found(self, query: "Texts | Images", started: float) -> dict[str, Any]:
        encoded, searcher = time.perf_counter(), self.searcher
        one_vector = searcher.is_exact(query)  # per entry: stage 1 scores exactly
        whole = self.exhaustive or (one_vector and not self.approximate)
        count = max(self.k, _TOP) if self.exhaustive else self.k
        best = searcher.search(query, k=count, rerank=None if whole else self.rerank)
        hits = best.first(self.k)
        done = time.perf_counter()
        entries, rows = len(searcher.index), searcher.found(hits)
        if not one_vector:
            guesses = hits.guesses.tolist()
            rows = [r | {"stage 1": round(g, 4)} for r, g in zip(rows, guesses, strict=True)]
        found: dict[str, Any] = {
            "found": rows,
            "entries": entries,
            "scored exactly": entries if whole else min(self.rerank, entries),
            "encoding ms": round(1000 * (encoded - started), 1),
            "search ms": round(1000 * (done - encoded), 1),
        }
        if not one_vector:
            measured = None if self.approximate else self.measured
            found["stage 1 recall of top 10 on dev"] = measured and measured.recall(self.rerank)
        if self.exhaustive and (self.approximate or not one_vector):
            candidates = searcher.candidates(query, self.rerank).rows
            found["stage 1 recall of top 10 here"] = best.first(_TOP).share_in(candidates)
        return found


def _print(done: list[dict[str, Any]], search: _Search, note: str, json: bool) -> None:
    notes = {"note": note} if note else {}
    if json:
        one = {name: value for name, value in done[0].items() if name != "query"}
        print_result((one if len(done) == 1 else {"searches": done}) | notes, json=True)
        return
    for found in done:
        if len(done) > 1:
            print_text(f"\n{found['query']}")
        print_result(found["found"], json=False)
        for line in _lines(found, search):
            print_text(line)
    if note:
        print_text(note)


def _lines(found: dict[str, Any], search: _Search) -> list[str]:
    lines = [
        f"{found['scored exactly']} of {found['entries']} scored exactly, "
        f"{found['search ms']} ms (and {found['encoding ms']} ms to encode the query)"
    ]
    measured, here = search.measured, found.get("stage 1 recall of top 10 here")
    if search.approximate:
        lines.append("FAISS's recall was not measured; --exhaustive shows it for one query")
    elif "stage 1 recall of top 10 on dev" not in found:
        return lines
    elif measured is not None:
        lines.append(
            f"stage 1 at R={search.rerank} finds {100 * measured.recall(search.rerank):.1f} % of "
            f"the exhaustive top 10 ({measured.queries} dev queries: {measured.source}); "
            f"99.5 % need R={measured.smallest()}"
        )
    elif here is None and found["scored exactly"] < found["entries"]:
        lines.append("stage 1's recall is not measured: use --rerank auto, --dev or --exhaustive")
    if here is not None:
        lines.append(f"for this query it would have found {100 * here:.0f} %")
    return lines


def _lines_of_user() -> Iterator[str]:
    """Yield lines of stdin until an empty one or its end."""
    while True:
        try:
            line = input("search for (an empty line ends): ")
        except EOFError:
            return
        if not line.strip():
            return
        yield line


# ------------------------------------------------------------------ results as files


def _folder_of(searcher: "Searcher", page: Path | None, copy_to: Path | None) -> Path:
    """Return the folder of the indexed images; raise if they are needed and not there."""
    root = Path(searcher.index.manifest.source.get("folder", ""))
    flag = "--page" if page is not None else "--copy_to"
    if page is None and copy_to is None:
        return root
    if "folder" not in searcher.index.manifest.source:
        raise InputError(f"{flag}: goes with an index of a folder of images")
    if not root.is_dir():
        raise InputError(
            f"{flag}: the images of this index were in {root}, which is not there; if they were "
            "moved, run `eligo patches index` with their new folder and the same --out"
        )
    if copy_to is not None and copy_to.resolve().is_relative_to(root.resolve()):
        raise InputError(f"--copy_to: {copy_to} is in the folder of the images; choose another")
    return root


def _write_page(path: Path, root: Path, done: list[dict[str, Any]], note: str) -> None:
    from eligo.report.search_page import search_page, write_page

    searches = [(found["query"], found["found"]) for found in done]
    write_page(path, search_page(root, searches, note))
    print_message(f"the results are in {path}; open it in a browser")


def _copy(folder: Path, root: Path, done: list[dict[str, Any]]) -> None:
    from eligo.io.files import copy_file

    names = dict.fromkeys(row["id"] for found in done for row in found["found"])
    there = [name for name in names if (root / name).is_file()]
    for name in there:
        copy_file(root / name, folder / name)
    gone = f"; {len(names) - len(there)} are not there any more" if len(there) < len(names) else ""
    print_message(f"copied {len(there)} images to {folder}{gone}")


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
