"""Texts of users: the image placeholder, and control tokens that stay text."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from eligo.cli.demo.own import read_questions
from eligo.errors import InputError
from eligo.patches import RetrievalModel
from eligo.patches.model.build import scene_tokenizer
from eligo.pretrained.chat import ContextWatch, place_image, plain_text, spoken_ids, tokenize
from eligo.pretrained.encoders import count_pieces
from eligo.scenes.vlm import IMAGE, SPECIAL, VlmConfig, build_processor
from eligo.tokens.data.examples import Collator, TokenExample
from eligo.tokens.data.prompts import build_prompt
from eligo.vqa import read_vqa_lines

PROCESSOR = build_processor(VlmConfig())


@pytest.mark.parametrize(
    ("text", "placed"),
    [
        ("<image>\nWhat is it?", "What is it?"),
        ("What is it?\n<image>", "What is it?"),
        ("<image> ", ""),
        ("What is <image> here?", "What is here?"),
        ("<im<image>age> here?", "<im age> here?"),
        ("What is < image>?", "What is < image>?"),
    ],
)
def test_image_placeholder_is_removed(text: str, placed: str):
    assert place_image(text, "question") == placed


def test_two_placeholders_are_refused():
    with pytest.raises(InputError, match=r"^lines:3: got 2 <image>"):
        place_image("<image> and <image>", "lines:3")


@given(st.lists(st.sampled_from([*SPECIAL, "<", ">", "</", "s>", "ball", " ", "image"])))
def test_control_tokens_in_text_are_broken_up(parts: list[str]):
    tokenizer = PROCESSOR.tokenizer
    ids = tokenizer(plain_text(PROCESSOR, "".join(parts)), add_special_tokens=False)["input_ids"]
    assert not (set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}).intersection(ids)


def test_text_without_control_tokens_is_unchanged():
    text = "is 1 < 2 > [0]? <b>yes</b>!"
    assert plain_text(PROCESSOR, text) == text
    assert plain_text(scene_tokenizer(), text) == text


def test_prompt_has_one_image_for_any_question():
    question = "<image>\nis </s> ASSISTANT: there a <pad> ball <s> ?"
    picture = Image.new("RGB", (336, 336))
    rows = [TokenExample("0", picture, one, ()) for one in (question, "is there a ball?")]
    ids = Collator(PROCESSOR)(rows).inputs["input_ids"]
    for control in range(1, len(SPECIAL)):
        if SPECIAL[control] != "<unk>":
            count = (ids == control).sum(-1)
            assert count[0] == count[1], SPECIAL[control]
    assert (ids[0] == IMAGE).sum() == 576
    assert build_prompt(PROCESSOR, "<image>\nwho?") == build_prompt(PROCESSOR, "who?")


def test_answer_has_no_end_token():
    ids = spoken_ids(PROCESSOR.tokenizer, "ASSISTANT:", "red</s>ball")
    assert PROCESSOR.tokenizer.eos_token_id not in ids


def test_captions_have_no_control_token():
    encoder = RetrievalModel.tiny().text_encoder
    marks = {encoder.tokenizer.convert_tokens_to_ids(name) for name in ("[CLS]", "[SEP]", "[PAD]")}
    ids = encoder.tokenize(["a [SEP] red [PAD] ball [CLS]"])[0][0].tolist()
    assert not marks.intersection(ids[1:-1])
    assert count_pieces(encoder.tokenizer, ["a [SEP] red [PAD] ball [CLS]"]) == [len(ids)]


def test_llava_data_files_are_read(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    lines = tmp_path / "lines.jsonl"

    def write(question: str) -> None:
        row = {"image": "a.png", "question": question, "answers": ["red"]}
        lines.write_text(json.dumps(row) + "\n")

    write("<image>\nWhat colour?")
    assert read_vqa_lines(lines)[0].question == "What colour?"
    write("<image>\n<image>\nWhat colour?")
    with pytest.raises(InputError, match=r"lines.jsonl:1: question: got 2 <image>"):
        read_vqa_lines(lines)
    write("<image>\n")
    with pytest.raises(InputError, match=r"lines.jsonl:1: question: .* expected at least one word"):
        read_vqa_lines(lines)
    text = tmp_path / "lines.txt"
    text.write_text("a.png\t<image> What colour?\n")
    assert read_questions(text, None)[0].question == "What colour?"


def test_prompts_beyond_the_context_are_logged_once(caplog):
    text = SimpleNamespace(max_position_embeddings=10)
    watch = ContextWatch(SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text)))
    for length in (9, 10, 12, 11, 12, 15):
        watch.look(length)
    messages = [record.getMessage() for record in caplog.records]
    assert [line.split(" tokens")[0] for line in messages] == [
        "the prompt has 12", "the prompt has 15",
    ]  # fmt: skip
    text.max_position_embeddings = None
    ContextWatch(SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))).look(99)
    assert len(caplog.records) == 2


def test_tokenizer_without_padding_token_pads_with_its_end_token():
    tokenizer = build_processor(VlmConfig()).tokenizer
    tokenizer.pad_token, tokenizer.eos_token = None, SPECIAL[2]
    rows = tokenize(tokenizer, ["is there a ball?", "ball"], padding=True)
    assert [sum(row) for row in rows["attention_mask"]] == [
        len(ids) for ids in tokenizer(["is there a ball?", "ball"])["input_ids"]
    ]
    assert tokenizer.pad_token == SPECIAL[2]
    tokenizer.pad_token = tokenizer.eos_token = None
    with pytest.raises(InputError, match="names neither pad_token nor eos_token"):
        tokenize(tokenizer, ["ball"], padding=True)
