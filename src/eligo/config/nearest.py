"""Finding the word that was meant."""

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 200  # characters: the time grows with their square


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The most similar of the words, if any is similar; never the word itself."""
    others = [other for other in words if other != word]
    return next(iter(get_close_matches(word[:_LONGEST], others, n=1, cutoff=0.6)), None)


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing."""
    found = nearest(word, words)
    return f"; did you mean {found}?" if found else ""
