"""One browser for the tests of a file."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Visit, browsing
from explorer_samples import all_records

from eligo.explorer.export import explorer_page
from eligo.explorer.inline import inline


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as found:
        yield found


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Opens tabs; on teardown each is closed and must have had no problems."""
    visits: list[Visit] = []

    def start(**options: Any) -> Visit:
        visits.append(Visit(browser, **options))
        return visits[-1]

    yield start
    for one in visits:
        one.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported page with one record of every kind."""
    path = tmp_path_factory.mktemp("explorer") / "sample page.html"
    path.write_text(explorer_page([inline(one) for one in all_records()], title="sample"))
    return path
