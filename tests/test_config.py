"""YAML <-> config: reading, extending, saving. Errors and flags: tests/cli/test_cli_flags.py."""

from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError

import eligo.config
from eligo.config import Config, find_config, load_config, save_config, shipped_configs
from eligo.config.yaml import dump_yaml, parse_yaml
from eligo.errors import ConfigError
from eligo.pixels.config import PixelsTrainConfig


class Colour(Enum):
    RED = "red"


class Inner(Config):
    ratio: float = 0.5
    kind: Literal["no", "off", "1e3"] = "off"


class Left(Config):
    side: Literal["left"] = "left"
    speed: float = 1.0
    shared: int = 1


class Right(Config):
    side: Literal["right"] = "right"
    weight: float = 2.0
    shared: int = 2


class Outer(Config):
    name: str = "x"
    rate: float = 1e-3
    path: Path | None = None
    sizes: tuple[int, ...] = (1, 2)
    pair: tuple[float, float] = (0.9, 0.999)
    table: dict[str, float] = Field(default_factory=dict)
    colour: Colour = Colour.RED
    inner: Inner = Inner(ratio=0.75)
    inners: list[Inner] = Field(default_factory=list)
    maybe: Inner | None = None
    side: Annotated[Left | Right, Field(discriminator="side")] = Left(speed=3.0)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_configs_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        Outer().name = "y"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("text", ["2e-05", '"2e-05"', "0.00002", "2.0e-05", "2.E-5"])
def test_floats_in_any_notation(tmp_path, text):
    assert load_config(Outer, write(tmp_path / "a.yaml", f"rate: {text}\n")).rate == 2e-5


def test_words_stay_strings():
    text = "a: no\nb: off\nc: 1:30\nd: 2020-01-01\ne: 1_000\nf: true\ng: ~\nh: 010\ni: 0x1F\nj:\n"
    assert parse_yaml(text, "text")[0] == {
        "a": "no", "b": "off", "c": "1:30", "d": "2020-01-01", "e": "1_000",
        "f": True, "g": None, "h": 10, "i": 31, "j": None,
    }  # fmt: skip


def test_merge_keys_and_anchors(tmp_path):
    text = "inner: &a {ratio: 0.1}\nmaybe: {<<: *a, kind: 'no'}\n"
    config = load_config(Outer, write(tmp_path / "a.yaml", text))
    assert config.maybe == Inner(ratio=0.1, kind="no")


def test_recursive_alias_is_refused():
    with pytest.raises(ConfigError, match="an alias contains itself"):
        parse_yaml("a: &a\n  b: *a\n", "text")


words = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner) | st.dictionaries(words, inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(words, plain))
def test_dumped_trees_read_back_the_same(tree):
    assert parse_yaml(dump_yaml(tree), "text")[0] == tree


@settings(deadline=None, max_examples=50)
@given(
    name=st.sampled_from(["2e-05", "yes", "null", "é: x", "", "1", "~", "<<"]),
    rate=st.floats(allow_nan=False, allow_infinity=False),
    sizes=st.lists(st.integers(-(2**63), 2**63 - 1)).map(tuple),
    table=st.dictionaries(words, st.floats(allow_nan=False, allow_infinity=False)),
    kind=st.sampled_from(["no", "off", "1e3"]),
    side=st.sampled_from([Left(speed=5), Right(weight=1e300)]),
)
def test_saved_configs_load_equal(tmp_path_factory, name, rate, sizes, table, kind, side):
    config = Outer(
        name=name, rate=rate, sizes=sizes, table=table, side=side, path=Path("a b/c"),
        maybe=Inner(kind=kind), inners=[Inner(kind=kind), Inner()],
    )  # fmt: skip
    path = tmp_path_factory.mktemp("saved") / "config.yaml"
    save_config(config, path)
    assert load_config(Outer, path) == config
    assert [file.name for file in path.parent.iterdir()] == ["config.yaml"]


def test_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "config.yaml"
    save_config(Outer(name="old"), path)

    def no_space(self, target):
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(OSError, match="no space"):
        save_config(Outer(name="new"), path)
    assert load_config(Outer, path).name == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_overrides_may_be_dotted_or_nested():
    config = load_config(
        Outer, {"rate": 1}, {"inner.ratio": 0.1, "maybe": {"kind": "no"}, "name": "z"}
    )
    assert config.inner == Inner(ratio=0.1)
    assert config.maybe == Inner(kind="no")
    assert (config.rate, config.name) == (1.0, "z")


def test_partial_section_keeps_the_other_defaults():
    assert load_config(Outer, {"inner": {"kind": "no"}}).inner == Inner(ratio=0.75, kind="no")
    assert load_config(Outer, {"side": {"shared": 9}}).side == Left(speed=3.0, shared=9)


def test_replace_validates():
    config = Outer().replace({"inner.ratio": 0.2})
    assert config == Outer(inner=Inner(ratio=0.2))
    with pytest.raises(
        ConfigError, match=r"--inner.ratoi: unknown key; did you mean inner.ratio\?"
    ):
        Outer().replace({"inner.ratoi": 0.2})


