"""The nearest of many candidates, without looking at all of them. Section 4, PoolIndex."""

from eligo.shots.pool.pool_index import Hits, PoolIndex

__all__ = ["Hits", "PoolIndex"]
