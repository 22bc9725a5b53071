"""`eligo explore [RUN]`: the explorer page of a run; `--live` serves models to try."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from eligo.cli.console import OutFile, print_result, print_text
from eligo.config.bounds import Bounds
from eligo.errors import InputError

_PORT = 8765
_DEMO = Path("runs/demo")


def run(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = _DEMO,
    out: OutFile | None = None,
    live: bool = False,
    model: str | None = None,
    port: Annotated[int, Bounds(0, 65535)] = _PORT,
    device: str = "auto",
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    json: bool = False,
) -> None:
    """Show what a run kept and dropped, its answers, and the cost.

    Writes one self-contained HTML file. With --live, serves the page on this machine instead, with
    the shipped models to try, or with --model your own photos, questions and vision-language model.

    Args:
        folder: A run's folder, or the folder of one record.
        out: The file to write; explore.html in the run's folder by default.
        live: Serve a page to try the models, instead of writing one.
        model: With --live, folder or hub name of a vision-language model, to try training-free
            methods on it.
        port: The port of --live, on this machine only; 0: any free port.
        device: Where --live runs its models: auto, cpu or cuda.
        dtype: Data type of the weights of --model.
        json: Print one JSON document.
    """
    if live:
        if out is not None or folder != _DEMO or json:
            raise InputError("--live shows no run and writes no file; leave out RUN, --out, --json")
        from eligo.cli.explorer.live import serve

        if model is None and dtype != "float32":
            raise InputError("--dtype: only --model uses it")
        serve(port=port, device=device, model=model, dtype=dtype)
        return
    if port != _PORT or device != "auto" or model is not None or dtype != "float32":
        raise InputError("--model, --port, --device and --dtype: only --live uses them")
    from eligo.explorer.export import export_run
    from eligo.explorer.folder import find_records

    out = folder / "explore.html" if out is None else out
    count = len(find_records(folder))
    written = export_run(folder, out)
    if json:
        print_result({"page": written, "records": count}, json=True)
        return
    print_text(f"{count} record{'s' if count > 1 else ''}, written: {written}")