def test_another_union_member_drops_only_older_keys(tmp_path):
    write(tmp_path / "base.yaml", "side: {side: left, speed: 8, shared: 5}\n")
    top = write(tmp_path / "top.yaml", "extends: base.yaml\nside: {side: right}\n")
    assert load_config(Outer, top).side == Right(shared=5)
    assert load_config(Outer, top, {"side.side": "left"}).side == Left(speed=8, shared=5)
    with pytest.raises(ConfigError, match=r"--side.speed: unknown key"):
        load_config(Outer, top, {"side.speed": 1})
    bad = write(tmp_path / "bad.yaml", "side: {side: right, speed: 1}\n")
    with pytest.raises(ConfigError, match=r"bad.yaml:1: side.speed: unknown key"):
        load_config(Outer, bad)


def test_extends_chain(tmp_path):
    write(
        tmp_path / "far" / "a.yaml", "name: a\ninner: {ratio: 0.1, kind: 'no'}\nsizes: [1, 2, 3]\n"
    )
    write(tmp_path / "far" / "b.yaml", "extends: a.yaml\ninner: {ratio: 0.2}\nrate: 2\n")
    c = write(tmp_path / "c.yaml", "extends: far/b.yaml\nname: c\nsizes: [4]\n")
    config = load_config(Outer, c)
    assert config == Outer(name="c", rate=2, inner=Inner(ratio=0.2, kind="no"), sizes=(4,))


def test_errors_name_the_file_of_the_chain_that_wrote_the_key(tmp_path):
    write(tmp_path / "a.yaml", "rate: 1\nsizes: [1, x]\n")
    b = write(tmp_path / "b.yaml", "extends: a.yaml\nrate: fast\n")
    with pytest.raises(ConfigError) as error:
        load_config(Outer, b)
    assert str(error.value).splitlines() == [
        f"{b}:2: rate: got 'fast', expected a valid number",
        f"{tmp_path / 'a.yaml'}:2: sizes.1: got 'x', expected a valid integer",
    ]
    # A list that replaces another is the source of all of its items.
    write(tmp_path / "b.yaml", "extends: a.yaml\nname: x\nsizes: [1, y]\n")
    with pytest.raises(ConfigError, match=r"b.yaml:3: sizes.1: got 'y'"):
        load_config(Outer, b)
    with pytest.raises(ConfigError, match=r"^--sizes.1: got 'z'"):
        load_config(Outer, b, {"sizes": [1, "z"]})


@pytest.mark.parametrize("names", [("a", "a"), ("a", "b", "a")])
def test_circular_extends_is_refused(tmp_path, names):
    for name, base in pairwise(names):
        write(tmp_path / f"{name}.yaml", f"extends: {base}.yaml\n")
    with pytest.raises(ConfigError, match=r"goes in a circle: .*a.yaml -> .*a.yaml"):
        load_config(Outer, tmp_path / "a.yaml")


def test_extends_must_be_one_name(tmp_path):
    path = write(tmp_path / "a.yaml", "name: x\nextends: [b, c]\n")
    with pytest.raises(
        ConfigError, match=r"a.yaml:2: extends: got \['b', 'c'\], expected one path"
    ):
        load_config(Outer, path)


def test_shipped_names(tmp_path, monkeypatch):
    monkeypatch.setattr(eligo.config, "SHIPPED", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    shipped = write(tmp_path / "configs" / "tokens" / "v2.5.yaml", "rate: 5\n")
    write(tmp_path / "configs" / "tokens" / "quick.yaml", "extends: v2.5.yaml\n")
    assert shipped_configs() == ["tokens/quick", "tokens/v2.5"]
    assert shipped_configs("tokens") == ["quick", "v2.5"]
    assert find_config("tokens", "v2.5") == find_config(None, "tokens/v2.5") == shipped
    assert load_config(Outer, "tokens/quick").rate == 5
    mine = write(tmp_path / "mine.yaml", "extends: tokens/quick\nname: mine\n")
    assert load_config(Outer, mine).rate == 5
    with pytest.raises(
        ConfigError, match=r"qick: neither .*did you mean quick\? \(shipped .*v2.5\)"
    ):
        find_config("tokens", "qick")


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.yaml: no such config file"):
        load_config(Outer, tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(Outer, write(tmp_path / "a.yaml", "a: \x07\n"))


def test_every_shipped_config_has_a_unique_name():
    names = shipped_configs()
    assert len(names) == len(set(names))


def test_config_of_another_command_is_one_problem():
    """Not one error per unknown key."""
    with pytest.raises(ConfigError) as refused:
        load_config(PixelsTrainConfig, "tokens/sweep")
    (line,) = str(refused.value).splitlines()
    assert "sweep.yaml:4: task: got 'tokens.sweep', expected 'pixels.train'" in line
    assert "did you mean" not in line


def test_defaults_of_another_union_member_do_not_leak():
    """`validation_images` is a key of both kinds of data, with different defaults."""
    from eligo.patches.config import PatchesTrainConfig

    files = {"data": {"kind": "karpathy", "captions": "c.json", "images": "i"}}
    assert load_config(PatchesTrainConfig, files).data.validation_images is None
    given = {"data.validation_images": 7}
    assert load_config(PatchesTrainConfig, files, given).data.validation_images == 7
    assert load_config(PatchesTrainConfig, {}).data.validation_images == 512
