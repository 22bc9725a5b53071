"""Query: what examples are wanted for. Section 2."""

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from eligo.errors import InputError
from eligo.shots.data.views import Embeddings, Views, as_views, joined


def check_id(name: object, where: str) -> None:
    """An id is text: 7 and "7" would be two, and a query could be shown its own answer."""
    if not isinstance(name, str):
        raise InputError(f"{where}: got id {name!r:.60}, expected text; give str(id)")


@dataclass(frozen=True, eq=False)
class Query:
    """What examples are wanted for."""

    id: str
    embeddings: Embeddings
    """(dim,), or one such tensor for each view."""
    group: str | None = None
    """Examples of this group are never shown."""
    domain: str | None = None
    """Only examples of this domain are shown, if the pool has domains."""
    text: str | None = None
    """What it says (BM25 reads it)."""

    def __post_init__(self) -> None:
        check_id(self.id, "Query")

    @cached_property
    def views(self) -> Views:
        """The embeddings by what they are of."""
        return as_views(self.embeddings, f"Query {self.id!r}", 1)

    @cached_property
    def vector(self) -> Float[Tensor, " dim"]:
        """One unit vector: the views joined."""
        return joined(self.views)
