"""Words: sources, templates, the three encoders, and the phrase table of batches."""

import itertools
from pathlib import Path

import pytest
import torch
from pixel_cases import some_text
from safetensors.torch import save_file
from torch.nn import functional as F

from eligo.cli import main
from eligo.config import load_config
from eligo.errors import ConfigError, InputError
from eligo.pixels.config import (
    ClipTextConfig,
    TableTextConfig,
    TextConfig,
    WordsTextConfig,
)
from eligo.pixels.text.encoders import (
    TEMPLATES,
    ClipEncoder,
    TableEncoder,
    WordsEncoder,
    build_text_encoder,
    with_article,
)
from eligo.pixels.text.table import PhraseTable, words_of
from eligo.pixels.text.word_table import make_word_table, read_words
from eligo.pretrained.encoders import load_encoder
from pretrained_models import sentence_transformer

CLASSES = ("wall", "night_stand")
TAGS = [f"tag{n}" for n in range(9)]
CAPTIONS = [f"sentence {n}" for n in range(12)]


@pytest.mark.parametrize(
    ("source", "expected_phrases"),
    [
        ("none", []),
        ("tags", [(tag, False) for tag in TAGS[:6]]),
        ("imglabels", [(tag, False) for tag in TAGS[:6]]),
        ("labels", [("wall", False), ("night_stand", False)]),
        ("captions", [(text, True) for text in CAPTIONS[:10]]),
        ("both", [(tag, False) for tag in TAGS[:6]] + [(text, True) for text in CAPTIONS[:10]]),
    ],
)
def test_phrases_of_each_source(source: str, expected_phrases: list):
    config = load_config(TextConfig, {"source": source})
    found = words_of(config, CLASSES, TAGS, CAPTIONS)
    assert found == expected_phrases
    assert config.num_words(len(CLASSES)) == len(expected_phrases)


def test_unknown_source_is_refused():
    with pytest.raises(ConfigError, match="source"):
        load_config(TextConfig, {"source": "tag"})


def test_articles_of_nouns():
    assert with_article("night_stand") == "a night stand"
    assert with_article("Umbrella") == "an Umbrella"


# ------------------------------------------------------------------ words


def test_word_vectors_are_fixed_and_have_realistic_cosines():
    encoder = WordsEncoder(WordsTextConfig())
    looks = itertools.product(("red", "blue"), ("striped", "dotted"), ("ball", "box"))
    names = [*(" ".join(look) for look in looks), "wall", "floor", "green plain moon"]
    vectors = encoder.encode(names)
    assert vectors.shape == (len(names), 512)
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(len(names)))
    cosines = vectors @ vectors.T
    for (i, one), (j, other) in itertools.combinations(enumerate(names), 2):
        shared = len(set(one.split()) & set(other.split()))
        size = (len(one.split()) * len(other.split())) ** 0.5
        assert cosines[i, j] == pytest.approx(0.706 + 0.294 * shared / size, abs=0.06)
    again = WordsEncoder(WordsTextConfig()).encode(names)
    assert torch.equal(vectors, again)
    assert not torch.equal(vectors, WordsEncoder(WordsTextConfig(seed=1)).encode(names))


def test_word_order_and_padding_do_not_matter_to_a_phrase():
    encoder = WordsEncoder(WordsTextConfig(dim=32))
    one, other, longer = encoder.encode(["red ball", "ball red", "a small red ball"])
    torch.testing.assert_close(one, other)
    assert not torch.allclose(one, longer)
    torch.testing.assert_close(one, encoder.encode(["red ball"])[0])
    assert encoder.encode([]).shape == (0, 32)


def test_sentences_of_scenes_can_be_read():
    encoder = WordsEncoder(WordsTextConfig(dim=32))
    assert encoder.encode(["a red ball, left of the box."], sentences=True).isfinite().all()


def test_error_for_an_unknown_word_suggests_the_nearest():
    with pytest.raises(InputError, match=r"'bal'.*ball"):
        WordsEncoder(WordsTextConfig()).encode(["red bal"])


# ------------------------------------------------------------------ table


def test_table_encoder_reads_vectors(tmp_path: Path):
    save_file({"night_stand": torch.tensor([3.0, 4.0]), "desk": torch.tensor([0.0, 2.0])},
              tmp_path / "t.safetensors")  # fmt: skip
    encoder = build_text_encoder(TableTextConfig(file=tmp_path / "t.safetensors"))
    assert encoder.dim == 2
    found = encoder.encode(["night stand", "desk", "night_stand"])
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8], [0.0, 1.0], [0.6, 0.8]]))
    with pytest.raises(InputError, match=r"'dask'.*desk"):
        encoder.encode(["dask"])


@pytest.mark.parametrize("kind", ["absent", "torn", "uneven"])
def test_invalid_tables_are_refused(tmp_path: Path, kind: str):
    path = tmp_path / "t.safetensors"
    if kind == "torn":
        path.write_bytes(b"no tensors")
    elif kind == "uneven":
        save_file({"a": torch.zeros(2), "b": torch.zeros(3)}, path)
    with pytest.raises(InputError, match="safetensors"):
        TableEncoder(TableTextConfig(file=path))


# ------------------------------------------------------------------ clip


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random CLIP with a word tokenizer, as transformers saves them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        CLIPTextConfig,
        CLIPTextModelWithProjection,
        PreTrainedTokenizerFast,
    )

    folder = tmp_path_factory.mktemp("clip")
    torch.manual_seed(0)
    words = sorted({w for t in TEMPLATES for w in t.split()} | {"desk", "lamp", "umbrella", "an"})
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(folder)
    config = CLIPTextConfig(vocab_size=len(vocabulary), hidden_size=16, intermediate_size=32,
                            num_hidden_layers=2, num_attention_heads=2, projection_dim=12,
                            max_position_embeddings=16, eos_token_id=1)  # fmt: skip
    CLIPTextModelWithProjection(config).save_pretrained(folder)
    return folder


