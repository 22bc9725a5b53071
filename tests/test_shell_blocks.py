"""Every command of the documents belongs to a test that runs it; the pages of no family."""

import pytest
from shell_blocks import PAGES, ROOT, SKIPPED, documents, lines_of, name_of, to_run


def test_every_page_is_run_by_one_test():
    starts = [str(ROOT / start) for family in PAGES.values() for start in family]
    for path in documents():
        if to_run(path):
            assert sum(str(path).startswith(start) for start in starts) == 1, path


def test_only_eligo_is_run():
    lines = [line for path in documents() for line in to_run(path)]
    assert [line for line in lines if not line.startswith("eligo ")] == []


@pytest.mark.parametrize("start", SKIPPED)
def test_skipped_commands_are_in_the_documents(start):
    assert any(line.startswith(start) for path in documents() for line in lines_of(path))


@pytest.mark.parametrize(
    "path", [path for path in documents() if path.suffix == ".yaml"], ids=name_of
)
def test_every_config_starts_with_its_command(path):
    (line,) = lines_of(path)
    family, name = path.parent.name, path.stem
    assert line.startswith((f"eligo {family} ", f"eligo search {family}/{name}"))
    assert name in (line + " default").split() or f"search {family}/{name}" in line
