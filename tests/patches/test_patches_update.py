"""Updates of an index: what is encoded, what is found again, and what is refused."""

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from eligo.cli import main
from eligo.errors import InputError
from eligo.patches.index import ImageFiles, IndexFolder, Searcher, TextLines, build_index
from eligo.patches.index import build as building
from eligo.patches.model.retrieval_model import RetrievalModel
from limits import PROCESS_SECONDS

QUERY = "a red ball."


@pytest.fixture(scope="module")
def model() -> RetrievalModel:
    torch.manual_seed(0)
    return RetrievalModel.tiny(kind="open").eval()


def photo(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((60, 50)).save(path)


@pytest.fixture
def photos(tmp_path) -> Path:
    for number in range(7):
        photo(tmp_path / "photos" / f"{number}.png", number)
    return tmp_path / "photos"


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """Ids of what is encoded from now on."""
    seen: list[str] = []
    pack = building._pack

    def spy(model, kind, items, dtype):
        seen.extend(item.content for item in items)
        return pack(model, kind, items, dtype)

    monkeypatch.setattr(building, "_pack", spy)
    return seen


def build(model, photos: Path, index: Path, **more):
    options = {"shard_size": 3, "batch_size": 2, "num_workers": 0} | more
    return build_index(lambda: model, ImageFiles.under(photos), index, **options)


def found(model, index: Path) -> dict[str, float]:
    searcher = Searcher(model, index)
    hits = searcher.search(model.text_side([QUERY]), k=100, rerank=None)
    names = [entry["id"] for entry in searcher.ids(hits)]
    assert len(set(names)) == len(names)
    return dict(zip(names, hits.scores.tolist(), strict=True))


def check(model, photos: Path, index: Path, fresh: Path) -> None:
    """The index finds what a new index of the same photos finds."""
    build(model, photos, fresh)
    got, expected = found(model, index), found(model, fresh)
    assert got == pytest.approx(expected, abs=3e-3)
    assert len(IndexFolder(index)) == len(expected)
    near = [h.rows for h in (Searcher(model, p).search(model.text_side([QUERY]), k=2, rerank=3)
                             for p in (index, fresh))]  # fmt: skip
    assert len(near[0]) == len(near[1]) == min(2, len(expected))


def test_only_new_and_changed_photos_are_encoded(model, photos, tmp_path, encoded):
    index = tmp_path / "index"
    assert build(model, photos, index).encoded == len(encoded) == 7
    encoded.clear()
    assert build(model, photos, index).encoded == len(encoded) == 0
    photo(photos / "deep" / "new.png", 20)
    photo(photos / "2.png", 21)  # changed
    (photos / "4.png").unlink()
    (photos / "5.png").rename(photos / "other name.png")
    os.utime(photos / "6.png", (1, 1))  # touched: the same photo
    built = build(model, photos, index)
    assert built.encoded == len(encoded) == 2
    assert (built.entries, built.gone) == (7, 2)  # 2.png as it was, and 4.png
    check(model, photos, index, tmp_path / "fresh")
    names = {entry["id"] for entry in IndexFolder(index).entries}
    assert names == {"0.png", "1.png", "2.png", "3.png", "6.png", "deep/new.png", "other name.png"}


def test_change_that_keeps_size_and_date_is_noticed(model, tmp_path, encoded):
    photos, index = tmp_path / "photos", tmp_path / "index"
    photos.mkdir()
    for name, colour in (("a.bmp", "red"), ("b.bmp", "green")):  # files of equal size
        Image.new("RGB", (60, 40), colour).save(photos / name)
    build(model, photos, index)
    status = (photos / "a.bmp").stat()
    Image.new("RGB", (60, 40), "blue").save(photos / "a.bmp")
    os.utime(photos / "a.bmp", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (photos / "a.bmp").stat().st_size == status.st_size
    assert build(model, photos, index).encoded == 1
    check(model, photos, index, tmp_path / "fresh")


def test_swapped_names_are_found_by_content(model, photos, tmp_path, encoded):
    index = tmp_path / "index"
    build(model, photos, index)
    before = found(model, index)
    encoded.clear()
    for old, new in (("0.png", "x.png"), ("1.png", "0.png"), ("x.png", "1.png")):
        (photos / old).rename(photos / new)
    build(model, photos, index)
    assert not encoded
    after = found(model, index)
    assert (after["0.png"], after["1.png"]) == (before["1.png"], before["0.png"])


def test_copies_are_entries_of_their_own(model, photos, tmp_path):
    index = tmp_path / "index"
    build(model, photos, index)
    shutil.copy(photos / "3.png", photos / "copy.png")
    build(model, photos, index)
    scores = found(model, index)
    assert scores["copy.png"] == pytest.approx(scores["3.png"], abs=3e-3)
    (photos / "3.png").unlink()
    build(model, photos, index)
    assert "3.png" not in found(model, index)
    check(model, photos, index, tmp_path / "fresh")


def test_removed_photo_that_returns_is_not_encoded_again(model, photos, tmp_path, encoded):
    index = tmp_path / "index"
    build(model, photos, index)
    shutil.move(photos / "0.png", tmp_path / "0.png")
    build(model, photos, index)
    encoded.clear()
    shutil.move(tmp_path / "0.png", photos / "again.png")
    assert build(model, photos, index).gone == 0
    assert not encoded
    check(model, photos, index, tmp_path / "fresh")


def test_shards_without_entries_are_removed(model, photos, tmp_path):
    index = tmp_path / "index"
    build(model, photos, index)
    for number in range(3):
        (photos / f"{number}.png").unlink()
    build(model, photos, index)
    assert [p.name for p in sorted(index.glob("shard_*"))] == [
        "shard_00001.safetensors",
        "shard_00002.safetensors",
    ]
    photo(photos / "z.png", 30)
    build(model, photos, index)  # takes the free number
    check(model, photos, index, tmp_path / "fresh")


EDITS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "change", "rename"]), st.integers(0, 9)),
    max_size=6,
)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(rounds=st.lists(EDITS, min_size=1, max_size=3))
def test_any_edits_give_the_index_of_the_photos_there_are(model, tmp_path_factory, rounds):
    folder = tmp_path_factory.mktemp("edits")
    photos, index, seed = folder / "photos", folder / "index", 100
    photo(photos / "stays.png", 99)
    for number, edits in enumerate(rounds):
        for edit, which in edits:
            path, seed = photos / f"{which}.png", seed + 1
            if edit in ("add", "change"):
                photo(path, seed if edit == "add" else which)
            elif path.exists() and edit == "remove":
                path.unlink()
            elif path.exists():
                path.rename(photos / f"{(which * 7 + 3) % 10}.png")
        build(model, photos, index)
        check(model, photos, index, folder / f"fresh {number}")


