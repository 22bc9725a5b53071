"""Saving and loading records; an invalid folder is refused with its path."""

import io
import json
from base64 import b64decode

import pytest
import torch
from explorer_samples import all_records, guided, matched, pruned
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from eligo.errors import InputError
from eligo.explorer.folder import find_records, load_record, save_record
from eligo.explorer.inline import inline
from eligo.explorer.record import ExplorerRecord, Grid, Item, Stage
from eligo.selection import Selection


def same(one: Selection, other: Selection) -> bool:
    pairs = [(getattr(one, n), getattr(other, n)) for n in ("indices", "scores", "mask")]
    folds = [one.assignment, other.assignment]
    if None in folds:
        return folds == [None, None] and all(torch.equal(a, b) for a, b in pairs)
    return all(torch.equal(a, b) for a, b in [*pairs, folds])


@pytest.mark.parametrize("record", all_records(), ids=lambda one: one.kind)
def test_records_round_trip(record, tmp_path):
    save_record(record, tmp_path / "a b")
    back = load_record(tmp_path / "a b")
    for name in ("title", "kind", "query", "answers", "cost", "note"):
        assert getattr(back, name) == getattr(record, name)
    for name, image in record.pictures.items():
        assert back.pictures[name].tobytes() == image.tobytes()
    assert len(back.stages) == len(record.stages)
    for one, other in zip(back.stages, record.stages, strict=True):
        assert same(one.selection, other.selection)
        for name in ("name", "over", "rows", "layer", "candidates", "note"):
            assert getattr(one, name) == getattr(other, name)
    assert inline(back) == inline(record)


def test_find_records(tmp_path):
    for name in ("02 second", "01 first"):
        save_record(pruned(), tmp_path / "run" / "explore" / name)
    (tmp_path / "run" / "explore" / "unfinished").mkdir()
    for place in (tmp_path / "run", tmp_path / "run" / "explore"):
        assert [path.name for path in find_records(place)] == ["01 first", "02 second"]
    single = tmp_path / "run" / "explore" / "01 first"
    assert find_records(single) == [single]
    with pytest.raises(InputError, match="has no records"):
        find_records(tmp_path / "run" / "explore" / "unfinished")
    with pytest.raises(InputError, match="no such folder"):
        find_records(tmp_path / "rum")


def test_failed_save_never_mixes_two_records(tmp_path):
    save_record(pruned(), tmp_path)
    (tmp_path / "picture_00.png").unlink()
    (tmp_path / "picture_00.png").mkdir()  # cannot be replaced by a file
    with pytest.raises(InputError, match="cannot be written"):
        save_record(matched(), tmp_path)
    with pytest.raises(InputError, match=r"record\.json: cannot be read"):
        load_record(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"title": 5}, "title"),
        ({"format": "eligo.record.v9"}, "format"),
        ({"extra": 1}, "extra"),
        ({"cost": {"tokens": 64}}, "cost.tokens"),
        ({"answers": [{"who": "me"}]}, "answers.0.text"),
        ({"pictures": {"image": "../secret.png"}}, "expected one beside it"),
        ({"pictures": {"image": "/etc/hostname"}}, "expected one beside it"),
        ({"pictures": {"image": "no.png"}}, "no.png: cannot be read as a picture"),
        ({"pictures": {}}, "no picture 'image'"),
        ({"legends": {"depth": []}}, "got a legend of 'depth', expected one of its pictures"),
        ({"legends": {"image": [{"colour": "url(//x)", "text": ""}]}}, "like #3446c8"),
    ],
)
def test_invalid_record_files_are_refused(tmp_path, change, message):
    path = save_record(pruned(), tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=str(tmp_path)) as caught:
        load_record(tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).count("record.json") <= 1  # named once


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "\x00", "{}"])
def test_malformed_json_is_refused(tmp_path, text):
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(InputError, match=r"record\.json"):
        load_record(tmp_path)


def test_invalid_selections_and_pictures_are_refused(tmp_path):
    path = save_record(pruned(), tmp_path)
    whole = (tmp_path / "stage_00.safetensors").read_bytes()
    (tmp_path / "stage_00.safetensors").write_bytes(whole[:100])
    with pytest.raises(InputError, match=r"stage_00\.safetensors: cannot be read") as caught:
        load_record(tmp_path)
    assert "record.json" not in str(caught.value)
    (tmp_path / "stage_00.safetensors").write_bytes(whole)
    content = json.loads(path.read_text())
    content["stages"][0]["over"] = {"grid": {"picture": "image", "rows": 3, "columns": 3}}
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"record\.json: record .* expected 9"):
        load_record(tmp_path)
    Image.new("1", (9000, 9000)).save(tmp_path / "picture_00.png")  # 11 kB on disk
    with pytest.raises(InputError, match="9000 x 9000"):
        load_record(tmp_path)
    Image.new("RGB", (4, 4)).save(tmp_path / "picture_00.png", "EPS")  # reading it runs Ghostscript
    with pytest.raises(InputError, match=r"picture_00\.png: cannot be read as a picture"):
        load_record(tmp_path)
    outside = tmp_path.parent / f"{tmp_path.name}_outside.png"
    Image.new("RGB", (4, 4)).save(outside)
    (tmp_path / "picture_00.png").unlink()
    (tmp_path / "picture_00.png").symlink_to(outside)
    with pytest.raises(InputError, match="expected one beside it"):
        load_record(tmp_path)


