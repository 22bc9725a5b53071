"""Files of an index: exact contents, resuming, and mismatches that are refused."""

import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from eligo.errors import InputError
from eligo.patches import CrossSparseAggrNet
from eligo.patches.index import (
    Calibration,
    ImageFiles,
    IndexFolder,
    ScenePictures,
    Searcher,
    TextLines,
    build_index,
)
from eligo.patches.index.build import hash_of
from eligo.patches.index.entries import pack_images
from eligo.patches.model.inputs import Images
from eligo.patches.model.retrieval_model import RetrievalModel
from limits import PROCESS_SECONDS

NUM_SCENES = 11


@pytest.fixture(scope="module")
def model() -> RetrievalModel:
    torch.manual_seed(0)
    return RetrievalModel.tiny(kind="open").eval()


def scenes(count: int = NUM_SCENES, **more) -> ScenePictures:
    return ScenePictures.first(count, 56, **more)


def build(model, source, folder, **more):
    return build_index(lambda: model, source, folder, shard_size=4, batch_size=3, **more)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_index_folder_contents(model, tmp_path):
    built = build(model, scenes(), tmp_path / "index")
    index = IndexFolder(tmp_path / "index")
    assert built.entries == len(index) == NUM_SCENES
    assert [entry["id"] for entry in index.entries] == list(scenes().ids)
    assert [len(shard) for shard in index.shards] == [4, 4, 3]
    manifest = json.loads((tmp_path / "index" / "index.json").read_text())
    assert manifest["model"] == hash_of(model)
    assert manifest["source"] == {"scenes": "test", "size": 56, "dense": False}
    shard = load_file(tmp_path / "index" / "shard_00000.safetensors")
    assert shard["patches"].shape == (4, 49, 16)
    assert shard["patches"].dtype == torch.float16
    assert shard["logits"].max() == 0
    assert 8 < shard["patches"].float().norm(dim=-1).amax(1).min() < 16.1


@pytest.mark.parametrize("settings", [{"kind": "open"}, {"kind": "paper", "dense": True}])
@pytest.mark.parametrize(("dtype", "close"), [("float32", 2e-6), ("float16", 3e-3)])
def test_index_gives_the_scores_of_the_model(settings, dtype, close, tmp_path):
    torch.manual_seed(1)
    model = RetrievalModel.tiny(**settings).eval()
    source = scenes(dense=model.uses_dense)
    build(model, source, tmp_path, dtype=dtype)
    texts = model.text_side(["a red ball.", "there is a blue box left of a green star."])
    items = source.load(range(NUM_SCENES))
    dense = [item.dense for item in items] if model.uses_dense else None
    images = model.image_side([item.value for item in items], dense)
    with torch.no_grad():
        if dtype == "float16":  # the selection uses rounded patches
            images = replace(images, patches=images.patches.half().float())
        expected = model.match(images, texts)
    got = Searcher(model, tmp_path).scores(texts, torch.arange(NUM_SCENES))
    torch.testing.assert_close(got, expected, rtol=0, atol=close)


def test_blank_image_gives_finite_vectors():
    net = CrossSparseAggrNet(8, 4, num_prefix_tokens=1)
    packed = pack_images(net, Images(torch.zeros(1, 4, 8), torch.zeros(1, 8)))
    assert all(bool(part.isfinite().all()) for part in packed.values())


@pytest.mark.gpu
def test_index_from_a_cpu_works_on_a_gpu(model, tmp_path):
    build(model, scenes(), tmp_path)
    rows, words = torch.arange(NUM_SCENES), ["a red ball."]
    expected = Searcher(model, tmp_path).scores(model.text_side(words), rows)
    again = RetrievalModel.tiny(kind="open").eval()
    again.load_state_dict(model.state_dict())
    again = again.cuda()
    got = Searcher(again, tmp_path).scores(again.text_side(words), rows)
    torch.testing.assert_close(got, expected, rtol=0, atol=3e-3)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_files_are_memory_mapped(model, tmp_path):
    build(model, scenes(4), tmp_path)
    patches = IndexFolder(tmp_path).shards[0].tensors["patches"]
    path = str(tmp_path / "shard_00000.safetensors")
    start = patches.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(part, 16) for part in line.split()[0].split("-"))
        if low <= start < high:
            assert line.endswith(path)
            return
    raise AssertionError("the tensor is nowhere")


class Dies(ScenePictures):
    """Kills the process at the start of the third shard."""

    def load(self, places):
        if 8 in places:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().load(places)


def _build_and_die(model, folder):
    torch.set_num_threads(1)
    source = scenes()
    build(model, Dies(source.ids, source.size), folder)


