"""Examples and batches: deterministic, left padded, answers never in the question mask."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

from eligo.errors import InputError
from eligo.scenes.config import SceneConfig
from eligo.scenes.question_kinds import FAMILIES
from eligo.scenes.vlm import EOS, VlmConfig, build_processor
from eligo.tokens.config import LinesDataConfig
from eligo.tokens.data.examples import IGNORED, Collator, FileExamples, SceneExamples, TokenExample
from eligo.tokens.data.file_source import read_examples
from eligo.tokens.data.prompts import text_lengths
from eligo.vqa import read_vqa_lines

SMALL = SceneConfig(height=56, width=56)


@pytest.fixture(scope="module")
def processor():
    return build_processor(VlmConfig(image_size=56))


@pytest.fixture(scope="module")
def examples():
    return SceneExamples(SMALL, "train", 60, grid=(4, 4)).__getitems__(range(12))


def test_scene_examples_have_question_answer_and_image(examples):
    assert [example.family for example in examples[:6]] == list(FAMILIES)
    assert len({example.id for example in examples}) == 12
    for example in examples:
        assert example.image.shape == (3, 56, 56)
        assert example.deciding.shape == (4, 4)
        assert example.answer == example.answers[0]
        assert not example.held_out
    assert any(0 < int(example.deciding.sum()) < 16 for example in examples)


def test_example_depends_only_on_its_index(examples):
    dataset = SceneExamples(SMALL, "train", 60, grid=(4, 4))
    shuffled = dataset.__getitems__([7, 3, 11, 0])
    for index, example in zip([7, 3, 11, 0], shuffled, strict=True):
        for other in (examples[index], dataset[index]):
            assert (example.id, example.question, example.answers) == (
                other.id, other.question, other.answers,
            )  # fmt: skip
            assert torch.equal(example.image, other.image)
            assert torch.equal(example.deciding, other.deciding)
    with pytest.raises(IndexError, match="60 of 60"):
        dataset[60]


def test_test_split_has_held_out_pairs():
    examples = SceneExamples(SMALL, "test", 60, families=("lookup",), grid=(4, 4))
    assert any(example.held_out for example in examples.__getitems__(range(60)))


def test_deciding_tokens_cover_the_object():
    """The tokens of the oracle contain the pixels of the deciding objects, at full size."""
    from eligo.scenes.dataset import SceneDataset

    example = SceneExamples(SceneConfig(), "train", 12)[0]
    scene = SceneDataset(SceneConfig(), "train", 12, num_questions=0)[0]
    tokens = example.deciding.repeat_interleave(14, 0).repeat_interleave(14, 1)
    shown = scene.instances[tokens].unique().tolist()
    hidden = scene.instances[~tokens].unique().tolist()
    gone = set(range(1, 20)) & (set(scene.instances.unique().tolist()) - set(hidden))
    assert len(gone) == 1  # one object decides a look-up question, and it is fully covered
    assert gone <= set(shown)
    assert 0 < int(example.deciding.sum()) < 24 * 24 // 4


def test_batch_for_generation(processor, examples):
    batch = Collator(processor)(examples)
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    assert batch.inputs["pixel_values"].shape == (12, 3, 56, 56)
    assert batch.labels is None
    assert not batch.answer_mask.any()
    assert batch.scene.shape == (12, 16)
    assert mask[:, -1].all()
    assert (mask.diff(dim=-1) >= 0).all(), "padding is on the left"
    image = ids == processor.tokenizer.convert_tokens_to_ids("<image>")
    assert (image.sum(-1) == 16).all()
    assert torch.equal(batch.question_mask, mask.bool() & ~image)
    lengths = text_lengths(processor, [example.question for example in examples])
    assert batch.num_text.tolist() == lengths
    assert len(set(lengths)) > 1


def test_prepared_pixels_equal_those_of_the_processor(processor, examples):
    from eligo.report.pictures import rgb_picture

    quick = Collator(processor)(examples[:3])
    slow = Collator(processor)(
        [TokenExample(e.id, rgb_picture(e.image), e.question, e.answers) for e in examples[:3]]
    )
    assert slow.scene is None
    assert quick.inputs.keys() == slow.inputs.keys()
    for name, value in quick.inputs.items():
        torch.testing.assert_close(value, slow.inputs[name], rtol=0, atol=1e-6)


def test_answers_are_at_the_end_and_not_in_the_question_mask(processor, examples):
    prompts = Collator(processor)(examples)
    answered = Collator(processor, answers=True)(examples)
    assert not (answered.answer_mask & answered.question_mask).any()
    for row, example in enumerate(examples):
        spoken = answered.labels[row][answered.answer_mask[row]]
        assert spoken[-1] == EOS
        assert processor.decode(spoken[:-1]) == example.answer
        assert answered.labels[row, -1] != IGNORED
        ids = answered.inputs["input_ids"][row]
        assert torch.equal(ids[answered.answer_mask[row]], spoken)
        before = ids[answered.question_mask[row]]
        prompt = prompts.inputs["input_ids"][row][prompts.question_mask[row]]
        assert torch.equal(before, prompt)
    other = [
        TokenExample(e.id, e.image, e.question, ("fourth",), e.family, e.kind, e.deciding)
        for e in examples
    ]
    changed = Collator(processor, answers=True)(other)
    texts = changed.inputs["input_ids"][changed.question_mask]
    assert torch.equal(texts, answered.inputs["input_ids"][answered.question_mask])


def test_row_does_not_depend_on_the_rest_of_the_batch(processor, examples):
    batch = Collator(processor, answers=True)(examples)
    for row in (0, 5):
        alone = Collator(processor, answers=True)([examples[row]])
        length = alone.labels.shape[1]
        for name in ("input_ids", "attention_mask"):
            assert torch.equal(batch.inputs[name][row, -length:], alone.inputs[name][0])
        assert torch.equal(batch.labels[row, -length:], alone.labels[0])
        assert torch.equal(batch.question_mask[row, -length:], alone.question_mask[0])


def test_instruction_and_device(processor, examples):
    batch = Collator(processor, instruction="is the answer yes ?")(examples[:2]).to("cpu")
    plain = Collator(processor)(examples[:2])
    assert (batch.num_text > plain.num_text).all()


def test_processor_of_paligemma(examples):
    """No chat template, token types, images of any size."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PaliGemmaProcessor, PreTrainedTokenizerFast, SiglipImageProcessorPil

    known = ["<pad>", "<unk>", "<bos>", "<eos>", "<image>", "answer", "en", "is", "it", "?", "yes"]
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(known)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", bos_token="<bos>",
        eos_token="<eos>", additional_special_tokens=["<image>"],
    )  # fmt: skip
    images = SiglipImageProcessorPil(size={"height": 28, "width": 28})
    images.image_seq_length = 4
    collate = Collator(PaliGemmaProcessor(images, tokenizer), answers=True)
    picture = Image.new("RGB", (90, 60))
    batch = collate([TokenExample(q, picture, q, ("yes",)) for q in ("is it ?", "is it it it ?")])
    assert sorted(batch.inputs) == [
        "attention_mask", "input_ids", "pixel_values", "token_type_ids",
    ]  # fmt: skip
    assert torch.equal(batch.inputs["token_type_ids"].bool(), batch.answer_mask)
    assert batch.labels[:, -2:].tolist() == [[known.index("yes"), known.index("<eos>")]] * 2
    assert ((batch.inputs["input_ids"] == 4).sum(-1) == 4).all()
    assert batch.num_text.diff().tolist() == [2]


