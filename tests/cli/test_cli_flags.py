"""`COMMAND [CONFIG] [--a.b value]`: configs from files and flags, and invalid values."""

import functools
from pathlib import Path

import pytest
import sample_run
import tyro
from sample_run import Files, Merger, Plain, Run, Scenes, Stage

from eligo.cli import main
from eligo.cli.commands import Command
from eligo.cli.parse_errors import raise_as_line
from eligo.errors import InputError


def test_flags_override_the_file(taken):
    config = taken("lr: 2e-05\nmerger: {ratio: 0.25}\n", "--merger.kind", "question")
    assert config == Run(name="first", lr=2e-5, merger=Merger(ratio=0.25, kind="question"))
    assert taken("lr: 2e-05\n", "--lr", "3e-4").lr == 3e-4


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        (["--name", "123"], "name", "123"),
        (["--no_amp"], "amp", False),
        (["--amp", "false"], "amp", False),
        (["--amp", "False"], "amp", False),
        (["--amp=false"], "amp", False),
        (["--no_amp", "--amp", "true", "--lr", "1"], "amp", True),
        (["--amp=True"], "amp", True),
        (["--name", "true", "--no_amp"], "name", "true"),
        (["--checked", "true"], "checked", True),
        (["--checked", "False"], "checked", False),
        (["--checked", "None"], "checked", None),
        (["--limit", "7"], "limit", 7),
        (["--limit", "auto"], "limit", "auto"),
        (["--layers", "3", "4", "5"], "layers", (3, 4, 5)),
        (["--layers"], "layers", ()),
        (["--weights", "{kl: 2e-1}"], "weights", {"kl": 0.2, "ce": 1.0}),
        (["--stages", "[{layer: 4}, {layer: 8, budget: 3}]"], "stages", (4, 8)),
        (["--second.ratio", "0.2"], "second", Merger(ratio=0.2)),
        (["--out", "here"], "out", Path("here")),
        (["--data.size", "9"], "data", Scenes(size=9)),
        (["--data.kind", "files", "--data.path", "x"], "data", Files(path=Path("x"))),
        ([], "second", None),
    ],
)
def test_every_kind_of_field_is_a_flag(taken, flags, key, value):
    text = "weights: {kl: 1, ce: 1}\nout: there\n"
    got = getattr(taken(text, *flags), key)
    if key == "stages":
        assert got == (Stage(layer=4), Stage(layer=8, budget=3))
    else:
        assert got == value


def test_partial_section_keeps_the_other_defaults(taken):
    """The default is Merger(ratio=0.9), not the 0.5 of the class."""
    assert taken("", "--merger.kind", "question").merger == Merger(ratio=0.9, kind="question")
    assert taken("merger: {kind: question}\n").merger == Merger(ratio=0.9, kind="question")


def test_another_union_member_drops_the_old_keys(taken):
    config = taken("data: {kind: files, path: x}\n", "--data.kind", "scenes")
    assert config.data == Scenes()


def test_none_can_be_given_as_a_flag(taken):
    assert taken("out: there\n", "--out", "None").out is None


def test_flags_fill_required_keys(run):
    Path("run.yaml").write_text("task: sample_run:Run\nmerger: {ratio: 7}\n")
    outcome = run("sample", "take", "run.yaml", "--name", "x", "--merger.ratio", "0.5")
    assert outcome.code == 0, outcome.err


def test_flags_of_the_command_itself(run):
    Path("run.yaml").write_text("task: plain\n")
    assert run("sample", "take", "run.yaml", "--resume", "--json").code == 0
    assert sample_run.calls == [(Plain(), {"resume": True, "json": True})]


def test_flags_override_smoke(taken):
    config = taken("steps: 50\n", "--smoke", "--steps", "7")
    assert (config.steps, config.merger.ratio) == (7, 0.1)


def test_smoke_needs_a_config_with_a_smoke_method(run):
    outcome = run("sample", "take_plain", "--smoke")
    assert (outcome.code, "--smoke" in outcome.err) == (2, True)


def test_config_by_shipped_name_default_or_path(run):
    assert run("sample", "take", "small").code == 0
    assert run("sample", "take_plain").code == 0
    assert run("sample", "take_plain", "--size", "8").code == 0
    Path("mine.yaml").write_text("extends: sample/small\n")
    assert run("sample", "take_plain", "mine.yaml").code == 0
    assert [config.size for config, _ in sample_run.calls] == [1, 1, 8, 1]


def test_help_shows_docstrings_and_values_of_the_config(run):
    Path("run.yaml").write_text("task: sample_run:Run\nlr: 2e-05\n")
    outcome = run("sample", "take", "run.yaml", "--help")
    words = " ".join(outcome.out.replace("│", " ").split())
    assert outcome.code == 0
    for expected in (
        "Take a config and remember it.",
        "A YAML file, or a shipped one: small.",
        "--resume Go on where it stopped.",
        "--merger.ratio FLOAT Share of the tokens that is kept. (default: 0.9)",
        "--name STR Folder of the run. (required)",
        "--data.kind {scenes,files} (default: scenes)",
        "--weights YAML (default: {kl: 1.0, ce: 1.0})",
        "Folds tokens together.",
        "(default: 2e-05)",
    ):
        assert expected in words
    assert "--task" not in words