def test_updated_texts(model, tmp_path, encoded):
    texts, index = tmp_path / "texts.txt", tmp_path / "index"
    texts.write_text("a red ball.\na blue box.\na gem.\n")
    build_index(lambda: model, TextLines.of(texts), index, shard_size=2)
    encoded.clear()
    texts.write_text("a green star.\na red ball.\na gem.\n")  # other line numbers
    built = build_index(lambda: model, TextLines.of(texts), index, shard_size=2)
    assert (built.encoded, built.gone, len(encoded)) == (1, 1, 1)
    entries = IndexFolder(index).entries
    assert {(e["id"], e["text"]) for e in entries} == {
        ("1", "a green star."), ("2", "a red ball."), ("3", "a gem."),
    }  # fmt: skip


def test_new_dense_caption_is_encoded(tmp_path, photos):
    model = RetrievalModel.tiny(kind="open", dense=True).eval()
    captions = {path.name: "a red ball." for path in photos.iterdir()}

    def update():
        source = ImageFiles.under(photos, dict(captions))
        return build_index(lambda: model, source, tmp_path / "index").encoded

    assert (update(), update()) == (7, 0)
    captions["3.png"] = "a blue box."
    assert update() == 1


# ------------------------------------------------------------------ killed and damaged


def _die_after(batches: int, model, photos, index) -> None:
    torch.set_num_threads(1)
    pack, left = building._pack, [batches]

    def dying(*arguments):
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return pack(*arguments)

    building._pack = dying
    build(model, photos, index, shard_size=5)


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_kill_loses_one_batch(model, photos, tmp_path, batches, encoded):
    (photos / "1b.png").write_text("no image")
    build(model, photos, tmp_path / "whole", shard_size=5)
    process = multiprocessing.get_context("fork").Process(
        target=_die_after, args=(batches, model, photos, tmp_path / "index")
    )
    process.start()
    process.join(PROCESS_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    encoded.clear()
    done = {1: 2, 2: 3, 3: 4}[batches]  # of two at a time, one of them unreadable
    assert build(model, photos, tmp_path / "index", shard_size=5).entries == 7
    assert len(encoded) == 7 - done
    whole, index = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("whole", "index")
    )
    assert whole == index


