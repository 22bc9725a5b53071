"""`eligo patches index` and `search` from the command line, both directions."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from PIL import Image

from eligo.cli import main
from eligo.errors import OutputError
from eligo.io.interrupts import Interrupted
from eligo.patches.index import ScenePictures
from eligo.patches.index.sources import scene_captions
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.report.pictures import rgb_picture


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A model, a folder of images and a file of texts, indexed by the command."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("world")
    RetrievalModel.tiny(kind="open").save_pretrained(folder / "model")
    (folder / "images").mkdir()
    scenes = ScenePictures.first(14, 56)
    for name, item in zip(scenes.ids, scenes.load(range(14)), strict=True):
        rgb_picture(item.value).save(folder / "images" / f"{name}.png")
    (folder / "images" / "broken.jpg").write_text("no image")
    (folder / "texts.txt").write_text("\n".join(scene_captions(16)))
    flags = ["--model", str(folder / "model"), "--shard-size", "6", "--device", "cpu"]
    index = ["patches", "index", *flags]
    assert main([*index, str(folder / "images"), "--out", str(folder / "by_text")]) == 0
    texts = ["--texts", str(folder / "texts.txt"), "--out", str(folder / "by_image")]
    assert main([*index, *texts]) == 0
    return folder


def search(world, name: str, *words: str) -> int:
    model = ["--model", str(world / "model"), "--device", "cpu"]
    return main(["patches", "search", str(world / name), *words, *model])


def test_indexed_entries(world, capsys):
    command = ["patches", "index", str(world / "images"), "--out", str(world / "by_text")]
    command += ["--model", str(world / "model"), "--shard-size", "6", "--device", "cpu"]
    assert main([*command, "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["images"] == 14
    assert found["skipped"] == ["broken.jpg"]
    assert found["shards already there"] == 3
    assert "skipped: broken.jpg: " in printed.err


def test_interrupted_and_unreadable_folders(world, tmp_path, capsys, monkeypatch):
    command = ["patches", "index", str(world / "images"), "--model", str(world / "model")]
    command += ["--device", "cpu", "--out"]

    def interrupted(*_, **__):
        raise Interrupted(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("eligo.patches.index.build_index", interrupted)
        assert main([*command, str(tmp_path / "one")]) == 143
    last = capsys.readouterr().err.splitlines()[-1]
    assert (
        last
        == f"stopped; what was encoded is kept in {tmp_path / 'one'}, the same command continues"
    )
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_text("no image")
    command[2] = str(tmp_path / "broken")
    assert main([*command, str(tmp_path / "three")]) == 2
    printed = capsys.readouterr().err
    assert "none of 1 images can be read" in printed
    assert "a.png: cannot be read as an image" in printed


def test_added_photos_and_their_speed(world, tmp_path, capsys):
    shutil.copytree(world / "images", tmp_path / "images")
    command = ["patches", "index", str(tmp_path / "images"), "--model", str(world / "model")]
    command += ["--device", "cpu", "--out", str(tmp_path / "index"), "--json"]
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["encoded now"], first["gone or changed"]) == (14, 0)
    assert first["images per second"] > 0
    for number in range(7):
        (tmp_path / "images" / f"{number}.jpg").write_text("no image")
    next((tmp_path / "images").glob("*.png")).rename(tmp_path / "images" / "other.png")
    assert main(command) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["encoded now"] == 0
    assert f"and 3 more, listed in {tmp_path / 'index' / 'skipped.jsonl'}" in printed.err


def test_images_found_by_text(world, capsys):
    assert search(world, "by_text", "a red ball.", "--k", "3", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["rank"] for row in found["found"]] == [1, 2, 3]
    assert found["found"][0]["id"].endswith(".png")
    scores = [row["score"] for row in found["found"]]
    assert scores == sorted(scores, reverse=True)
    assert search(world, "by_text", "a red ball.", "--k", "3", "--exhaustive", "--json") == 0
    exhaustive = json.loads(capsys.readouterr().out)
    assert exhaustive["found"] == found["found"]  # R = 128 covers all images
    assert exhaustive["stage 1 recall of top 10 here"] == 1
    few = ("--rerank", "3", "--exhaustive", "--json")
    assert search(world, "by_text", "a red ball.", "--k", "3", *few) == 0
    fewer = json.loads(capsys.readouterr().out)
    assert fewer["found"] == found["found"]
    assert (
        fewer["stage 1 recall of top 10 here"] <= 0.3
    )  # three candidates contain at most three of ten


def test_texts_found_by_image(world, capsys):
    image = next((world / "images").glob("*.png"))
    assert search(world, "by_image", "--image", str(image), "--k", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)["found"]
    assert found[0]["text"] in scene_captions(16)


def test_rerank_auto_measures_once(world, capsys):
    assert search(world, "by_text", "a red ball.", "--rerank", "auto", "--k", "1") == 2
    assert "give dev queries with --dev" in capsys.readouterr().err
    dev = ["--dev", str(world / "texts.txt")]
    assert search(world, "by_text", "a red ball.", "--rerank", "auto", "--k", "1", *dev) == 0
    printed = capsys.readouterr().out
    assert "of the exhaustive top 10 (16 dev queries" in printed
    assert (world / "by_text" / "stage1.json").exists()
    assert search(world, "by_text", "a ball.", "--rerank", "auto", "--k", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["stage 1 recall of top 10 on dev"] >= 0.995


def test_read_only_index(world, capsys, monkeypatch):
    def refuse(path, _):
        raise OutputError(f"{path}: cannot be written")

    monkeypatch.setattr("eligo.patches.index.search.write_text", refuse)
    dev = ["--dev", str(world / "texts.txt")]
    assert search(world, "by_text", "a red ball.", "--rerank", "auto", "--k", "1", *dev) == 0
    printed = capsys.readouterr()
    assert "of the exhaustive top 10 (16 dev queries" in printed.out
    assert "is not stored: " in printed.err


def test_rerank_auto_of_a_text_index(world, capsys):
    image = next((world / "images").glob("*.png"))
    words = ["--image", str(image), "--rerank", "auto", "--dev", str(world / "images")]
    assert search(world, "by_image", *words, "--k", "1") == 0
    assert "(14 dev queries" in capsys.readouterr().out  # the unreadable one is left out


def test_index_of_scenes_has_its_own_dev_queries(world, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("eligo.cli.patches.search._DEV_QUERIES", 3)
    index = ["--scenes", "12", "--out", str(tmp_path / "index"), "--model", str(world / "model")]
    assert main(["patches", "index", *index, "--device", "cpu"]) == 0
    capsys.readouterr()
    model = ["--model", str(world / "model"), "--device", "cpu", "--rerank", "auto"]
    assert main(["patches", "search", str(tmp_path / "index"), "a red ball.", *model]) == 0
    assert "3 dev queries: captions of validation scenes" in capsys.readouterr().out


def test_cut_texts_are_logged_once(world, tmp_path, capsys):
    long = "a red ball. " * 16  # 64 word pieces, and [CLS] and [SEP]
    assert search(world, "by_text", long, "--k", "1", "--json") == 0
    printed = capsys.readouterr()
    assert printed.err.count("the text is cut: it has 66 word pieces, and the model reads 64") == 1
    assert json.loads(printed.out)["found"]
    assert search(world, "by_text", long.removesuffix("red ball. "), "--k", "1") == 0
    assert "cut" not in capsys.readouterr().err
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(["a box.", long, *["a gem."] * 8, long + "a gem."]))
    message = "2 of 11 texts are cut: the longest has 69 word pieces, and the model reads 64"
    flags = ["--model", str(world / "model"), "--device", "cpu", "--shard-size", "4"]
    index = ["patches", "index", "--texts", str(texts), "--out", str(tmp_path / "index"), *flags]
    assert main(index) == 0
    assert capsys.readouterr().err.count(message) == 1
    assert search(world, "by_text", "a gem.", "--k", "1", "--dev", str(texts)) == 0
    assert capsys.readouterr().err.count(message) == 1
    (world / "by_text" / "stage1.json").unlink()  # restores the state for other tests


def found_by(world, capsys, *words: str) -> dict:
    capsys.readouterr()
    assert search(world, "by_text", *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_several_queries_and_a_file_of_them(world, tmp_path, capsys):
    texts = ["a red ball.", "a blue box."]
    one = [found_by(world, capsys, text, "--k", "3")["found"] for text in texts]
    several = found_by(world, capsys, *texts, "--k", "3")["searches"]
    assert [(each["query"], each["found"]) for each in several] == list(
        zip(texts, one, strict=True)
    )
    (tmp_path / "queries.txt").write_text("\n".join(texts) + "\n")
    of_file = found_by(world, capsys, "--queries", str(tmp_path / "queries.txt"), "--k", "3")
    assert [each["found"] for each in of_file["searches"]] == one
    assert search(world, "by_text", *texts, "--k", "1") == 0
    printed = capsys.readouterr().out
    assert printed.index(texts[0]) < printed.index(texts[1])


def test_interactive_prompt_loads_once(world, capsys, monkeypatch):
    lines = iter(["a red ball.", "a zyzzyva.", "", "not read"])
    loaded = []
    load = RetrievalModel.from_pretrained.__func__
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    monkeypatch.setattr(
        RetrievalModel, "from_pretrained",
        classmethod(lambda cls, *a, **b: loaded.append(a) or load(cls, *a, **b)),
    )  # fmt: skip
    assert search(world, "by_text", "--interactive", "--k", "2") == 0
    printed = capsys.readouterr()
    assert printed.out.count("scored exactly") == 2
    assert "does not know these words: zyzzyva" in printed.err
    assert len(loaded) == 1
    assert next(lines) == "not read"

    def ended(prompt):
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    assert search(world, "by_text", "--interactive") == 0


def test_similar_images(world, capsys):
    path = sorted((world / "images").glob("*.png"))[3]
    found = found_by(world, capsys, "--image", str(path), "--k", "2")["found"]
    assert found[0]["id"] == path.name
    assert found[0]["score"] == pytest.approx(1, abs=2e-3)
    assert "stage 1" not in found[0]


def test_more_results_than_are_reranked(world, capsys):
    found = found_by(world, capsys, "a red ball.", "--k", "12", "--rerank", "2")
    assert (len(found["found"]), found["scored exactly"]) == (12, 12)
    assert len(found_by(world, capsys, "a red ball.", "--k", "200")["found"]) == 14


def test_page_of_results(world, tmp_path, capsys):
    page = tmp_path / "deep" / "page.html"
    words = ("a <b>red</b> ball.", "a box.", "--k", "3", "--page", str(page))
    found = found_by(world, capsys, *words)["searches"]
    text = page.read_text("utf-8")
    assert text.count('src="data:image/jpeg;base64,') == 6
    assert "a &lt;b&gt;red&lt;/b&gt; ball." in text
    for row in found[0]["found"]:
        assert (world / "images" / row["id"]).as_uri() in text
    before = page.read_text("utf-8")
    assert found_by(world, capsys, *words)  # written again
    assert page.read_text("utf-8") == before


def test_the_shipped_model_says_that_photos_are_not_for_it(world, tmp_path, capsys):
    index, page = str(tmp_path / "index"), tmp_path / "page.html"
    assert main(["patches", "index", str(world / "images"), "--out", index]) == 0
    assert "knows generated scenes only" in capsys.readouterr().err
    assert main(["patches", "search", index, "a red ball.", "--page", str(page)]) == 0
    assert "knows generated scenes only" in capsys.readouterr().out
    assert "knows generated scenes only" in page.read_text("utf-8")
    assert search(world, "by_text", "a red ball.") == 0
    assert "generated scenes" not in capsys.readouterr().out


def test_unmeasured_recall_is_no_matter_where_all_are_scored(world, tmp_path, capsys):
    index = tmp_path / "index"
    shutil.copytree(world / "by_text", index)
    (index / "stage1.json").unlink(missing_ok=True)
    words = ["patches", "search", str(index), "a box.", "--model", str(world / "model"), "--k", "1"]
    assert main([*words, "--rerank", "2"]) == 0
    assert "is not measured" in capsys.readouterr().out
    assert main(words) == 0  # 128 of 14 entries
    assert "is not measured" not in capsys.readouterr().out


def test_found_images_are_copied(world, tmp_path, capsys):
    shutil.copytree(world / "images", tmp_path / "images" / "deep")
    model = ["--model", str(world / "model"), "--device", "cpu"]
    index = str(tmp_path / "index")
    assert main(["patches", "index", str(tmp_path / "images"), "--out", index, *model]) == 0
    query = ["patches", "search", index, "a red ball.", *model, "--k", "4", "--json", "--copy_to"]
    capsys.readouterr()
    assert main([*query, str(tmp_path / "found")]) == 0
    names = [row["id"] for row in json.loads(capsys.readouterr().out)["found"]]
    copied = [path for path in (tmp_path / "found").rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path / "found")) for path in copied) == sorted(names)
    for name in names:
        assert (tmp_path / "found" / name).read_bytes() == (tmp_path / "images" / name).read_bytes()
    assert main([*query, str(tmp_path / "images" / "found")]) == 2
    assert "is in the folder of the images; choose another" in capsys.readouterr().err
    (tmp_path / "images" / names[0]).unlink()
    page = str(tmp_path / "page.html")
    assert main([*query, str(tmp_path / "fewer"), "--page", page]) == 0
    assert "copied 3 images to" in (printed := capsys.readouterr().err)
    assert "; 1 are not there any more" in printed
    assert "there is no such image" in Path(page).read_text("utf-8")
    (tmp_path / "images").rename(tmp_path / "moved")
    assert main([*query, str(tmp_path / "found")]) == 2
    assert "which is not there; if they were moved, run `eligo patches index`" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("by_text",), "expected a query"),
        (("by_text", "a ball.", "--interactive"), "expected a query"),
        (("by_text", "a ball.", "--page", "."), "--page names a file to write"),
        (("by_image", "--image", "scene", "--page", "p.html"), "goes with an index of a folder"),
        (("by_text", "--queries", "nowhere.txt"), "nowhere.txt: there is no such file"),
        (("by_text", "--image", "scene", "--dense", "a"), "goes with an index of texts"),
        (("by_text", " "), "is empty"),
        (("by_image", "a ball."), "is an index of texts, and the query is a text"),
        (("images", "a ball."), "images: is no index"),
        (("images", "a ball."), "eligo patches index {images} --out {images}.index`"),
        (("by_image", "--image", "nowhere.png"), "there is no such image"),
        (("by_text", "a ball.", "--dense", "a box."), "--dense: goes with --image"),
        (("by_image", "--image", "scene", "--dense", "a box."), "trained without dense"),
        (("by_image", "--image", "scene", "--rerank", "auto"), "a folder of images of your"),
    ],
)
def test_invalid_searches_are_refused(world, capsys, words, message):
    scene = str(next((world / "images").glob("*.png")))
    (world / "by_image" / "stage1.json").unlink(missing_ok=True)
    assert search(world, *(scene if word == "scene" else word for word in words)) == 2
    assert message.format(images=world / "images") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "expected one of a folder of images"),
        (("--scenes", "3", "--texts", "a.txt"), "expected one of a folder of images"),
        (("--scenes", "3", "--dense", "a.jsonl"), "goes with a folder of images"),
        (("--texts", "nowhere.txt"), "nowhere.txt: there is no such file"),
        (("nowhere",), "is no folder"),
    ],
)
def test_invalid_index_arguments_are_refused(world, tmp_path, capsys, words, message):
    flags = ["--out", str(tmp_path), "--model", str(world / "model"), "--device", "cpu"]
    assert main(["patches", "index", *words, *flags]) == 2
    assert message in capsys.readouterr().err


def test_dense_captions_of_a_file(tmp_path, capsys):
    RetrievalModel.tiny(kind="paper", dense=True).save_pretrained(tmp_path / "model")
    (tmp_path / "images").mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (60, 60), "red").save(tmp_path / "images" / name)
    dense = tmp_path / "dense.jsonl"
    command = ["patches", "index", str(tmp_path / "images"), "--out", str(tmp_path / "index")]
    command += ["--model", str(tmp_path / "model"), "--device", "cpu"]
    assert main(command) == 2
    assert "pass them (--dense)" in capsys.readouterr().err
    dense.write_text('{"image_id": "a.png", "text": "a red ball."}\n')
    assert main([*command, "--dense", str(dense)]) == 2
    assert "1 images have none, the first is 'b.png'" in capsys.readouterr().err
    with dense.open("a") as file:
        file.write('{"image_id": "b.png", "text": "a blue box.", "model": "m", "prompt": "p"}\n')
    assert main([*command, "--dense", str(dense)]) == 0
    assert "cut" not in capsys.readouterr().err
    long = json.dumps({"image_id": "b.png", "text": "a red ball. " * 40})
    dense.write_text(dense.read_text().splitlines()[0] + f"\n{long}\n")
    assert main([*command[:4], str(tmp_path / "other"), *command[5:], "--dense", str(dense)]) == 0
    printed = capsys.readouterr().err
    assert "1 of 2 dense captions are cut: the longest has 162 word pieces" in printed
    with dense.open("a") as file:
        file.write('{"text": "whose?"}\n')
    assert main([*command, "--dense", str(dense)]) == 2
    assert ".jsonl:3: image_id: missing" in capsys.readouterr().err
