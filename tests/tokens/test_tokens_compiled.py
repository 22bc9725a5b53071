"""Compiled layers train as plain ones do, and leave no trace."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from photo_parts import make_all
from test_device_syncs import Syncs
from torch import Tensor
from torch._dynamo.utils import counters

from eligo.tokens.config import FinetuneConfig
from eligo.tokens.data.conversations import PackedBatch
from eligo.tokens.hosts import host_of
from eligo.tokens.training import compiled
from eligo.tokens.training.finetune import FinetuneTask
from eligo.train import Progress, fit

FIRST = Progress(0, 1)


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> Path:
    return make_all(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(autouse=True)
def _no_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile on the CPU, too, but run the graphs as they are."""
    monkeypatch.setitem(compiled.BACKENDS, "cpu", "aot_eager")


def num_graphs() -> int:
    return counters["stats"]["unique_graphs"]


def config_of(parts: Path, out: Path, **changes: Any) -> FinetuneConfig:
    photos = parts / "photos"
    config = FinetuneConfig(
        host={"model": str(parts / "host")},
        data={
            "images": photos / "images",
            "questions": photos / "questions.jsonl",
            "captions": photos / "captions.json",
        },
        lora={"rank": 4, "alpha": 8, "dropout": 0.1},
        epochs=None,
        compile=True,
    )
    sizes = {
        "train.out": out, "train.batch_size": 6, "train.evaluate_every": 2,
        "train.checkpoint_every": 2, "train.log_every": 1, "train.total_steps": 4,
    }  # fmt: skip
    return config.replace(sizes | changes)


def task_of(config: FinetuneConfig) -> FinetuneTask:
    task = FinetuneTask(config)
    task.to(torch.device("cpu"))
    torch.manual_seed(7)
    with torch.no_grad():
        for layer in task.adapter.values():
            layer["b"].weight.normal_(std=0.1)  # LoRA starts as the identity
    return task


def batches_of(task: FinetuneTask) -> list[PackedBatch]:
    """Return batches of different sizes and lengths."""
    found = []
    for count, rows in ((1, 3), (2, 6), (3, 2)):
        torch.manual_seed(count)
        task.training.caption_prompt = " ".join(["describe the picture."] * count)
        found.append(task.training.collate([task.training[row] for row in range(rows)]))
    assert len({batch.input_ids.shape[1] for batch in found}) == 3
    return found


def run(task: FinetuneTask, batch: PackedBatch) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(0)
    loss = task.step(batch, FIRST).losses["answer"]
    parameters = [p for part in task.modules.values() for p in part.parameters()]
    return loss.detach(), list(torch.autograd.grad(loss, parameters))


def test_one_graph_serves_all_layers_and_lengths(parts: Path, tmp_path, on_a_cpu):
    """Losses and gradients are those of the plain layers, dropout included."""
    plain = task_of(config_of(parts, tmp_path, compile=False))
    task = task_of(config_of(parts, tmp_path))
    names = list(task.model.state_dict())
    expected = [run(plain, batch) for batch in batches_of(plain)]
    assert num_graphs() == 0
    found = [run(task, batch) for batch in batches_of(task)]
    assert task.compiled.is_on
    assert num_graphs() == 1
    assert sum(counters["graph_break"].values()) == 0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert list(task.model.state_dict()) == names


def test_evaluation_needs_no_graph_and_merging_leaves_none(parts: Path, tmp_path, on_a_cpu):
    task = task_of(config_of(parts, tmp_path))
    run(task, batches_of(task)[0])
    for part in task.modules.values():
        part.eval()
    with torch.no_grad():
        metrics = task.evaluate()
    assert num_graphs() == 1
    model = task.merge()
    assert host_of(model).layers[0]._compiled_call_impl is None  # host_of refuses compiled models
    plain = task_of(config_of(parts, tmp_path, compile=False))
    plain.adapter.load_state_dict(task.adapter.state_dict())
    for part in plain.modules.values():
        part.eval()
    with torch.no_grad():
        assert plain.evaluate() == metrics


def test_a_compiled_run_resumes_exactly(parts: Path, tmp_path, on_a_cpu):
    """The trial uses up no random numbers and leaves no gradients."""
    whole, broken = (
        config_of(parts, tmp_path, **{"train.name": name}) for name in ("whole", "broken")
    )
    fit(FinetuneTask(whole), whole.train)
    fit(FinetuneTask(broken), broken.train, on_evaluate=lambda *_: True)
    assert num_graphs() == 1  # graphs outlive their models
    result = fit(FinetuneTask(broken), broken.train, resume=True)
    assert result.last_step == 4
    plain = config_of(parts, tmp_path, **{"train.name": "plain", "compile": False})
    fit(FinetuneTask(plain), plain.train)
    losses = {name: losses_of(tmp_path / name) for name in ("whole", "broken", "plain")}
    assert losses["broken"] == losses["whole"]
    torch.testing.assert_close(torch.tensor(losses["plain"]), torch.tensor(losses["whole"]))
    weights = [(tmp_path / name / "last" / "adapter.safetensors").read_bytes()
               for name in ("whole", "broken")]  # fmt: skip
    assert weights[0] == weights[1]


def losses_of(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["loss/answer"] for row in rows if "loss/answer" in row]


@pytest.mark.parametrize("fails", ["forward", "backward"])
def test_where_compilation_fails_training_goes_on(
    parts: Path, tmp_path, monkeypatch, caplog, fails: str
):
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def fail(*_: Any) -> Any:
        raise RuntimeError("no C compiler\nsecond line")

    def pass_on(graph: Any, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    compilers = {"fw_compiler": pass_on, "bw_compiler": pass_on} | {f"{fails[0]}w_compiler": fail}
    monkeypatch.setitem(compiled.BACKENDS, "cpu", aot_autograd(**compilers))
    plain = task_of(config_of(parts, tmp_path, compile=False))
    task = task_of(config_of(parts, tmp_path))
    with caplog.at_level(logging.WARNING, logger="eligo"):
        found = [run(task, batch) for batch in batches_of(task)]
    messages = [text for text in caplog.messages if text.startswith("compile:")]
    assert len(messages) == 1
    assert "no C compiler" in messages[0]
    assert "second line" not in messages[0]
    assert not task.compiled.is_on
    for one, batch in zip(found, batches_of(plain), strict=True):
        torch.testing.assert_close(one, run(plain, batch))


def test_a_cpu_does_not_compile(parts: Path, tmp_path):
    task = task_of(config_of(parts, tmp_path))
    run(task, batches_of(task)[0])
    assert not task.compiled.is_on
    assert host_of(task.model)


def test_labels_are_found_before_the_batch_is_moved(parts: Path, tmp_path):
    """To search for them on a GPU would stop the queue of kernels."""
    task = task_of(config_of(parts, tmp_path))
    batch = batches_of(task)[0]
    assert batch.labels.flatten()[batch.learned].equal(batch.labels[batch.labels != -100])
    with Syncs() as syncs:
        output = task.step(batch, FIRST)
        (output.losses["answer"] * output.weight).backward()
    assert not {"nonzero", "masked_select"} & set(syncs.found)


@pytest.mark.gpu
def test_layers_compile_on_a_gpu(parts: Path, tmp_path):
    config = config_of(parts, tmp_path, **{"train.precision": "bf16", "host.dtype": "bfloat16"})
    task = FinetuneTask(config)
    fit(task, config.train)
    assert task.compiled.is_on