def test_index_can_be_searched_while_it_is_updated(model, photos, tmp_path):
    index = tmp_path / "index"
    build(model, photos, index)
    before = found(model, index)
    photo(photos / "new.png", 20)
    process = multiprocessing.get_context("fork").Process(
        target=_die_after, args=(0, model, photos, index)
    )
    process.start()
    process.join(PROCESS_SECONDS)
    assert found(model, index) == before


def test_parts_of_photos_that_changed_are_not_used(model, photos, tmp_path):
    process = multiprocessing.get_context("fork").Process(
        target=_die_after, args=(2, model, photos, tmp_path / "index")
    )
    process.start()
    process.join(PROCESS_SECONDS)
    assert len(list((tmp_path / "index").glob("part_*"))) == 2
    photo(photos / "2.png", 40)
    build(model, photos, tmp_path / "index", shard_size=5)
    assert not list((tmp_path / "index").glob("part_*"))
    check(model, photos, tmp_path / "index", tmp_path / "fresh")


def replace_shard(index: Path) -> None:
    shutil.copy(index / "shard_00001.safetensors", index / "shard_00000.safetensors")


def shard_of_another_index(index: Path) -> None:
    torch.manual_seed(5)
    other = RetrievalModel.tiny(kind="open").eval()
    build(other, index.parent / "photos", index.parent / "other")
    shutil.copy(index.parent / "other" / "shard_00000.safetensors", index)


def empty_shard(index: Path) -> None:
    (index / "shard_00000.safetensors").write_bytes(b"")


@pytest.mark.parametrize("damage", [replace_shard, shard_of_another_index, empty_shard])
def test_wrong_shard_is_refused_with_the_way_out(model, photos, tmp_path, damage, encoded):
    index = tmp_path / "index"
    build(model, photos, index)
    damage(index)
    way_out = r"shard_00000.safetensors: cannot be read .*: remove it and run the same `eligo"
    for use in (lambda: Searcher(model, index), lambda: build(model, photos, index)):
        with pytest.raises(InputError, match=way_out):
            use()
    (index / "shard_00000.safetensors").unlink()
    with pytest.raises(InputError, match=r"shard_00000.safetensors: is missing; run the same"):
        Searcher(model, index)
    encoded.clear()
    build(model, photos, index)
    assert len(encoded) == 3  # those of the removed shard
    check(model, photos, index, tmp_path / "fresh")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe"])
@pytest.mark.parametrize("name", ["ids.jsonl", "index.json"])
def test_damaged_lists_are_refused(model, photos, tmp_path, name, content):
    index = tmp_path / "index"
    build(model, photos, index)
    (index / name).write_bytes(content)
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        Searcher(model, index)
    if name == "ids.jsonl":
        assert build(model, photos, index).encoded == 0
        check(model, photos, index, tmp_path / "fresh")


def test_ids_of_another_index_are_refused(model, photos, tmp_path):
    build(model, photos, tmp_path / "index")
    (photos / "0.png").rename(photos / "renamed.png")
    build(model, photos, tmp_path / "other")
    shutil.copy(tmp_path / "other" / "ids.jsonl", tmp_path / "index")
    with pytest.raises(InputError, match=r"ids.jsonl: is damaged, or of another index"):
        Searcher(model, tmp_path / "index")


# ------------------------------------------------------------------ photos of all sorts


