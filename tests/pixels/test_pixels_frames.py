"""Frames in memory: arrays and tensors, batches, streams; the same result as `predict`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eligo.errors import InputError
from eligo.pixels import InputsConfig, Segmenter, predict, read_frames
from eligo.pixels.inference import frames

METRES = InputsConfig(depth="metric", depth_scale=1)
WORDS = [["wall", "red ball"], [], ["floor"]]


@pytest.fixture(scope="module")
def segmenter() -> Segmenter:
    return Segmenter.from_pretrained()


@pytest.fixture
def rgb() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (3, 48, 64, 3), dtype=np.uint8)


@pytest.fixture
def depth() -> np.ndarray:
    """Metres; a tenth is unknown."""
    values = np.random.default_rng(1).uniform(0.5, 6, (3, 48, 64)).astype(np.float32)
    values[values < 1] = 0
    values[0, 0, 0] = np.nan
    return values


def test_frames_are_segmented_as_by_predict(
    segmenter: Segmenter, rgb: np.ndarray, depth: np.ndarray
):
    """One frame, a batch with different words, and a stream."""
    one = segmenter.segment(rgb[0], depth[0], WORDS[0], inputs=METRES)
    batch = segmenter.segment(rgb, depth, WORDS, inputs=METRES)
    stream = list(segmenter.segment_stream(zip(rgb, depth, strict=True), WORDS[0], inputs=METRES))
    alone = [
        predict(image, z, words, model=segmenter, inputs=METRES)
        for image, z, words in zip(rgb, depth, WORDS, strict=True)
    ]
    for found in (one, stream[0]):
        assert torch.equal(found.labels, alone[0].labels)
        assert torch.equal(found.confidence, alone[0].confidence)
        assert torch.equal(found.tag_maps, alone[0].tag_maps)
        assert found.words == (tuple(WORDS[0]),)
    assert len(stream) == 3
    assert batch.words == tuple(map(tuple, WORDS))
    for number, expected in enumerate(alone):
        found = batch.frame(number)
        assert (found.labels == expected.labels).float().mean() > 0.999
        torch.testing.assert_close(found.confidence, expected.confidence, atol=1e-4, rtol=1e-4)
        assert int(found.word_mask.sum()) == len(WORDS[number])
    selection = one.selection()
    assert selection is not None
    assert torch.equal(selection.indices, alone[0].selection.indices[0])


def test_arrays_and_tensors_agree(segmenter: Segmenter, rgb: np.ndarray, depth: np.ndarray):
    expected = segmenter.segment(rgb[0], (depth[1] * 1000).astype(np.int32))
    pixels = torch.from_numpy(rgb[0]).permute(2, 0, 1)
    for image in (pixels, pixels.contiguous(), pixels / 255, rgb[0] / 255, rgb[0][::1, ::1]):
        for values in (
            (depth[1] * 1000).astype(np.uint16),
            torch.from_numpy(depth[1] * 1000).int(),
            (torch.from_numpy(depth[1]) * 1000).int().double(),
        ):
            found = segmenter.segment(image, values)
            assert torch.equal(found.labels, expected.labels)
            assert torch.equal(found.confidence, expected.confidence)


def test_size_and_stored_depth(segmenter: Segmenter, rgb: np.ndarray, tmp_path: Path):
    """Scaled frames keep the size of their labels; every format of depth is read as from files."""
    stored = np.random.default_rng(2).integers(0, 65535, (48, 64)).astype(np.uint16)
    for kind, values in {
        "sun16": stored,
        "metric": stored // 7,
        "png8": (stored >> 8).astype(np.uint8),
    }.items():
        inputs = InputsConfig(depth=kind)
        Image.fromarray(values).save(tmp_path / "depth.png")
        expected = predict(
            rgb[0], tmp_path / "depth.png", model=segmenter, inputs=inputs, size=(64, 96)
        )
        found = segmenter.segment(rgb[0], values, inputs=inputs, size=(64, 96))
        assert found.labels.shape == (48, 64)
        assert torch.equal(found.labels, expected.labels)
        assert torch.equal(found.confidence, expected.confidence)


def test_folder_as_a_stream(segmenter: Segmenter, rgb: np.ndarray, tmp_path: Path):
    for number, image in enumerate(rgb):
        for folder in ("rgb", "depth"):
            (tmp_path / folder).mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / "rgb" / f"{number}.png")
        np.save(tmp_path / "depth" / f"{number}.npy", np.full((48, 64), 1 + number))
    stream = read_frames(tmp_path / "rgb", tmp_path / "depth", inputs=METRES)
    found = list(segmenter.segment_stream(stream, "wall", inputs=METRES))
    for number, image in enumerate(rgb):
        expected = segmenter.segment(image, np.full((48, 64), 1 + number), "wall", inputs=METRES)
        assert torch.equal(found[number].labels, expected.labels)
    assert len(list(read_frames(tmp_path / "rgb"))) == 3
    (tmp_path / "depth" / "1.npy").unlink()
    with pytest.raises(InputError, match=r"no depth for 1\.png \(1 of 3 images\)"):
        next(read_frames(tmp_path / "rgb", tmp_path / "depth"))
    with pytest.raises(InputError, match="holds no images"):
        next(read_frames(tmp_path / "depth"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rgb": torch.zeros(48, 64, 3, dtype=torch.uint8)}, r"expected \(3, height, width\)"),
        ({"rgb": np.zeros((3, 48, 64), np.uint8)}, r"expected \(height, width, 3\)"),
        ({"rgb": np.zeros((48, 64, 3), np.int64)}, "got int64, expected uint8"),
        ({"rgb": np.full((48, 64, 3), 2.0)}, "floats outside 0 to 1"),
        ({"rgb": np.zeros((16, 64, 3), np.uint8)}, "got 16 x 64 pixels, expected at least 32"),
        ({"depth": np.zeros((64, 48))}, r"got shape \(64, 48\), expected \(48, 64\)"),
        ({"depth": np.zeros((48, 64)), "inputs": InputsConfig(depth="png8")}, "expected 8 bits"),
        ({"depth": np.zeros((48, 64)), "inputs": InputsConfig(depth="sun16")}, "expected 16 bits"),
        ({"depth": np.zeros((48, 64)), "inputs": InputsConfig(depth="none")}, "without depth"),
        ({"tags": [["a"], ["b"]]}, "got 2 lists for 1 frames"),
        ({"tags": "a", "captions": "b"}, "expected one kind of words"),
        ({"size": (16, 64)}, "got 16 x 64, expected at least 32 x 32"),
    ],
)
def test_bad_frames_are_refused(segmenter: Segmenter, given: dict, message: str):
    frame = {"rgb": np.zeros((48, 64, 3), np.uint8)} | given
    with pytest.raises(InputError, match=message):
        segmenter.segment(**frame)


def test_words_are_encoded_once(segmenter: Segmenter, monkeypatch: pytest.MonkeyPatch):
    encoder = segmenter.encoder
    assert encoder is not None
    calls: list[int] = []
    encode = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda *a, **k: calls.append(0) or encode(*a, **k))
    frame = np.zeros((48, 64, 3), np.uint8)
    for _ in range(3):
        segmenter.segment(frame, tags="ring, cone")
    assert len(calls) == 1


def test_changed_weights_are_noticed(monkeypatch: pytest.MonkeyPatch):
    """The captured copy is made anew when weights were moved or changed in place."""
    segmenter = Segmenter.from_pretrained()
    made = []
    real = frames.frozen
    monkeypatch.setattr(frames, "frozen", lambda *a: made.append(0) or real(*a))
    first = segmenter.runner._graphed()
    assert segmenter.runner._graphed() is first
    segmenter.model.load_state_dict(segmenter.model.state_dict())
    second = segmenter.runner._graphed()
    assert second is not first
    with torch.no_grad():
        segmenter.model.encoder.stages[2].blocks[0].ffn.expand.weight.mul_(2)
    assert segmenter.runner._graphed() is not second
    assert len(made) == 3
    assert segmenter.runner.memory()["graphs"] == 0


def test_depth_in_another_unit_is_told_once(
    rgb: np.ndarray, depth: np.ndarray, caplog: pytest.LogCaptureFixture
):
    """The shipped model was trained with millimetres."""
    segmenter = Segmenter.from_pretrained()
    for _ in range(2):
        segmenter.segment(rgb, depth)
    (message,) = (r.getMessage() for r in caplog.records if r.name.startswith("eligo"))
    assert "depth: got everything within 0.3 m at 1000 units per metre" in message
    assert "inputs.depth_scale 1 for metres" in message


def test_arrays_that_cannot_be_written(
    segmenter: Segmenter, rgb: np.ndarray, depth: np.ndarray, recwarn: pytest.WarningsRecorder
):
    """As `np.asarray` makes of a PIL image."""
    expected = segmenter.segment(rgb, depth, inputs=METRES).labels
    rgb.flags.writeable = depth.flags.writeable = False
    assert torch.equal(segmenter.segment(rgb, depth, inputs=METRES).labels, expected)
    assert not [warning for warning in recwarn if "not writable" in str(warning.message)]


def test_padded_words_change_nothing(segmenter: Segmenter, rgb: np.ndarray):
    """What a captured frame gets: words padded to a multiple of eight, from the frozen copy."""
    text = segmenter.text(["wall", "red ball"])
    assert text is not None
    pixels = torch.from_numpy(rgb).permute(0, 3, 1, 2)
    settings = {"inputs": segmenter.config.inputs, "size": None, "dtype": torch.float32}
    vectors = torch.nn.functional.pad(text.embeddings, (0, 0, 0, 6)).expand(3, -1, -1)
    mask = torch.nn.functional.pad(text.mask, (0, 6)).expand(3, -1)
    labels, confidence, maps, real = segmenter.runner._graphed()(
        pixels, None, None, vectors, mask, **settings
    )
    expected = segmenter.segment(rgb, tags="wall, red ball")
    assert (labels == expected.labels).float().mean() > 0.999
    torch.testing.assert_close(confidence, expected.confidence, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(maps[:, :2], expected.tag_maps, atol=1e-4, rtol=1e-4)
    assert real.sum(1).tolist() == [2, 2, 2]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frames_on_a_gpu(rgb: np.ndarray, depth: np.ndarray, dtype: torch.dtype):
    """Captured frames agree with eager mode and (in float32) the CPU, without a synchronisation."""
    here = Segmenter.from_pretrained()
    fast = Segmenter.from_pretrained(device="cuda", dtype=dtype)
    slow = Segmenter.from_pretrained(device="cuda", dtype=dtype, graphs=False)
    image, z = torch.from_numpy(rgb).permute(0, 3, 1, 2).cuda(), torch.from_numpy(depth).cuda()
    for _ in range(2):  # recorded at the second call
        fast.segment(image, z, "wall, red ball", inputs=METRES)
    slow.segment(image, z, "wall, red ball", inputs=METRES)
    assert fast.runner.memory()["graphs"] == 1
    assert fast.runner.memory()["bytes"] > 0
    torch.cuda.set_sync_debug_mode("error")
    try:
        found, eager = (
            each.segment(image.flip(0), z.flip(0), "wall, red ball", inputs=METRES)
            for each in (fast, slow)
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")
    same = (found.labels == eager.labels).float().mean()
    assert same > (0.99 if dtype == torch.float32 else 0.9)
    if dtype == torch.float32:
        expected = here.segment(rgb[::-1], depth[::-1], "wall, red ball", inputs=METRES)
        assert (found.labels.cpu() == expected.labels).float().mean() > 0.99
    again = fast.segment(image.flip(0), z.flip(0), "wall, red ball", inputs=METRES)
    assert torch.equal(again.labels, found.labels)
    assert torch.equal(again.confidence, found.confidence)
