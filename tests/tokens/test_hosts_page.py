"""The table of docs/hosts.md: every image-text class of the installed transformers.

`python tests/tokens/test_hosts_page.py` writes it.
"""

from pathlib import Path

from hosts import FAMILIES, shared
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from eligo.tokens.hosts import _FAMILIES, refusal

PAGE = Path(__file__).parents[2] / "docs" / "hosts.md"
HEAD = ["| Class | Model type | | Budgets are per |", "|---|---|---|---|"]


def line(model_type: str, name: str) -> str:
    """One line of the table."""
    why, budgets = "untried", ""
    if model_type in _FAMILIES:
        why, budgets = "**exact**", _FAMILIES[model_type].budget_unit
    elif (reason := refusal(AutoConfig.for_model(model_type))) is not None:
        why = f"refused: {reason}"
    return f"| `{name}` | `{model_type}` | {why} | {budgets} |"


def table() -> list[str]:
    """All lines: exact, untried, refused."""
    names = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items()
    lines = sorted(line(model_type, name) for model_type, name in names)
    return sorted(lines, key=lambda one: ("refused" in one, "untried" in one))


def test_table_has_all_classes() -> None:
    """Classes that other versions have, and this one does not, may be in it too."""
    shown = [one for one in PAGE.read_text().splitlines() if one.startswith("| `")]
    lines = table()
    missing = [one for one in lines if one not in shown]
    assert not missing, "run python tests/tokens/test_hosts_page.py:\n" + "\n".join(missing)
    installed = {f"`{name}`" for name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
    assert not [one for one in set(shown) - set(lines) if one.split(" | ")[1] in installed]


def test_exact_families_are_those_of_the_exactness_tests() -> None:
    tested = {shared(family).model.config.model_type for family in FAMILIES}
    assert tested == set(_FAMILIES)


if __name__ == "__main__":
    text = PAGE.read_text()
    lines = text.splitlines()
    rows = [index for index, one in enumerate(lines) if one.startswith("|") or one == "TABLE"]
    lines[rows[0] : rows[-1] + 1] = [*HEAD, *table()]
    PAGE.write_text("\n".join(lines) + "\n")