def test_help_of_a_plain_command_hides_empty_defaults(run):
    """Help shows no empty default, no `None`, and unbroken lines."""
    outcome = run("sample", "look", "--help")
    words = " ".join(outcome.out.replace("│", " ").split())
    for expected in (
        "[WHERE] A folder.",
        "--out PATH The folder to write to. (required)",
        "--times INT How often. (default: 3)",
        "--words [INT [INT ...]] Which of them; a long text that goes on behind an indented line.",
        "--model STR Folder of a model; by default none.",
        "--json Print one JSON document.",
    ):
        assert expected in words
    assert "None" not in words
    assert "False" not in words
    assert "(default: )" not in words


def test_flags_of_a_plain_command(run):
    assert run("sample", "look", "here", "--out", "there", "--words", "1", "2").code == 0
    expected = {"where": Path("here"), "out": Path("there"), "times": 3, "words": (1, 2)}
    assert sample_run.calls == [(Plain(), expected)]
    assert run("sample", "look").code == 2


def test_help_without_a_config(run):
    outcome = run("sample", "take", "--help")
    assert outcome.code == 0
    assert "[CONFIG]" in outcome.out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("merger:\n  ratoi: 1\n", ["run.yaml:4: merger.ratoi: unknown key", "mean merger.ratio?"]),
        ("ratio: 0.5\n", ["run.yaml:3: ratio: unknown key", "did you mean merger.ratio?"]),
        ("zzz: 0.5\n", ["run.yaml:3: zzz: unknown key", "valid keys here: task, name, lr"]),
        ("lr: fast\n", ["run.yaml:3: lr: got 'fast', expected a valid number"]),
        ("lr: none\n", ["run.yaml:3: lr: got 'none', expected a valid number", "null"]),
        ("merger: 3\n", ["run.yaml:3: merger: got 3, expected a mapping with", "ratio, kind"]),
        ("merger: {ratio: 2}\n", ["run.yaml:3: merger.ratio: got 2, expected less than"]),
        ("merger: {kind: simpel}\n", ["merger.kind: got 'simpel'", "'simple' or", "mean simple?"]),
        ("limit: many\n", ["limit: got 'many', expected a valid integer or 'auto'"]),
        ("layers: [1, two]\n", ["run.yaml:3: layers.1: got 'two', expected a valid integer"]),
        ("stages:\n- {}\n", ["run.yaml:4: stages.0.layer: missing; expected int"]),
        ("stages:\n- {layer: 1, budget: 300}\n", ["run.yaml:4: stages.0: budget 300 is above"]),
        ("data: {kind: scene}\n", ["run.yaml:3: data.kind: got 'scene'", "mean scenes?"]),
        ("data: {kind: scenes, path: x}\n", ["data.path: unknown key here", "data.kind files"]),
        ("data: {kind: files}\n", ["run.yaml:3: data.path: missing", "Where the files lie."]),
        ("name: again\n", ["run.yaml:3: name: written twice, first on line 2"]),
        ("a: b: c\n", ["run.yaml:3:5: not valid YAML: mapping values are not allowed here"]),
        ("lr: [1\n", ["run.yaml:4:1: not valid YAML"]),
        ("extends: nowhere.yaml\n", ["run.yaml:3: extends: nowhere.yaml: no such config file"]),
    ],
)
def test_invalid_file_gives_one_error(rejected, text, expected):
    message = rejected(text)
    assert message.startswith("error: run.yaml:")
    assert message.count("\n") == 1
    for part in expected:
        assert part in message


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--merger.ratio", "1.5"], ["--merger.ratio: got 1.5, expected less than or equal to 1"]),
        (["--merger.ratoi", "0.5"], ["unknown flag --merger.ratoi; did you mean --merger.ratio?"]),
        (["--merger-ratoi=0.5"], ["unknown flag --merger-ratoi=0.5; did you mean --merger.ratio?"]),
        (["--zzz", "0.5"], ["unknown flag --zzz (eligo sample take --help lists all)"]),
        (["--merger.ratio", "half"], ["--merger.ratio: got 'half', expected a number (eligo"]),
        (["--merger.ratio"], ["--merger.ratio: got no value, expected one (eligo sample take"]),
        (["--merger.kind", "simpel"], ["--merger.kind: got 'simpel', expected one of simple, q"]),
        (["--weights", "{kl: much}"], ["--weights.kl: got 'much', expected a valid number"]),
        (["--weights", "{kl"], ["--weights", "not valid YAML"]),
        (["--data.path", "x"], ["--data.path: unknown key here; it belongs to data.kind files"]),
        (["--amp", "maybe"], ["got 'maybe', an unexpected word", "--key true or --key false"]),
        (["--amp", "true", "false"], ["got 'false', an unexpected word"]),
        (["--no_amp", "true"], ["got 'true', an unexpected word"]),
        (["stray"], ["got 'stray'", "CONFIG comes first (eligo sample take CONFIG", "--no_key"]),
    ],
)
def test_invalid_flags_give_one_error(rejected, flags, expected):
    message = rejected("", *flags)
    for part in expected:
        assert part in message
    assert message.startswith("error: ")
    assert message.count("\n") == 1