def test_examples_from_files(processor, tmp_path):
    Image.new("RGB", (80, 60), (9, 99, 200)).save(tmp_path / "a.png")
    row = {"image": "a.png", "question": "is there any red ball?", "answers": ["no", "No.", "yes"]}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    dataset = FileExamples(read_vqa_lines(tmp_path / "own.jsonl"))
    assert (len(dataset), dataset[0].answer, dataset[0].deciding) == (1, "no", None)
    batch = Collator(processor, answers=True)([dataset[0]])
    assert batch.inputs["pixel_values"].shape == (1, 3, 56, 56)
    (tmp_path / "a.png").write_text("not a picture")
    with pytest.raises(InputError, match=r"a\.png: cannot be read as an image"):
        dataset[0]
    (tmp_path / "a.png").unlink()
    with pytest.raises(InputError, match="there is no such image"):
        dataset[0]


def test_questions_with_an_empty_answer_are_left_out_of_training(tmp_path, caplog):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    rows = [
        {"id": str(place), "image": "a.png", "question": "which letter?", "answers": answers}
        for place, answers in enumerate([["b"], ["A", "a.", "b"], ["The"], ["c"]])
    ]
    lines = tmp_path / "own.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = LinesDataConfig(train_lines=lines, validation_lines=lines, validation=2)
    train, validation = read_examples(config)
    assert [train[place].id for place in range(len(train))] == ["0", "3"]
    assert [validation[place].id for place in range(len(validation))] == ["0", "3"]
    assert "2 of 4 training questions are skipped" in caplog.text
    assert "'A' of question 1" in caplog.text
    measured = read_examples(config, to_learn=False)[1]
    assert [measured[place].id for place in range(len(measured))] == ["0", "1"]


def test_images_from_memory_are_upright_and_bounded(processor, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = Image.new("RGB", (1200, 800), "blue")
    picture.paste("red", (0, 0, 300, 800))
    picture.save(tmp_path / "a.png", exif=exif)
    row = {"image": "a.png", "question": "is there any red ball?", "answers": ["no"]}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    [from_file] = FileExamples(read_vqa_lines(tmp_path / "own.jsonl"), side=56)
    with Image.open(tmp_path / "a.png") as opened:
        batches = [
            Collator(processor)([example])
            for example in (from_file, replace(from_file, image=opened))
        ]
    assert batches[1].examples[0].image.size == (115, 172)
    file, memory = (batch.inputs["pixel_values"] for batch in batches)
    assert torch.equal(file, memory)


def test_invalid_examples_are_refused(processor, examples):
    empty = TokenExample("q7", examples[0].image, "  ", ("yes",))
    with pytest.raises(InputError, match="example q7: the question is empty"):
        Collator(processor)([empty])
    silent = TokenExample("q8", examples[0].image, "is there any ball?", ())
    with pytest.raises(InputError, match="no annotated answers"):
        Collator(processor, answers=True)([silent])
    with pytest.raises(InputError, match="at least one"):
        SceneExamples(SMALL, "train", 0)
    with pytest.raises(InputError, match="families"):
        SceneExamples(SMALL, "train", 1, families=("colours",))
    with pytest.raises(InputError, match="got none"):
        FileExamples([])
