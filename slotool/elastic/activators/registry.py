"""The rankers there are, by name: a new one is a file with a ``Ranker`` and a line here."""

from __future__ import annotations

from slotool.elastic.activators.clusters import Clusters
from slotool.elastic.activators.freehash import CentredFreeHash, FreeHash
from slotool.elastic.activators.ranker import Ranker

RANKERS: dict[str, type[Ranker]] = {kind.name: kind for kind in (FreeHash, CentredFreeHash, Clusters)}