@pytest.mark.parametrize("lines", [True, False])
@pytest.mark.parametrize("colours", [True, False])
def test_errors_of_the_parser_are_read_in_every_terminal(lines, colours, monkeypatch):
    """tyro draws its errors with lines or dashes, with or without colours."""
    monkeypatch.setattr("tyro._fmtlib._FORCE_UTF8_BOXES", lines)
    monkeypatch.setattr("tyro._fmtlib._FORCE_ANSI", colours)

    def take(*, k: int, name: str = "") -> None: ...

    def error_of(*args: str) -> str:
        with pytest.raises(InputError) as error:
            raise_as_line(
                lambda: tyro.cli(take, args=args, return_unknown_args=True), args, "eligo take"
            )
        return str(error.value)

    end = " (eligo take --help lists the flags)"
    assert error_of("--k", "x") == f"--k: got 'x', expected a whole number{end}"
    assert error_of("--k") == f"--k: got no value, expected one{end}"
    assert error_of() == f"missing: --k INT{end}"
    assert error_of("--kk", "1") == f"unknown flag --kk; did you mean --k?{end}"
    assert error_of("--zzzz", "1") == f"unknown flag --zzzz; missing: --k INT{end}"


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("shots predict --num_shots 3", "--num_shots; did you mean --shots?"),
        ("patches evaluate --scene 3", "--scene; did you mean --scenes?"),
        ("patches index --out x --zzz 3", "--zzz (eligo patches index --help lists all)"),
    ],
)
def test_unknown_flag_without_the_optional_word(capsys, command, hint):
    assert main(command.split()) == 2
    assert capsys.readouterr().err.startswith(f"error: unknown flag {hint}")


@pytest.mark.parametrize(("version", "smoothing"), [("v0", 0.1), ("v1", 0.2), ("v2", 0.1)])
def test_help_shows_the_defaults_of_the_chosen_model(capsys, version, smoothing):
    assert main(["shots", "train", version, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    about = text[text.index("--model.label_smoothing") :]
    assert about[about.index("(default: ") :].startswith(f"(default: {smoothing})")


def test_all_problems_of_a_file_are_listed(rejected):
    message = rejected("lr: fast\nstesp: 3\n")
    assert "run.yaml:3: lr: " in message
    assert "run.yaml:4: stesp: unknown key; did you mean steps?" in message


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smal", "smal: neither a file nor a shipped config; did you mean small?"),
        ("mni.yaml", "mni.yaml: no such config file; did you mean mini.yaml?"),
        (".", "neither a file nor a shipped config"),
        ("list.yaml", "list.yaml: got a list, expected `key: value` lines"),
        ("binary.yaml", "binary.yaml:1: cannot be read as UTF-8 text"),
        ("empty.yaml", "empty.yaml: holds no keys"),
    ],
)
def test_invalid_config_files_are_refused(run, name, expected):
    Path("mini.yaml").write_text("task: plain\n")
    Path("list.yaml").write_text("- a\n")
    Path("binary.yaml").write_bytes(b"a: \xff\xfe")
    Path("empty.yaml").write_text("")
    outcome = run("sample", "take", name)
    assert outcome.code == 2
    assert expected in outcome.err
    assert "Traceback" not in outcome.err


def test_missing_config_is_refused(run):
    outcome = run("sample", "take")
    assert (outcome.code, outcome.out) == (2, "")
    assert (
        "eligo sample take needs a CONFIG right after it: a YAML file, or one shipped (small)"
        in (outcome.err)
    )


@pytest.mark.parametrize("value", ["true", "false", "True", "False"])
@pytest.mark.parametrize(
    ("command", "key"),
    [
        ("tokens train default", "size_bias"),
        ("tokens train two_stage", "search.enable"),
        ("tokens finetune --host.model base --data.questions q.jsonl", "data.flip"),
        ("tokens sweep", "scenes.twins"),
        ("patches train f30k_vit224 --data.dense d.jsonl", "model.match.dense"),
        ("patches train f30k_vit224", "data.flip"),
        ("pixels train scenes", "augment.mirror"),
        ("shots teach", "check_data"),
        ("shots train v3", "train.check_data"),
        ("scenes export nyu --out rooms", "scenes.repeats"),
    ],
)
def test_booleans_are_written_as_in_yaml(command, key, value, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    configs, load = [], Command.load

    def keep_config(function):
        return functools.wraps(function)(lambda config, **rest: configs.append(config))

    monkeypatch.setattr(Command, "load", lambda self: keep_config(load(self)))
    found = main([*command.split(), f"--{key}", value])
    if (key, value.lower()) == ("search.enable", "true"):  # a file for `eligo search`
        assert (found, configs) == (2, [])
        assert "search.enable: asks for a search" in capsys.readouterr().err
        return
    assert found == 0, capsys.readouterr().err
    assert functools.reduce(getattr, key.split("."), configs[0]) is (value.lower() == "true")
