"""Video files, read with PyAV (the extra `video`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from eligo.config.bounds import check_count
from eligo.errors import InputError

MAX_FRAMES = 1024
"""Frames of a clip; and the most that `open_clip` keeps in memory."""
_MAX_PACKETS = 1_000_000


@dataclass(frozen=True)
class Clip:
    """Frames of a video and when they are shown."""

    frames: tuple[Image.Image, ...]
    seconds: tuple[float, ...]
    """Time of each frame, ascending."""

    @property
    def fps(self) -> float:
        """Frames per second, on average; 1 for a single frame."""
        span = self.seconds[-1] - self.seconds[0]
        return (len(self.seconds) - 1) / span if span > 0 else 1.0


def open_clip(path: str | Path, num_frames: int = 16) -> Clip:
    """Read up to `num_frames` frames of a video file, evenly spaced from first to last.

    >>> open_clip("clip.mp4", 8).fps  # doctest: +SKIP
    """
    check_count("num_frames", num_frames)
    if num_frames > MAX_FRAMES:
        raise InputError(f"got {num_frames} frames, expected at most {MAX_FRAMES}")
    path = Path(path)
    with _opened(path) as (container, stream):
        times = sorted({packet.pts for packet in _packets(container, stream, path)})
    if not times:
        raise InputError(f"{path}: has no frames")
    count = min(num_frames, len(times))
    chosen = {times[number * (len(times) - 1) // max(count - 1, 1)] for number in range(count)}
    frames, seconds = [], []
    with _opened(path) as (container, stream):
        for frame in container.decode(stream):
            if frame.pts in chosen:
                frames.append(frame.to_image())
                seconds.append(float(frame.pts * stream.time_base))
            if len(frames) == len(chosen):
                break
    if not frames:
        raise InputError(f"{path}: no frame could be decoded")
    return Clip(tuple(frames), tuple(seconds))


def _packets(container: Any, stream: Any, path: Path) -> Iterator[Any]:
    for number, packet in enumerate(container.demux(stream)):
        if number == _MAX_PACKETS:
            raise InputError(f"{path}: has more than {_MAX_PACKETS} frames; cut it first")
        if packet.pts is not None:
            yield packet


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open a file and its first video stream; errors of the decoder are one line."""
    try:
        import av
        import av.error
    except ImportError:
        raise InputError(
            "videos need PyAV, which is not installed: pip install 'eligo[video]'"
        ) from None
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise InputError(f"{path}: has no video stream")
            yield container, container.streams.video[0]
    except (av.error.FFmpegError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a video ({error})") from None