def test_skipped_photos_are_listed_and_tried_again(model, photos, tmp_path, encoded, monkeypatch):
    monkeypatch.setattr("eligo.images._register_heif", tuple)
    (photos / "broken.jpg").write_text("no image")
    (photos / "IMG_1.HEIC").write_bytes(b"ftypheic")
    (photos / "raw.CR2").write_bytes(b"II")
    (photos / "movie.mov").write_bytes(b"not a photo")
    with (photos / "0.png").open("rb") as whole:
        (photos / "cut.png").write_bytes(whole.read(200))
    built = build(model, photos, tmp_path / "index")
    why = {row["id"]: row["why"] for row in built.skipped}
    assert sorted(why) == ["IMG_1.HEIC", "broken.jpg", "cut.png", "raw.CR2"]
    assert "pip install 'eligo[heic]'" in why["IMG_1.HEIC"]
    assert "save it as JPEG" in why["raw.CR2"]
    lines = (tmp_path / "index" / "skipped.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [row["id"] for row in built.skipped]
    encoded.clear()
    again = build(model, photos, tmp_path / "index")
    assert [row["id"] for row in again.skipped] == [row["id"] for row in built.skipped]
    assert not encoded
    shutil.copy(photos / "0.png", photos / "cut.png")
    assert build(model, photos, tmp_path / "index").encoded == 1


def test_photos_that_cannot_be_opened(model, photos, tmp_path, monkeypatch):
    gone = photos / "3.png"
    source = ImageFiles.under(photos)
    gone.unlink()
    built = build_index(lambda: model, source, tmp_path / "index", num_workers=0)
    assert [row["id"] for row in built.skipped] == ["3.png"]
    assert "No such file" in built.skipped[0]["why"]


def test_heic_with_its_plug_in(model, photos, tmp_path):
    heif = pytest.importorskip("pillow_heif")
    with Image.open(photos / "0.png") as picture:
        heif.from_pillow(picture).save(photos / "a.heic")
    built = build(model, photos, tmp_path / "index")
    assert (built.entries, built.skipped) == (8, [])


def test_index_does_not_depend_on_the_decoding_processes(model, photos, tmp_path):
    (photos / "1b.png").write_text("no image")
    for workers in (0, 2):
        build(model, photos, tmp_path / str(workers), num_workers=workers)
    none, two = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("0", "2")
    )
    assert none == two


def test_progress_is_by_photo(model, photos, tmp_path):
    seen: list[tuple[int, int]] = []
    build(model, photos, tmp_path / "index", on_done=lambda *done: seen.append(done))
    assert seen == [(0, 7), (2, 7), (3, 7), (5, 7), (6, 7), (7, 7)]
    seen.clear()
    photo(photos / "new.png", 9)
    build(model, photos, tmp_path / "index", on_done=lambda *done: seen.append(done))
    assert seen == [(0, 1), (1, 1)]


def test_photos_that_take_too_much_memory_are_skipped(model, photos, tmp_path, monkeypatch):
    Image.new("RGB", (600, 500)).save(photos / "large.webp")
    Image.new("RGB", (600, 500)).save(photos / "large.jpg")
    monkeypatch.setattr("eligo.patches.index.sources._MOST_BYTES", 1 << 20)
    built = build(model, photos, tmp_path / "index")
    assert [row["id"] for row in built.skipped] == ["large.webp"]
    assert "takes 4 MiB of memory, expected at most 1; scale it down" in built.skipped[0]["why"]


def test_large_photos_are_decoded_one_at_a_time(model, photos, tmp_path, monkeypatch):
    """Turns are taken by large photos only."""
    held = []

    class Turn:
        def __enter__(self):
            held.append(True)

        def __exit__(self, *_):
            held.append(False)

    Image.new("RGB", (600, 500)).save(photos / "large.png")
    monkeypatch.setattr("eligo.patches.index.sources._LARGE_BYTES", 1 << 20)
    monkeypatch.setattr("eligo.patches.index.sources.multiprocessing.Lock", Turn)
    build(model, photos, tmp_path / "index")
    assert held == [True, False]


def test_workers_of_ray_make_the_same_index(model, photos, tmp_path, capsys):
    pytest.importorskip("ray")
    model.save_pretrained(tmp_path / "model")
    (photos / "1b.png").write_text("no image")
    command = ["patches", "index", str(photos), "--model", str(tmp_path / "model"), "--json"]
    command += ["--shard_size", "3", "--batch_size", "2", "--device", "cpu", "--num_workers", "2"]
    for engine in ("local", "ray"):
        assert main([*command, "--out", str(tmp_path / engine), "--engine", engine]) == 0
        assert "images 8/8" in capsys.readouterr().err
    local, ray = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("local", "ray")
    )
    assert local == ray
