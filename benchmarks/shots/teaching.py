"""`python -m benchmarks.shots.teaching`: how many prompts a second a host scores and answers.

    python -m benchmarks.shots.teaching --device cuda                  random weights
    python -m benchmarks.shots.teaching --device cuda --model FOLDER   your own host

Teaches one shot from 48 candidates, as the study on photos does, with all files that teaching
writes; then scores and answers lists, as its evaluation does. Without --model, the host has the
shape of SmolLM2-135M (its vocabulary and chat template too) and random weights, which do not affect
the speed of scoring; its answers always have the full length. The texts are generated.

It uses only what older versions have as well: to measure one of them, copy this file there.
"""

import json as json_module
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from eligo.cli import run_script
from eligo.cli.console import OutFile, print_text
from eligo.cli.flags import Count
from eligo.io.files import write_text

SHAPE = {
    "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192,
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
}  # fmt: skip
"""Of SmolLM2-135M."""
TINY = {"hidden_size": 72, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 512}
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_WORDS = "a the photo shows red blue green wooden small large table chair lamp window door cup book"
_LISTS = 4  # methods whose lists are scored and answered


def run(
    model: str | None = None,
    candidates: Count = 48,
    num_queries: Count = 512,
    num_examples: Count = 3000,
    words: Count = 30,
    rounds: Count = 3,
    device: str = "auto",
    quick: bool = False,
    out: OutFile | None = None,
) -> None:
    """Measure, and print one JSON document with date, hardware and command.

    Args:
        model: Folder or hub name of a causal language model; none: random weights.
        candidates: Examples that the teacher tries for a query.
        num_queries: Queries to teach.
        num_examples: Examples in the pool.
        words: Words of a question.
        rounds: Times that everything is measured; the median counts.
        device: Where the host runs: auto, cpu or cuda.
        quick: A quick test with a tiny host; its numbers are meaningless.
        out: Also write the document to this file.
    """
    from eligo.pretrained.devices import resolve_device
    from eligo.report.provenance import provenance

    where = resolve_device(device)
    if quick:
        candidates, num_queries, num_examples, rounds = 6, 6, 20, 1
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        host = model or random_host(folder / "host", where.type, TINY if quick else {})
        write_data(folder / "data", num_examples, num_queries, words)
        results = measure(folder, host, str(where), candidates, rounds)
    document = {
        **provenance(str(where)),
        "host": model or "random weights, SmolLM2-135M's shape",
        "candidates": candidates, "queries": num_queries, "words": words, "quick": quick,
        **results,
    }  # fmt: skip
    text = json_module.dumps(document, indent=1)
    if out is not None:
        write_text(out, f"{text}\n")
    print_text(text)


def measure(
    folder: Path, host: str, device: str, candidates: int, rounds: int
) -> dict[str, dict[str, float]]:
    """Return prompts, seconds and prompts a second of teaching, scoring and answering."""
    from eligo.shots.config import SamplerConfig, ShotsHostConfig, TeachConfig
    from eligo.shots.hosts.generator import HostGenerator
    from eligo.shots.hosts.scorer import HostScorer
    from eligo.shots.inference.embed import open_embedded
    from eligo.shots.inference.evaluate import answer_lists, score_lists
    from eligo.shots.teacher.run import scorer_for, teach

    pool, queries, _ = open_embedded(folder / "data")
    # Versions without a number of tokens: a batch for the candidates of a query.
    by_tokens = "batch_tokens" in ShotsHostConfig.model_fields
    size: dict[str, Any] = {} if by_tokens else {"batch_size": candidates}
    config = TeachConfig(
        data=folder / "data", shots=1, beam=1, shard_size=64, check_data=False,
        sampler=SamplerConfig(kind="text", num_candidates=candidates),
        host=ShotsHostConfig(model=host, device=device, **size),
    )  # fmt: skip
    scorer = scorer_for(config, pool, queries)
    assert isinstance(scorer, HostScorer)
    generator = HostGenerator(scorer.reader, pool, queries, **size)
    asked = queries.queries()
    draw = random.Random(0)
    lists = {
        (str(number), 1 + 3 * (number % 2)): [
            draw.sample(pool.ids, 1 + 3 * (number % 2)) for _ in asked
        ]
        for number in range(_LISTS)
    }
    calls = len(asked) * (candidates + 1)
    total = len(asked) * _LISTS
    seconds: dict[str, list[float]] = {"teach": [], "score lists": [], "answer lists": []}
    for number in range(rounds + 1):  # the first one is a warm-up
        for name, work in (
            ("teach", lambda out: teach(config.replace({"out": out}), lambda *_: scorer)),
            ("score lists", lambda _: score_lists(scorer, asked, lists)),
            ("answer lists", lambda _: answer_lists(generator, asked, lists)),
        ):
            start = time.perf_counter()
            work(folder / f"taught{number}")
            if number:
                seconds[name].append(time.perf_counter() - start)
    medians = {name: sorted(times)[len(times) // 2] for name, times in seconds.items()}
    counts = {"teach": calls, "score lists": total, "answer lists": total}
    return {
        name: {"prompts": counts[name], "seconds": took, "prompts per second": counts[name] / took}
        for name, took in medians.items()
    }


def write_data(folder: Path, num_examples: int, num_queries: int, words: int) -> None:
    """Write generated questions with answers of one to three words."""
    from eligo.shots.data.items import Item
    from eligo.shots.inference.embed import embed
    from eligo.shots.inference.encoders import WordsEncoder

    draw = random.Random(0)

    def items(label: str, count: int) -> list[Item]:
        return [
            Item(
                f"{label}{n}",
                " ".join(draw.choices(_WORDS.split(), k=draw.randint(words // 2, words * 3 // 2))),
                (" ".join(draw.choices(_WORDS.split(), k=draw.randint(1, 3))),),
            )
            for n in range(count)
        ]

    examples, asked = items("d", num_examples), items("q", num_queries)
    embed(folder, examples, asked, WordsEncoder(), name="words")


def random_host(folder: Path, device: str, changes: dict[str, int]) -> str:
    """Write a host of SmolLM2-135M's shape with random weights: bfloat16 on a GPU."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers import PreTrainedTokenizerFast as Fast

    shape = {**SHAPE, **changes}
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*special, *letters])}
    merges: list[tuple[str, str]] = []
    for word in (f"Ġ{word}" for word in _WORDS.split()):
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                merges.append((word[: end - 1], word[end - 1]))
                vocabulary[word[:end]] = len(vocabulary)
    for number in range(len(vocabulary), shape["vocab_size"]):
        vocabulary[f"unused {number}"] = number
    bpe = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    tokenizer = Fast(
        tokenizer_object=bpe, bos_token=special[1], eos_token=special[2], pad_token=special[2],
        additional_special_tokens=special, chat_template=TEMPLATE,
    )  # fmt: skip
    torch.manual_seed(0)
    host: Any = LlamaForCausalLM(LlamaConfig(**shape))
    if device == "cuda":
        host.to(torch.bfloat16)
    host.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
