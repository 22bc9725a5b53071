"""`python -m benchmarks.shots.photos`: examples for questions on photos, chosen and answered.

    embed ──> teach (48 nearest, 1 shot) ──> train (3 seeds) ──> measure (test, once) ──> summary

A language model answers questions about photos that it gets as text (photos_data.py). Every stage
keeps its results in `--out`, so a second run computes only what is missing. Simple selectors choose
from the whole pool; MMR's balance is the best of ten on taught queries. Only `teach` and `measure`
need a GPU, and only `embed` the encoder.
"""

import json as json_module
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import Field

from benchmarks.shots.photos_data import Set, read_questions
from benchmarks.shots.photos_summary import print_summary, summarise
from benchmarks.studies import print_study, read_finished, study_folder
from eligo.cli import run_script
from eligo.cli.console import print_text
from eligo.config import Config, load_config
from eligo.config.bounds import Seed, Whole
from eligo.errors import InputError
from eligo.io.files import kept_json, write_text
from eligo.pretrained.devices import resolve_device
from eligo.report.provenance import provenance
from eligo.shots.baselines import MMR
from eligo.shots.baselines.mmr import LAMBDAS
from eligo.shots.config import SamplerConfig, ShotsHostConfig, ShotsTrainConfig, TeachConfig
from eligo.shots.data.items import answers_of
from eligo.shots.data.query import Query
from eligo.shots.data.records import Record, encode_record
from eligo.shots.hosts.generator import HostGenerator
from eligo.shots.hosts.load import load_reader
from eligo.shots.hosts.scorer import HostScorer
from eligo.shots.inference.embed import ABOUT, embed, open_embedded
from eligo.shots.inference.encoders import open_encoder
from eligo.shots.inference.evaluate import (
    Lists,
    answer_lists,
    score_lists,
    simple_selectors,
)
from eligo.shots.inference.load import load_pipeline
from eligo.shots.model.pretrained import load_pointer
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import Sampler
from eligo.shots.teacher.run import teach
from eligo.shots.training.task import record_metrics
from eligo.shots.training.train import read_taught, train_selector
from eligo.vqa import vqa_accuracy

Part = Literal["embed", "teach", "train", "measure"]
_CONFIG = Path(__file__).with_name("photos.yaml")
_TUNED_ON = 200  # taught queries that choose MMR's balance
_MEASURED, _TRAINED = "measured.json", "result.json"


class PhotosConfig(Config):
    """Settings of `python -m benchmarks.shots.photos`."""

    task: Literal["shots.photos"] = "shots.photos"
    """Kind of this config."""
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2), min_length=1)
    """Every variant is trained once with each seed."""
    num_examples: Whole = 3000
    """Examples in the pool."""
    num_taught: Whole = 3000
    """Queries that the teacher labels for training."""
    num_tested: Whole = 1000
    """Queries of the test split."""
    candidates: Whole = 48
    """Nearest examples that the teacher tries and a learned selector chooses from."""
    shots: tuple[Whole, ...] = (1, 4)
    """Numbers of examples in a prompt."""
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict, min_length=1)
    """Changes of `shots/v1` for each trained selector, by dotted key."""
    things: tuple[str, ...] = ()
    """Names of the labels of NYUv2, from 1 on."""
    unnamed: tuple[str, ...] = ()
    """Things that are left out of a prompt."""