def test_clip_averages_over_templates(clip_folder: Path):
    from transformers import AutoTokenizer, CLIPTextModelWithProjection

    encoder = ClipEncoder(ClipTextConfig(model=str(clip_folder)))
    found = encoder.encode(["desk", "umbrella"])
    tokenizer = AutoTokenizer.from_pretrained(clip_folder)
    model = CLIPTextModelWithProjection.from_pretrained(clip_folder).eval()
    for row, subject in zip(found, ("a desk", "an umbrella"), strict=True):
        parts = []
        for template in TEMPLATES:
            tokens = tokenizer(template.format(subject), return_tensors="pt")
            with torch.no_grad():
                parts.append(F.normalize(model(**tokens).text_embeds[0], dim=-1))
        torch.testing.assert_close(row, F.normalize(sum(parts) / 3, dim=-1), atol=1e-5, rtol=1e-5)
    assert encoder.dim == 12


def test_clip_reads_sentences_without_templates(clip_folder: Path):
    encoder = ClipEncoder(ClipTextConfig(model=str(clip_folder)))
    bare = encoder.encode(["desk"], sentences=True)
    assert not torch.allclose(bare, encoder.encode(["desk"]))
    assert (
        encoder.encode(["desk " * 40], sentences=True).isfinite().all()
    )  # longer than the context


def test_clip_cache_avoids_loading_the_model(clip_folder: Path, tmp_path: Path):
    config = ClipTextConfig(model=str(clip_folder), cache=tmp_path / "cache.safetensors")
    first = ClipEncoder(config).encode(["desk", "lamp"])
    second = ClipEncoder(config)
    second._load = lambda: pytest.fail("the model was read again")
    torch.testing.assert_close(second.encode(["lamp", "desk"]), first.flip(0))


def test_missing_clip_is_refused():
    with pytest.raises(InputError, match=r"text\.encoder\.model: .*expected a folder"):
        ClipEncoder(ClipTextConfig(model="/no/such/model"))


# ------------------------------------------------------------------ tables of phrases


def test_phrase_table_stores_each_phrase_once():
    encoder = WordsEncoder(WordsTextConfig(dim=16))
    phrases = [("wall", False), ("red ball", False), ("wall", False), ("a red ball.", True)]
    table = PhraseTable(encoder, phrases, max_words=3)
    assert len(table.phrases) == 3
    numbers = torch.stack([table.ids([phrases[1], phrases[0]]), table.ids([])])
    text = table.batch(numbers, "oracle")
    assert text.mask.tolist() == [[True, True, False], [False] * 3]
    assert text.provenance == "oracle"
    torch.testing.assert_close(text.embeddings[0, :2], encoder.encode(["red ball", "wall"]))
    assert len(table.ids([phrases[0]] * 5)) == 3  # cut to the number of slots


def test_words_of_the_previous_image():
    text = some_text(5, 3, 0)
    found = text.swapped(torch.tensor([True, False, True]))
    assert found.mask.sum(1).tolist() == [0, 3, 3]
    torch.testing.assert_close(found.embeddings[2], text.embeddings[1])
    torch.testing.assert_close(found.embeddings[1], text.embeddings[1])


def test_a_word_table_from_a_sentence_encoder(tmp_path: Path):
    sentence_transformer(tmp_path, nested=False)
    (tmp_path / "words.jsonl").write_text(
        '{"id": "a", "tags": ["night_stand", "lamp"], "captions": ["a lamp on a table"]}\n'
        '{"id": "b", "tags": ["lamp"]}\n'
    )
    (tmp_path / "classes.txt").write_text("lamp\nnight stand\nbed\n")
    names, sentences = read_words([tmp_path / "words.jsonl", tmp_path / "classes.txt"])
    assert (names, sentences) == (["night stand", "lamp", "bed"], ["a lamp on a table"])
    table = make_word_table(str(tmp_path / "minilm"), names, sentences)
    save_file(table, tmp_path / "words.safetensors")
    encoder = TableEncoder(TableTextConfig(file=tmp_path / "words.safetensors"))
    found = encoder.encode(["night_stand", "a lamp on a table"])
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(2))
    model = load_encoder("encoder", str(tmp_path / "minilm"))
    prompts = [template.format("a night stand") for template in TEMPLATES]
    mean = F.normalize(model.texts(prompts), dim=-1).mean(0)
    torch.testing.assert_close(found[0], F.normalize(mean, dim=-1))
    plain = F.normalize(model.texts(["a lamp on a table"]), dim=-1)[0]
    torch.testing.assert_close(found[1], plain)
    command = ["pixels", "words", tmp_path / "words.jsonl", "--encoder", tmp_path / "minilm"]
    command += ["--out", tmp_path / "made.safetensors", "--device", "cpu"]
    assert main([str(word) for word in command]) == 0
    made = TableEncoder(TableTextConfig(file=tmp_path / "made.safetensors"))
    torch.testing.assert_close(made.encode(["night_stand", "a lamp on a table"]), found)
    with pytest.raises(InputError, match=r"has no vector for 'sofa'.*eligo pixels words"):
        made.encode(["sofa"])


def test_a_file_without_words_is_refused(tmp_path: Path):
    (tmp_path / "words.jsonl").write_text('{"id": "a"}\n')
    for files in ([tmp_path / "words.jsonl"], []):
        with pytest.raises(InputError, match="got no words in"):
            read_words(files)
