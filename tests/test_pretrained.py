"""Saving and loading of trained models: by folder, shipped name or hub name, strictly.

The shipped models themselves are tested in test_shipped_models.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from eligo.config import load_config
from eligo.errors import InputError, OutputError
from eligo.io.files import writing_folder
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.pixels.config import PixelsTrainConfig
from eligo.pixels.inference.segmenter import Segmenter, plain_config, text_encoder
from eligo.pixels.model.model import PixelsModel
from eligo.pretrained import load as pretrained
from eligo.pretrained.load import find_host, find_model, load_stock, shipped_model, shipped_models
from eligo.shots import PointerSelectorV2, PointerSelectorV2Config, build_model_v2
from eligo.shots.config import ShotsHostConfig
from eligo.shots.hosts.load import load_reader
from eligo.tokens import Cut, LayerPruners, Plan, Stage1, TokenMerger
from eligo.tokens.config import HostConfig
from eligo.tokens.inference.load import load_host
from eligo.tokens.methods import build
from eligo.tokens.model.layer_pruners import PrunersShape
from eligo.tokens.model.token_merger import MergerShape


def merger() -> TokenMerger:
    return TokenMerger(MergerShape(width=8, dim=16))


def pruners() -> LayerPruners:
    return LayerPruners(PrunersShape(layers=(1, 3), width=12, dim=16, num_heads=2))


def plan() -> Plan:
    heads = pruners()
    return Plan(Stage1(merger(), 9), [Cut(1, heads[1], 6), Cut(3, heads[3], ratio=0.1)])


def segmenter(**changes: Any) -> Segmenter:
    small = {
        "encoder.depths": (1, 1, 1, 1), "sam.encoder.stages": (3,), "sam.decoder.stages": (1,),
    }  # fmt: skip
    base = load_config(PixelsTrainConfig, "pixels/scenes").smoke().replace(small)
    config = plain_config(base).replace(changes)
    return Segmenter(config, PixelsModel(config), text_encoder(config))


def pointer() -> PointerSelectorV2:
    model = build_model_v2(PointerSelectorV2Config(d_model=8, hidden_dim=8, state="gru"))
    assert isinstance(model, PointerSelectorV2)
    return model


class Trained(NamedTuple):
    make: Callable[[], Any]
    files: tuple[str, ...]
    """All modules with weights."""
    modules: Callable[[Any], list[torch.nn.Module]]


TRAINED = {
    "merger": Trained(merger, ("token_merger.safetensors",), lambda made: [made]),
    "pruners": Trained(pruners, ("layer_pruners.safetensors",), lambda made: [made]),
    "plan": Trained(
        plan,
        ("token_merger.safetensors", "layer_pruners.safetensors"),
        lambda made: [stage.reducer for stage in made.stages],
    ),
    "retrieval": Trained(
        RetrievalModel.tiny,
        tuple(f"{name}.safetensors" for name in ("heads", "net", "vision/model", "text/model")),
        lambda made: [made],
    ),
    "pointer": Trained(pointer, ("pointer.safetensors",), lambda made: [made]),
    "segmenter": Trained(segmenter, ("model.safetensors",), lambda made: [made.model]),
}
WEIGHTS = [(name, file) for name, kind in TRAINED.items() for file in kind.files]


def states(name: str, model: Any) -> dict[str, torch.Tensor]:
    return {
        f"{number}.{key}": value
        for number, module in enumerate(TRAINED[name].modules(model))
        for key, value in module.state_dict().items()
    }


def assert_same(name: str, one: Any, other: Any) -> None:
    expected, found = states(name, one), states(name, other)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())


@pytest.mark.parametrize("name", TRAINED)
def test_models_load_by_folder_shipped_name_and_hub_name(name, tmp_path, monkeypatch):
    original = TRAINED[name].make()
    kind = type(original)
    original.save_pretrained(tmp_path / "mine")
    assert {str(path.relative_to(tmp_path / "mine")) for path in
            (tmp_path / "mine").rglob("*.safetensors")} == set(TRAINED[name].files)  # fmt: skip
    requests = []

    def fetch(repository: str, *, ignore_patterns: list[str]) -> str:
        requests.append((repository, "*.bin" in ignore_patterns))
        return str(tmp_path / "mine")

    monkeypatch.setattr(pretrained, "_hub_answers", lambda: True)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path)
    (tmp_path / "mine" / "README.md").write_text("# mine\n")
    monkeypatch.chdir(tmp_path / "mine")  # so that the name is not a folder here
    for where in (tmp_path / "mine", str(tmp_path / "mine"), "mine", "someone/mine"):
        again = kind.from_pretrained(where)
        assert_same(name, original, again)
        assert not any(module.training for module in TRAINED[name].modules(again))
    assert requests == [("someone/mine", True)]


@pytest.mark.parametrize("name", TRAINED)
def test_half_precision_files_load_as_float32(name, tmp_path):
    original = TRAINED[name].make()
    original.save_pretrained(tmp_path / "whole")
    original.save_pretrained(tmp_path / "half", dtype=torch.float16)
    again = type(original).from_pretrained(tmp_path / "half")
    for key, value in states(name, again).items():
        expected = states(name, original)[key]
        assert value.dtype == expected.dtype
        torch.testing.assert_close(value, expected.half().to(value.dtype))
    sizes = [
        sum(t.nbytes for file in TRAINED[name].files for t in load_file(folder / file).values())
        for folder in (tmp_path / "whole", tmp_path / "half")
    ]
    assert sizes[1] < 0.6 * sizes[0]


@pytest.mark.parametrize(("name", "file"), WEIGHTS)
def test_weights_that_do_not_fit_are_listed(name, file, tmp_path):
    original = TRAINED[name].make()
    original.save_pretrained(tmp_path)
    stored = load_file(tmp_path / file)
    gone, *rest = sorted(stored, key=lambda key: ("norm" not in key, key))
    other = next(key for key in rest if stored[key].ndim == 2)
    changed = {**stored, "strange.thing": torch.zeros(1), other: stored[other][:-1].clone()}
    del changed[gone]
    save_file(changed, tmp_path / file, metadata={"format": "pt"})
    with pytest.raises(InputError, match="do not fit the model") as caught:
        type(original).from_pretrained(tmp_path)
    message = str(caught.value)
    for start, key in (("missing", gone), ("unexpected", "strange.thing"), ("shape of", other)):
        end = key.rpartition(".")[2]  # transformers renames the beginnings
        entries = message.partition("model: ")[2].split("; ")
        assert any(entry.startswith(start) and end in entry for entry in entries)
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(("name", "file"), WEIGHTS)
def test_truncated_weights_are_refused(name, file, tmp_path):
    original = TRAINED[name].make()
    original.save_pretrained(tmp_path)
    whole = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"safetensors|cannot be read|transformers"):
        type(original).from_pretrained(tmp_path)


@pytest.mark.parametrize("name", TRAINED)
def test_unknown_name_is_refused(name, tmp_path, monkeypatch):
    def refuse(repository: str, **_: Any) -> str:
        raise OSError(f"no model at\n{repository}")

    monkeypatch.setattr(pretrained, "_hub_answers", lambda: True)
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    kind = type(TRAINED[name].make())
    message = "OWNER/NAME on the hub; from the hub: no model at nobody/x$"
    with pytest.raises(InputError, match=message):
        kind.from_pretrained("nobody/x")
    with pytest.raises(InputError, match="expected a folder"):
        kind.from_pretrained(tmp_path / "nowhere" / "at" / "all")
    with pytest.raises(InputError, match=r"no |expected"):
        kind.from_pretrained(tmp_path)  # an empty folder


HOSTS = {
    "tokens": lambda name: load_host(HostConfig(model=name))[0],
    "shots": lambda name: load_reader(ShotsHostConfig(model=name, device="cpu")).model,
}


@pytest.mark.parametrize("load", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("name", ["vlm", "shots_learner"])
def test_host_by_its_shipped_name(name, load):
    model, named = load(str(pretrained.SHIPPED / name)), load(name)
    assert all(map(torch.equal, model.state_dict().values(), named.state_dict().values()))


@pytest.mark.parametrize("load", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vml", r"vml: there is no such folder; did you mean vlm\?; expected .*shots_learner, vlm"),
        ("pixels", r"pixels: there is no such folder.*\(shots_learner, vlm\)"),
        ("no/such/folder", "no/such/folder: there is no such folder"),
    ],
)
def test_unknown_host_is_refused(name, message, load, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=message):
        load(name)


@pytest.mark.parametrize("load", HOSTS.values(), ids=HOSTS)
def test_hub_name_of_a_host_without_the_hub_is_refused(load, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"nobody/x.*OWNER/NAME on the hub; the hub cannot be"):
        load("nobody/x")


def test_table_encoder_is_saved_with_the_model(tmp_path):
    table = tmp_path / "vectors.safetensors"
    save_file({"ball": torch.randn(8), "ring": torch.randn(8)}, table)
    original = segmenter(**{"text.encoder": {"kind": "table", "file": str(table)}, "text_dim": 8})
    before = original.text(["ring"])
    original.save_pretrained(tmp_path / "model")
    table.unlink()
    (tmp_path / "model").rename(tmp_path / "moved")
    again = Segmenter.from_pretrained(tmp_path / "moved")
    assert torch.equal(again.text(["ring"]).embeddings, before.embeddings)
    again.save_pretrained(tmp_path / "moved")  # overwrites itself
    assert torch.equal(
        Segmenter.from_pretrained(tmp_path / "moved").text(["ring"]).embeddings, before.embeddings
    )


# ------------------------------------------------------------------ shipped names, stock models


def test_shipped_names(tmp_path, monkeypatch):
    shipped = shipped_model("vlm", made_by="x")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "vlm").mkdir()  # a local folder must not replace the shipped model
    found = [find_model(name, "config.json") for name in ("vlm", "./vlm", "mine")]
    assert [str(path) for path in found] == [str(shipped), "vlm", "mine"]
    (tmp_path / "mine").rmdir()
    (tmp_path / "vlm").rmdir()
    with pytest.raises(InputError, match=r"did you mean vlm.*train one with `eligo x`"):
        shipped_model("vlmm", made_by="eligo x")
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path)
    with pytest.raises(InputError, match=r"\(none is\)"):
        shipped_model("patches", made_by="eligo x")
    for name, file in (("tokens_a", "plan.json"), ("patches", "net.safetensors")):
        (tmp_path / name).mkdir()
        for each in (file, "README.md"):
            (tmp_path / name / each).touch()
    assert shipped_models() == ["patches", "tokens_a"]
    assert shipped_models("plan.json") == ["tokens_a"]
    with pytest.raises(InputError, match=r"a shipped model \(tokens_a\)"):
        Plan.from_pretrained("patches_")


def test_renamed_models_give_their_new_name():
    with pytest.raises(InputError, match="it is now called shots_v1"):
        shipped_model("demos_v1", made_by="eligo x")
    with pytest.raises(InputError, match="it is now called shots_learner"):
        find_host("demos_learner")


def test_only_models_of_the_same_kind_are_suggested(tmp_path, monkeypatch):
    """Each family suggests only its own models."""
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path)
    for name, kind in TRAINED.items():
        kind.make().save_pretrained(tmp_path / f"{name}_1")
        (tmp_path / f"{name}_1" / "README.md").touch()
    parts = {"merger": "merger_1, plan_1", "pruners": "plan_1, pruners_1"}  # a plan has both
    for name, kind in TRAINED.items():
        for other in TRAINED:
            with pytest.raises(InputError) as caught:
                type(kind.make()).from_pretrained(f"{other}_2")
            message = str(caught.value)
            assert f"a shipped model ({parts.get(name, f'{name}_1')})" in message
            proposed = message.partition("did you mean ")[2].partition("?")[0]
            assert not proposed or proposed in parts.get(name, f"{name}_1")


def test_plan_by_its_shipped_name(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path)
    saved = Plan(Stage1(build("uniform"), 4))
    saved.save_pretrained(tmp_path / "tokens_four")
    assert Plan.from_pretrained("tokens_four") == Plan.load("tokens_four") == saved


def test_unused_heads_are_allowed_unless_exact(tmp_path):
    from transformers import AutoModel, ViTConfig, ViTForImageClassification, ViTModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    whole = ViTForImageClassification(ViTConfig(**sizes, intermediate_size=8, image_size=32))
    whole.save_pretrained(tmp_path)
    found = load_stock(AutoModel, tmp_path, exact=False, add_pooling_layer=False)
    assert isinstance(found, ViTModel)
    assert torch.equal(found.layernorm.weight, whole.vit.layernorm.weight)
    with pytest.raises(InputError, match=r"unexpected: classifier\.bias"):
        load_stock(AutoModel, tmp_path, add_pooling_layer=False)
    with pytest.raises(InputError, match=r"missing: pooler\.dense\.bias"):
        load_stock(AutoModel, tmp_path, exact=False)


# ------------------------------------------------------------------ folders


def fail_to_write(folder, error: type[BaseException]) -> None:
    with writing_folder(folder, marker="config.yaml") as path:
        (path / "config.yaml").write_text("new")
        raise error


def test_failed_write_keeps_the_older_folder(tmp_path):
    folder = tmp_path / "ä model"
    with writing_folder(folder, marker="config.yaml") as target:
        (target / "config.yaml").write_text("old")
        assert not folder.exists()
    for error in (RuntimeError, OSError, KeyboardInterrupt):
        with pytest.raises(OutputError if error is OSError else error):
            fail_to_write(folder, error)
        assert (folder / "config.yaml").read_text() == "old"
        assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    with writing_folder(folder, marker="config.yaml") as target:
        (target / "config.yaml").write_text("new")
    assert (folder / "config.yaml").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_other_folders_are_not_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    (tmp_path / "file").touch()
    for path in (tmp_path / "mine", tmp_path / "file"):
        with (
            pytest.raises(InputError, match="choose another"),
            writing_folder(path, marker="config.yaml"),
        ):
            pass
    assert (tmp_path / "mine" / "letter.txt").exists()
    (tmp_path / "empty").mkdir()
    with writing_folder(tmp_path / "empty", marker="config.yaml") as target:
        (target / "a").touch()
    assert (tmp_path / "empty" / "a").exists()