def test_invalid_record_is_refused():
    scores = torch.rand(4)
    picture = {"image": Image.new("RGB", (4, 4))}

    def make(stage: Stage) -> ExplorerRecord:
        return ExplorerRecord("t", "k", "q", (stage,), picture)

    choice = Selection.top_k(scores, 2)
    with pytest.raises(InputError, match="at least one row"):
        make(Stage("s", choice, Grid("image", -2, -2)))
    with pytest.raises(InputError, match="no picture 'other'"):
        make(Stage("s", choice, Grid("other", 2, 2)))
    with pytest.raises(InputError, match="got 4 candidates, expected 3"):
        make(Stage("s", choice, (Item("a"), Item("b"), Item("c"))))
    with pytest.raises(InputError, match="names of rows"):
        make(Stage("s", choice, Grid("image", 2, 2), rows=("a", "b")))
    with pytest.raises(InputError, match=r"repeated|0\.\.8"):
        make(Stage("s", choice, Grid("image", 3, 3), candidates=(1, 2, 2, 9)))


# ------------------------------------------------------------ data for the page


def test_scores_keep_four_significant_digits():
    scores = torch.tensor([1 / 4800, -123456.0, 0.0, torch.inf, -torch.inf, 0.5])
    mask = torch.tensor([True, True, True, True, True, False])
    items = tuple(map(Item, "abcdef"))
    shown = inline(
        ExplorerRecord("t", "k", "q", (Stage("s", Selection.top_k(scores, 2, mask), items),))
    )
    (row,) = shown["stages"][0]["chosen"]
    assert row["scores"] == [0.0002083, -123500.0, 0.0, None, None, None]
    assert row["absent"] == [5]
    assert row["kept"] == [3, 0]
    json.dumps(shown, allow_nan=False)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.data())
def test_merge_target_and_share_of_each_candidate(candidates, data):
    """Compared with a loop over candidates."""
    kept = data.draw(st.integers(0, candidates))
    weights = torch.randint(0, 4, (kept, candidates)).float()
    order = torch.randperm(candidates)[:kept]
    weights[torch.arange(kept), order] += 1  # a positive size for all that is kept
    mask = torch.ones(candidates, dtype=torch.bool)
    selection = Selection(order, torch.rand(candidates), mask, weights)
    items = tuple(Item(str(at)) for at in range(candidates))
    shown = inline(ExplorerRecord("t", "k", "q", (Stage("s", selection, items),)))
    (row,) = shown["stages"][0]["chosen"]
    if not kept:
        assert row["into"] is None
        return
    for at in range(candidates):
        column = weights[:, at].tolist()
        if sum(column) == 0:
            assert row["into"][at] == -1
        else:
            assert weights[order.tolist().index(row["into"][at]), at] == max(column)
            assert row["share"][at] == pytest.approx(max(column) / sum(column), abs=0.006)


def test_each_row_has_its_own_selection():
    stage = inline(matched())["stages"][1]
    selection = matched().stages[1].selection
    assert len(stage["chosen"]) == len(stage["rows"]) == 7
    for at, row in enumerate(stage["chosen"]):
        assert row["kept"] == selection.indices[at].tolist()
    assert inline(pruned())["stages"][0]["rows"] == [""]


def test_pictures_are_scaled_down_and_flat_ones_lossless():
    shown = inline(guided())["pictures"]
    for name, original in guided().pictures.items():
        kind, _, data = shown[name].partition(";base64,")
        assert kind in ("data:image/png", "data:image/jpeg")
        with Image.open(io.BytesIO(b64decode(data))) as back:
            assert back.convert("RGB").tobytes() == original.tobytes()  # flat colours: as PNG
    noise = Image.effect_noise((1500, 900), 90).convert("RGB")
    large = inline(ExplorerRecord("t", "k", "q", (), {"p": noise, "l": Image.new("L", (8, 8), 7)}))
    kind, _, data = large["pictures"]["p"].partition(";base64,")
    assert kind == "data:image/jpeg"
    with Image.open(io.BytesIO(b64decode(data))) as back:
        assert back.size == (1024, 614)