class Study:
    """One set of questions: its stages and their files."""

    def __init__(self, config: PhotosConfig, folder: Path, host: str, device: str) -> None:
        self.config, self.folder = config, folder
        self.host = ShotsHostConfig(model=host, device=device)
        self.sampler = SamplerConfig(kind="text", num_candidates=config.candidates)

    def embedded(self, part: str) -> tuple[Pool, Pool]:
        """Return pool and queries, `taught` or `tested`."""
        pool, queries, _ = open_embedded(self.folder / "embedded" / part)
        return pool, queries

    def embed(self, name: Set, encoder: str, device: str, **files: Any) -> None:
        """Embed both sets of queries with the same examples, unless that is done."""
        parts = ("taught", "tested")
        folders = {part: self.folder / "embedded" / part for part in parts}
        if all((folder / ABOUT).is_file() for folder in folders.values()):
            return
        config = self.config
        sizes = (config.num_examples, config.num_taught, config.num_tested)
        questions = read_questions(
            name, sizes=sizes, things=config.things, unnamed=config.unnamed, **files
        )
        model = open_encoder(encoder, device)
        for part in parts:
            asked = getattr(questions, part)
            embed(folders[part], questions.examples, asked, model, name=encoder)

    def teach(self) -> None:
        """Score every candidate of every query as the only example; continues an unfinished run."""
        for part in ("taught", "tested"):
            settings = TeachConfig(
                data=self.folder / "embedded" / part, out=self.folder / "scores" / part,
                sampler=self.sampler, host=self.host, shots=1, beam=1, shard_size=64,
                check_data=False,
            )  # fmt: skip
            teach(settings)

    def train(self) -> None:
        """Train every variant with every seed, unless that is done."""
        for name, changes in self.config.variants.items():
            for seed in self.config.seeds:
                settings = load_config(
                    ShotsTrainConfig,
                    "shots/v1",
                    {
                        **changes, "train.seed": seed, "train.out": self.folder / "selectors",
                        "train.name": f"{name}_{seed}",
                        "data.path": self.folder / "scores" / "taught",
                        "data.embedded": self.folder / "embedded" / "taught",
                    },
                )  # fmt: skip
                mark = self.run_folder(name, seed) / _TRAINED
                record = settings.model_dump(mode="json", exclude={"train": {"out"}, "data": True})
                if read_finished(mark, record) is None:
                    fitted = train_selector(settings, resume=True)
                    result = {"config": record, "best": fitted.best, "step": fitted.best_step}
                    write_text(mark, json_module.dumps(result) + "\n")

    def run_folder(self, name: str, seed: int) -> Path:
        """Return the folder of a training."""
        return self.folder / "selectors" / f"{name}_{seed}"

    def measure(self) -> dict[str, Any]:
        """Return what every method reaches on every tested query; computed once."""
        key = self.config.model_dump(mode="json")
        return kept_json(self.folder / _MEASURED, key, self._measure)

    def _measure(self) -> dict[str, Any]:
        pool, queries = self.embedded("tested")
        taught = read_taught(self.folder / "scores" / "tested", self.folder / "embedded" / "tested")
        asked = [record.query for record in taught.records]  # those that can be scored
        reader = load_reader(self.host)
        balance = self._best_balance(reader, pool)
        lists = self._lists(pool, asked, balance)
        logprobs = score_lists(HostScorer(reader, pool, queries), asked, lists)
        answers = answer_lists(HostGenerator(reader, pool, queries), asked, lists)
        assert queries.payload is not None
        rows = queries.rows([query.id for query in asked]).tolist()
        known = [answers_of(queries.payload[row]) for row in rows]
        accuracies = {
            key: [vqa_accuracy(*pair) for pair in zip(said, known, strict=True)]
            for key, said in answers.items()
        }
        return {
            "frames": [query.group for query in asked],
            "balance": balance,
            "logprob": _named(logprobs),
            "accuracy": _named(accuracies),
            "nearby": self._nearby(pool, taught.records),
        }

    def _best_balance(self, reader: Any, pool: Pool) -> float:
        """Return MMR's lambda with the likeliest answers on taught queries, at the most shots."""
        _, queries = self.embedded("taught")
        asked = queries.queries()[:_TUNED_ON]
        shots = max(self.config.shots)
        lists: Lists = {
            (str(balance), shots): MMR(balance=balance).with_pool(pool).picks(asked, shots)
            for balance in LAMBDAS
        }
        scorer = HostScorer(reader, pool, queries)
        values = score_lists(scorer, asked, lists)
        best = max(values, key=lambda key: sum(values[key]))
        return float(best[0])

    def _lists(self, pool: Pool, asked: Sequence[Query], balance: float) -> Lists:
        """Return the examples of every method for every query and number of shots."""
        most = max(self.config.shots)
        chosen = {
            name: selector.picks(asked, most)
            for name, selector in simple_selectors(pool, balance).items()
        }
        sampler = Sampler(pool, self.sampler)
        candidates = [sampler.names(query) for query in asked]
        for name in self.config.variants:
            for seed in self.config.seeds:
                selector = load_pipeline(self.run_folder(name, seed)).selector.with_pool(pool)
                chosen[f"{name}_{seed}"] = [
                    pool.picked(selector.select(query, most, candidates=names))
                    for query, names in zip(asked, candidates, strict=True)
                ]
        lists: Lists = {("none", 0): [[] for _ in asked]}
        for count in self.config.shots:
            lists |= {
                (name, count): [names[:count] for names in picks] for name, picks in chosen.items()
            }
        return lists

    def _nearby(self, pool: Pool, records: Sequence[Record]) -> dict[str, Any]:
        """Return NDCG and the teacher's score of the first pick among the nearest candidates."""
        encoded = [encode_record(record, pool, self.config.candidates) for record in records]
        scores = [record.step_scores[0] for record in encoded if record.step_scores is not None]
        cosines = [pool.vectors[record.rows] @ record.query for record in encoded]
        found: dict[str, Any] = {
            "nearest": [float(s[c.argmax()]) for s, c in zip(scores, cosines, strict=True)],
            "best": [float(s.max()) for s in scores],
        }
        for name in self.config.variants:
            for seed in self.config.seeds:
                model = load_pointer(self.run_folder(name, seed) / "best")
                values = record_metrics(model, encoded, pool)
                with torch.no_grad():
                    picks = [
                        int(model.predict(e.query[None], pool.vectors[e.rows][None], shots=1)
                            .predictions[0, 0])
                        for e in encoded
                    ]  # fmt: skip
                found[f"{name}_{seed}"] = [float(s[p]) for s, p in zip(scores, picks, strict=True)]
                found[f"ndcg {name}_{seed}"] = values["ndcg"].nan_to_num(1.0).tolist()
        return found


