"""The rankers there are, by name: a new one is a file with a ``Ranker`` and a line here."""

from __future__ import annotations

from slotool.elastic.activators.clusters import Clusters
from slotool.elastic.activators.freehash import CentredFreeHash, FreeHash
from slotool.elastic.activators.mongoose import Mongoose
from slotool.elastic.activators.random_order import RandomOrder
from slotool.elastic.activators.ranker import Ranker

_KINDS: tuple[type[Ranker], ...] = (FreeHash, CentredFreeHash, Clusters, Mongoose, RandomOrder)
RANKERS = {kind.name: kind for kind in _KINDS}
# What is tried where nobody says which; the others are there to be compared with.
CANDIDATES = (FreeHash.name, CentredFreeHash.name, Clusters.name)