def test_killed_index_resumes_to_the_same_bytes(model, tmp_path):
    build(model, scenes(), tmp_path / "whole")
    process = multiprocessing.get_context("fork").Process(
        target=_build_and_die, args=(model, tmp_path / "index")
    )
    process.start()
    process.join(PROCESS_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    half = tmp_path / "index" / ".eligo-0123456789ab.tmp"
    half.mkdir()
    (half / "shard_00002.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match=r"not finished .2 shards so far"):
        IndexFolder(tmp_path / "index")
    before = (tmp_path / "index" / "shard_00000.safetensors").stat().st_mtime_ns
    built = build(model, scenes(), tmp_path / "index")
    assert built.resumed == 2
    assert (tmp_path / "index" / "shard_00000.safetensors").stat().st_mtime_ns == before
    assert contents(tmp_path / "index") == contents(tmp_path / "whole")


def test_finished_index_is_not_rewritten(model, tmp_path):
    build(model, scenes(), tmp_path)
    before = contents(tmp_path)
    assert build(model, scenes(), tmp_path).resumed == 3
    assert contents(tmp_path) == before


def test_another_model_is_refused(model, tmp_path):
    build(model, scenes(), tmp_path)
    torch.manual_seed(7)
    other = RetrievalModel.tiny(kind="open")
    with pytest.raises(InputError, match="another model"):
        Searcher(other, tmp_path)
    with pytest.raises(InputError, match="holds an index with model"):
        build(other, scenes(), tmp_path)


def test_copy_of_the_model_is_accepted(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = RetrievalModel.from_pretrained(tmp_path)
    assert hash_of(again) == hash_of(model)


def test_other_settings_are_refused():
    one, other = (RetrievalModel.tiny(kind="paper", beta=beta) for beta in (0.25, 0.1))
    other.load_state_dict(one.state_dict())
    assert hash_of(other) != hash_of(one)


def test_another_folder_is_refused_while_the_old_one_exists(model, tmp_path):
    folder, index = tmp_path / "images", tmp_path / "index"
    folder.mkdir()
    Image.new("RGB", (60, 40), "red").save(folder / "a.png")
    build(model, ImageFiles.under(folder), index)
    before = contents(index)
    (tmp_path / "others").mkdir()
    Image.new("RGB", (60, 40), "red").save(tmp_path / "others" / "d.png")
    with pytest.raises(InputError, match=r"holds an index with source .*images.*, not .*others"):
        build(model, ImageFiles.under(tmp_path / "others"), index)
    assert contents(index) == before
    folder.rename(tmp_path / "moved")
    assert build(model, ImageFiles.under(tmp_path / "moved"), index).encoded == 0
    assert IndexFolder(index).manifest.source["folder"] == str(tmp_path / "moved")


def test_folder_with_other_files_is_refused(model, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (60, 40), "red").save(folder / "a.png")
    (folder / ".mine.tmp").write_text("mine")
    with pytest.raises(InputError, match=r"images already holds something else .* choose another"):
        build(model, ImageFiles.under(folder), folder)
    assert sorted(path.name for path in folder.iterdir()) == [".mine.tmp", "a.png"]
    left = tmp_path / "left"
    (left / ".eligo-0123456789ab.tmp").mkdir(parents=True)
    (left / ".eligo-0123456789ab.tmp" / "index.json").write_text("killed right at the start")
    (left / ".eligo.lock").write_text("")
    assert build(model, ImageFiles.under(folder), left).entries == 1
    assert "index.json" in contents(left)


def test_foreign_shards_are_refused(model, tmp_path):
    """Shards of an older format, or without a description."""
    build(model, scenes(), tmp_path)
    manifest = tmp_path / "index.json"
    older = json.loads(manifest.read_text()) | {"format": 1}
    manifest.write_text(json.dumps(older))
    for use in (lambda: Searcher(model, tmp_path), lambda: build(model, scenes(), tmp_path)):
        with pytest.raises(InputError, match=r"of another format, expected 3; remove .* and index"):
            use()
    manifest.unlink()
    with pytest.raises(InputError, match=r"something else .there is no index\.json"):
        build(model, scenes(), tmp_path)


def test_names_and_texts_in_any_script(model, tmp_path):
    folder, texts = tmp_path / "images", tmp_path / "texts.jsonl"
    folder.mkdir()
    names = ["a\u2028b.png", "фото.png", "写真 🐈.png"]
    for name in names:
        Image.new("RGB", (60, 40), "red").save(folder / name)
    build(model, ImageFiles.under(folder), tmp_path / "i")
    assert [entry["id"] for entry in IndexFolder(tmp_path / "i").entries] == names
    rows = [json.dumps({"text": text}, ensure_ascii=False) for text in names]
    texts.write_bytes("\r\n".join(rows).encode("utf-8-sig"))
    build(model, TextLines.of(texts), tmp_path / "t")
    found = IndexFolder(tmp_path / "t").entries
    assert [entry["text"] for entry in found] == names
    Image.new("RGB", (60, 40), "red").save(folder / "x.png")
    (folder / "x.png").rename(os.fsdecode(os.fsencode(folder) + b"/\xff.png"))
    built = build(model, ImageFiles.under(folder), tmp_path / "j")
    assert [entry["id"] for entry in IndexFolder(tmp_path / "j").entries] == names
    assert built.skipped == [{"id": "\\xff.png", "why": "its name is not UTF-8; rename the file"}]


def test_unreadable_images_are_skipped_and_listed(model, tmp_path):
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    for name, colour in (("a.png", "red"), ("deep/b.jpg", "blue"), ("z.png", "green")):
        Image.new("RGB", (60, 40), colour).save(folder / name)
    whole = (folder / "a.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "note.png").write_text("no image")
    (folder / "readme.txt").write_text("not looked at")
    built = build(model, ImageFiles.under(folder), tmp_path / "index")
    assert [entry["id"] for entry in IndexFolder(tmp_path / "index").entries] == [
        "a.png",
        "deep/b.jpg",
        "z.png",
    ]
    assert [row["id"] for row in built.skipped] == ["cut.png", "note.png"]
    lines = (tmp_path / "index" / "skipped.jsonl").read_text().splitlines()
    assert "cannot be read as an image" in json.loads(lines[0])["why"]


def test_shard_of_unreadable_images_only(model, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for place in range(4):
        (folder / f"a{place}.png").write_text("no image")
    Image.new("RGB", (60, 40), "red").save(folder / "b.png")
    build(model, ImageFiles.under(folder), tmp_path / "index")
    searcher = Searcher(model, tmp_path / "index")
    hits = searcher.search(model.text_side(["a red ball."]), k=3)
    assert [entry["id"] for entry in searcher.ids(hits)] == ["b.png"]


def test_dense_captions_are_required_or_refused(model, tmp_path):
    with pytest.raises(InputError, match="trained without"):
        build(model, scenes(dense=True), tmp_path / "a")
    with pytest.raises(InputError, match="got none, but the model was trained with"):
        build(RetrievalModel.tiny(kind="open", dense=True), scenes(), tmp_path / "b")


def test_baselines_cannot_be_indexed(tmp_path):
    with pytest.raises(InputError, match="kind 'filip', which selects no patches"):
        build(RetrievalModel.tiny(kind="filip"), scenes(), tmp_path)


def test_texts_from_files(tmp_path):
    (tmp_path / "plain.txt").write_text("a ball.\n\n  a box.  \n")
    found = TextLines.of(tmp_path / "plain.txt")
    assert (list(found.ids), list(found.texts)) == (["1", "3"], ["a ball.", "a box."])
    (tmp_path / "rows.jsonl").write_text('{"id": "x", "text": "a ball."}\n{"text": "a box."}\n')
    assert list(TextLines.of(tmp_path / "rows.jsonl").ids) == ["x", "2"]
    (tmp_path / "bad.jsonl").write_text('{"text": "a ball."}\n{"words": 3}\n')
    with pytest.raises(InputError, match=r"bad.jsonl:2: text: missing"):
        TextLines.of(tmp_path / "bad.jsonl")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(InputError, match="holds no texts"):
        TextLines.of(tmp_path / "empty.txt")


def test_missing_folder_is_refused(model, tmp_path):
    with pytest.raises(InputError, match="is no folder"):
        ImageFiles.under(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no images"):
        ImageFiles.under(tmp_path)
    with pytest.raises(InputError, match=f"is no index .*index IMAGES --out {tmp_path}`"):
        IndexFolder(tmp_path)
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(InputError, match=f"index IMAGES --out {tmp_path}.index`"):
        IndexFolder(tmp_path)


def test_folder_of_images_is_not_an_index(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    deep = Path("photos/deep")
    deep.mkdir(parents=True)
    (deep / "a.JPG").write_bytes(b"")
    for given, out in (("photos", "photos.index"), ("photos/deep", "photos/deep.index")):
        with pytest.raises(InputError, match=f"`eligo patches index {given} --out {out}`"):
            IndexFolder(given)
    monkeypatch.chdir(deep)
    with pytest.raises(InputError, match=r"`eligo patches index \. --out deep.index`"):
        IndexFolder(".")


def test_damaged_shard_is_refused(model, tmp_path):
    build(model, scenes(), tmp_path)
    path = tmp_path / "shard_00001.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"shard_00001.safetensors: cannot be read"):
        IndexFolder(tmp_path)


@pytest.mark.parametrize("text", ["[1]\n", "{}\n", "[" * 100_000, "\x00"])
def test_other_damaged_files_are_refused(model, tmp_path, text):
    build(model, scenes(), tmp_path)
    (tmp_path / "stage1.json").write_text(text)
    with pytest.raises(InputError, match=r"stage1\.json.*remove it|stage1\.json:1"):
        Calibration.load(IndexFolder(tmp_path))
    (tmp_path / "stage1.json").unlink()
    whole = contents(tmp_path)
    (tmp_path / "ids.jsonl").write_text(text)
    with pytest.raises(InputError, match=r"ids\.jsonl: is damaged.* run the same `eligo patches"):
        IndexFolder(tmp_path)
    assert build(model, scenes(), tmp_path).encoded == 0  # the way out
    assert contents(tmp_path) == whole