def run(
    config: Annotated[PhotosConfig, str(_CONFIG)],
    *,
    daquar: Path | None = None,
    labels: Path | None = None,
    questions: Path | None = None,
    captions: Path | None = None,
    host: str = "HuggingFaceTB/SmolLM2-135M-Instruct",
    encoder: str = "sentence-transformers/all-MiniLM-L6-v2",
    out: Path = Path("runs/shots_photos"),
    only: tuple[Set, ...] = get_args(Set),
    part: Part | None = None,
    device: str = "auto",
    quick: bool = False,
    json: bool = False,
) -> None:
    """Embed, teach, train and measure on each set of questions, and compare.

    Args:
        daquar: DAQUAR as JSON lines: id, image, question, answer, split.
        labels: Folder of NYUv2's labels, for `things`: IMAGE.png, classes of NYU40.
        questions: Questions on Flickr8k's photos, in the same form, for `captions`.
        captions: Captions of Flickr8k in Karpathy's form.
        host: Folder or hub name of the language model that answers.
        encoder: Folder or hub name of the text encoder.
        out: The folder to write to; finished stages in it are not repeated.
        only: The sets: daquar, things, captions.
        part: Stop after this stage: embed, teach, train or measure.
        device: Where host and encoder run: auto, cpu or cuda.
        quick: A quick test on a CPU, in a folder `quick` inside; its numbers are meaningless.
        json: Print one JSON document.
    """
    if quick:
        few = {"num_examples": 40, "num_taught": 24, "num_tested": 8, "candidates": 6}
        short = {"train.num_epochs": 2, "train.min_steps": 4}
        variants = {name: changes | short for name, changes in config.variants.items()}
        config = config.replace({**few, "seeds": config.seeds[:2], "variants": variants})
    out = study_folder(out, quick)
    stages = get_args(Part)[: 4 if part is None else get_args(Part).index(part) + 1]
    found: dict[str, Mapping[str, Any]] = {}
    for name in only:
        study = Study(config, out / name, host, device)
        path = questions if name == "captions" else daquar
        if path is None and not (study.folder / "embedded" / "tested" / ABOUT).is_file():
            flag = "--questions" if name == "captions" else "--daquar"
            raise InputError(f"{name}: give its questions ({flag}), or leave it out with --only")
        files = {"path": path, "labels": labels, "captions": captions}
        study.embed(name, encoder, device, **files)
        if "teach" in stages:
            study.teach()
        if "train" in stages:
            study.train()
        if "measure" in stages:
            found[name] = study.measure()
    if not found:
        print_text(f"done: {stages[-1]} of {', '.join(only)}")
        return
    summary = summarise(found, list(config.variants), config.seeds, config.shots)
    document = provenance(str(resolve_device(device))) | {"quick": quick} | summary
    document["config"] = config.model_dump(mode="json")
    written = write_text(out / "photos.json", json_module.dumps(document, indent=1) + "\n")
    print_study(summary, print_summary, written, quick=quick, json=json)


def _named(values: Mapping[tuple[str, int], Sequence[float]]) -> dict[str, list[float]]:
    return {f"{name} {shots}": [round(v, 5) for v in row] for (name, shots), row in values.items()}


if __name__ == "__main__":
    raise SystemExit(run_script(run))
