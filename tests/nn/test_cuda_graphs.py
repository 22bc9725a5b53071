"""CUDA graphs: when they are recorded, dropped and left out; on a GPU, their results."""

import threading

import pytest
import torch
from torch import Tensor

from eligo.nn import cuda_graphs
from eligo.nn.cuda_graphs import GraphedFunction


class Replay:
    """In place of a graph: copies the inputs, calls the function again, copies the outputs."""

    def __init__(self, function, inputs, recorder, keep) -> None:
        self.function, self.inputs, self.kept = function, [x.clone() for x in inputs], keep()

    def __call__(self, inputs):
        for ours, given in zip(self.inputs, inputs, strict=True):
            ours.copy_(given)
        return tuple(x.clone() for x in self.function(*self.inputs))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of recorded graphs; the CPU stands in for a GPU."""
    shapes: list[torch.Size] = []

    def record(function, inputs, recorder, keep) -> Replay:
        shapes.append(inputs[0].shape)
        return Replay(function, inputs, recorder, keep)

    monkeypatch.setattr(cuda_graphs, "_Graph", record)
    monkeypatch.setattr(cuda_graphs, "CudaRecorder", lambda device: device)
    monkeypatch.setattr(cuda_graphs, "_on_one_gpu", lambda inputs: True)
    return shapes


def double(x: Tensor) -> tuple[Tensor, ...]:
    return (2 * x,)


def test_shapes_are_recorded_at_their_second_call(recorded: list[torch.Size]):
    function = GraphedFunction(double, max_graphs=2)
    for size, known in [(3, 0), (3, 1), (3, 1), (4, 1), (4, 2), (3, 2), (5, 2), (5, 3), (4, 4)]:
        x = torch.randn(size)
        assert torch.equal(function(x)[0], 2 * x)
        assert len(recorded) == known
    assert [tuple(shape) for shape in recorded] == [(3,), (4,), (5,), (4,)]  # 4 was dropped
    function.forget()
    function(torch.randn(4))
    assert len(recorded) == 4


@pytest.mark.usefixtures("recorded")
def test_results_keep_their_values():
    function = GraphedFunction(double)
    inputs = [torch.full((2,), float(value)) for value in range(4)]
    outputs = [function(x)[0] for x in inputs]
    assert [out.tolist() for out in outputs] == [[0, 0], [2, 2], [4, 4], [6, 6]]


def test_a_failed_recording_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, recorded: list[torch.Size]
):
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory\nmore")

    monkeypatch.setattr(cuda_graphs, "_Graph", fail)
    function = GraphedFunction(double)
    for _ in range(4):
        assert function(torch.ones(2))[0].tolist() == [2, 2]
    assert [record.getMessage() for record in caplog.records] == [
        "a CUDA graph could not be recorded (out of memory); running without it"
    ]
    assert not recorded


def test_nothing_is_recorded_on_a_cpu():
    function = GraphedFunction(lambda x, y: (x + 1, y))
    for _ in range(3):
        found = function(torch.ones(2, requires_grad=True), None)
        assert found[0].tolist() == [2, 2]
        assert not found[0].requires_grad
        assert found[1] is None
    assert function.memory() == {"graphs": 0, "bytes": 0}


def _share_among_threads(function: GraphedFunction, device: str) -> None:
    wrong: list[int] = []

    def work(value: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else torch.no_grad():
            for step in range(20):
                x = torch.full((1000 + value % 2,), float(value + step), device=device)
                if not torch.equal(function(x)[0], 2 * x):
                    wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.usefixtures("recorded")
def test_threads_share_a_function():
    _share_among_threads(GraphedFunction(double), "cpu")


@pytest.mark.gpu
def test_threads_share_a_function_on_a_gpu():
    function = GraphedFunction(double)
    for size in (1000, 1001):  # recorded before: kernels of other threads may end a recording
        for _ in range(2):
            function(torch.ones(size, device="cuda"))
    _share_among_threads(function, "cuda")


@pytest.mark.gpu
def test_a_failed_recording_leaves_stream_and_generator_as_they_were():
    function = GraphedFunction(lambda x: (x * x.sum().item(),))  # waits for the device
    before = torch.cuda.current_stream()
    for _ in range(3):
        assert function(torch.ones(2, device="cuda"))[0].tolist() == [2, 2]
        assert torch.cuda.current_stream() == before
        torch.randn(1, device="cuda")  # the generator is usable


@pytest.mark.gpu
def test_graphs_on_a_gpu():
    """Results are those of eager mode, of every shape, without a synchronisation."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8, device="cuda")
    function = GraphedFunction(lambda x, y: (layer(x).relu(), None if y is None else x * y))
    for _ in range(2):
        for size in (3, 5):
            function(torch.randn(size, 8, device="cuda"), None)
            function(*torch.randn(2, size, 8, device="cuda"))
    assert function.memory()["graphs"] == 4
    assert function.memory()["bytes"] > 0
    torch.cuda.set_sync_debug_mode("error")
    try:
        pairs = []
        for size in (5, 3, 5):
            x, y = torch.randn(2, size, 8, device="cuda")
            pairs += [(function(x, y), (layer(x).relu(), x * y))]
            pairs += [(function(x, None), (layer(x).relu(), None))]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for found, expected in pairs:
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert torch.equal(ours, theirs)
    function.forget()
    assert function.memory() == {"graphs": 0, "bytes": 0}
