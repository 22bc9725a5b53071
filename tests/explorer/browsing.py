"""A tab of headless Chromium that records page errors and console warnings."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from limits import REPLY_SECONDS

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_chromium() -> str:
    """Path of an installed Chromium; skips the test if there is none."""
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip(f"no Chromium on this machine (looked for {', '.join(NAMES)})")
    return found


@contextmanager
def browsing() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright (extra: test)")
    path = find_chromium()
    with sync_api.sync_playwright() as playwright:
        # Without the sandbox: containers of continuous integration run as root.
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"], timeout=1000 * REPLY_SECONDS
        )
        yield browser
        browser.close()


class Visit:
    """A tab: `look` is the Playwright page, `problems` its errors and console warnings."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(
            **({"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | options)
        )
        self.context.set_default_timeout(1000 * REPLY_SECONDS)
        self.look = self.context.new_page()
        self.problems: list[str] = []
        self.look.on("pageerror", lambda error: self.problems.append(str(error)))
        self.look.on(
            "console",
            lambda message: (
                message.type in ("error", "warning") and self.problems.append(message.text)
            ),
        )

    def open(self, path: Path, place: str = "") -> Any:
        self.look.goto(f"{path.as_uri()}{place}")
        return self.look

    def text(self, selector: str) -> str:
        """Visible text of the first match, with single spaces."""
        return " ".join(self.look.locator(selector).first.inner_text().split())

    def texts(self, selector: str) -> list[str]:
        return [" ".join(one.split()) for one in self.look.locator(selector).all_inner_texts()]

    def painted(self) -> None:
        """Wait until the board is drawn."""
        self.look.wait_for_selector(".board[data-painted]")

    def after(self, action: Callable[[], Any]) -> None:
        """Run an action that redraws the board, and wait for the redraw."""
        before = self.look.locator(".board").first.get_attribute("data-painted")
        action()
        self.look.wait_for_function(
            "before => document.querySelector('.board').dataset.painted !== before", arg=before
        )

    def point(self, cell: int, rows: int, columns: int) -> None:
        """Move the mouse to the middle of a cell."""
        box = self.look.locator(".board").bounding_box()
        row, column = divmod(cell, columns)
        self.look.mouse.move(
            box["x"] + (column + 0.5) * box["width"] / columns,
            box["y"] + (row + 0.5) * box["height"] / rows,
        )
        self.look.wait_for_selector(f".board[data-cell='{cell}']")

    def colour(self, cell: int, rows: int, columns: int) -> tuple[int, int, int]:
        """Colour of the pixel in the middle of a cell."""
        row, column = divmod(cell, columns)
        script = """([x, y]) => {
          const canvas = document.querySelector('.board canvas');
          const at = [Math.floor(x * canvas.width), Math.floor(y * canvas.height)];
          const context = document.createElement('canvas').getContext('2d');
          context.drawImage(canvas, -at[0], -at[1]);
          return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
        }"""
        red, green, blue = self.look.evaluate(
            script, [(column + 0.5) / columns, (row + 0.5) / rows]
        )
        return red, green, blue

    def close(self) -> None:
        self.context.close()
        assert not self.problems, "\n".join(self.problems)
