"""Records on disk: `Selection` files, pictures, and a JSON file that refers to them.

    RUN/explore/<name>/record.json  stage_00.safetensors ...  picture_00.png ...

Any program may write such a folder.
"""

from pathlib import Path
from typing import Literal

from PIL import Image
from pydantic import BaseModel, ConfigDict, ValidationError

from eligo.errors import InputError
from eligo.explorer.record import Answer, ExplorerRecord, Grid, Item, Key, Stage
from eligo.io.files import make_folder, remove_file, write_text, writing
from eligo.selection import Selection

FORMAT = "eligo.record.v1"
FOLDER = "explore"
_FILE = "record.json"
RECORD_FILES = (_FILE, "picture_*.png", "stage_*.safetensors")
"""File patterns that `save_record` writes."""
_MOST_PIXELS = 64_000_000
_FORMATS = ("PNG", "JPEG", "WEBP")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _OverGrid(_Strict):
    grid: Grid


class _OverItems(_Strict):
    items: tuple[Item, ...]


class _StageFile(_Strict):
    name: str
    selection: str
    """File name of the `Selection`, in the same folder."""
    over: _OverGrid | _OverItems
    rows: tuple[str, ...] = ()
    layer: int | None = None
    candidates: tuple[int, ...] | None = None
    note: str = ""


class _RecordFile(_Strict):
    """The content of `record.json`: an `ExplorerRecord` with file names in place of data."""

    format: Literal["eligo.record.v1"] = FORMAT
    title: str
    kind: str
    query: str
    pictures: dict[str, str] = {}
    legends: dict[str, tuple[Key, ...]] = {}
    stages: tuple[_StageFile, ...] = ()
    answers: tuple[Answer, ...] = ()
    cost: dict[str, str] = {}
    note: str = ""


def save_record(record: ExplorerRecord, folder: str | Path) -> Path:
    """Save a record. The JSON file is written last, so a folder that has one is complete."""
    folder = make_folder(Path(folder))
    remove_file(folder / _FILE)  # of an older record
    pictures = {}
    for number, (name, picture) in enumerate(record.pictures.items()):
        pictures[name] = f"picture_{number:02d}.png"
        with writing(folder / pictures[name]) as temporary:
            picture.save(temporary, "PNG")
    stages = []
    for number, stage in enumerate(record.stages):
        file = f"stage_{number:02d}.safetensors"
        stage.selection.save(folder / file)
        over = stage.over
        stages.append(
            _StageFile(
                name=stage.name,
                selection=file,
                over=_OverGrid(grid=over) if isinstance(over, Grid) else _OverItems(items=over),
                rows=stage.rows,
                layer=stage.layer,
                candidates=stage.candidates,
                note=stage.note,
            )
        )
    content = _RecordFile(
        title=record.title,
        kind=record.kind,
        query=record.query,
        pictures=pictures,
        legends=dict(record.legends),
        stages=tuple(stages),
        answers=record.answers,
        cost=dict(record.cost),
        note=record.note,
    )
    return write_text(folder / _FILE, content.model_dump_json(indent=1) + "\n")


def save_prediction(record: ExplorerRecord, out: str | Path) -> Path:
    """Save the record of one prediction where `eligo explore OUT` finds it."""
    return save_record(record, Path(out) / FOLDER / "prediction")


def load_record(folder: str | Path) -> ExplorerRecord:
    """Load a record."""
    path = Path(folder) / _FILE
    try:
        content = _RecordFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{path}: {where}: {first['msg']} (format {FORMAT})") from None
    stages = tuple(_stage(path.parent, stage) for stage in content.stages)
    pictures = {
        name: _picture(_inside(path.parent, file)) for name, file in content.pictures.items()
    }
    try:
        return ExplorerRecord(
            title=content.title,
            kind=content.kind,
            query=content.query,
            stages=stages,
            pictures=pictures,
            legends=content.legends,
            answers=content.answers,
            cost=content.cost,
            note=content.note,
        )
    except InputError as error:  # the files do not fit together
        raise InputError(f"{path}: {error}") from None


def find_records(run: str | Path) -> list[Path]:
    """Return the record folders in a run, in its `explore` folder, or the folder of one record."""
    run = Path(run)
    if not run.is_dir():
        raise InputError(f"{run}: no such folder; expected the folder of a run")
    if (run / _FILE).is_file():
        return [run]
    inner = run / FOLDER if (run / FOLDER).is_dir() else run
    folders = sorted(path.parent for path in inner.glob(f"*/{_FILE}"))
    if not folders:
        raise InputError(
            f"{run}: has no records (expected {FOLDER}/*/{_FILE}); `eligo demo` and "
            "the `predict` of all four families write such folders"
        )
    return folders


def _stage(folder: Path, stage: _StageFile) -> Stage:
    return Stage(
        name=stage.name,
        selection=Selection.load(_inside(folder, stage.selection)),
        over=stage.over.grid if isinstance(stage.over, _OverGrid) else stage.over.items,
        rows=stage.rows,
        layer=stage.layer,
        candidates=stage.candidates,
        note=stage.note,
    )


def _inside(folder: Path, name: str) -> Path:
    """Return the path of a file in the folder; names that lead elsewhere are refused."""
    path = folder / name
    if Path(name).name != name or "\0" in name or path.is_symlink():
        raise InputError(f"{folder / _FILE}: got file {name!r}, expected one beside it")
    return path


def _picture(path: Path) -> Image.Image:
    try:
        # Only these formats: Pillow runs programs for others, such as EPS.
        with Image.open(path, formats=_FORMATS) as picture:
            if picture.width * picture.height > _MOST_PIXELS:
                raise InputError(
                    f"{path}: got a picture of {picture.width} x {picture.height}, expected at "
                    f"most {_MOST_PIXELS:,} pixels"
                )
            return picture.convert("RGB")
    except InputError:
        raise
    except Exception as error:  # decoders raise many errors on damaged files
        raise InputError(f"{path}: cannot be read as a picture ({error})") from None
