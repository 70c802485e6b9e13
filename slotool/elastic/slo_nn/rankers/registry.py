"""The rankers there are, by name: a new one is a file with a ``Ranker`` and a line here."""

from __future__ import annotations

from slotool.elastic.slo_nn.rankers.clusters import Clusters
from slotool.elastic.slo_nn.rankers.freehash import CentredFreeHash, FreeHash
from slotool.elastic.slo_nn.rankers.mongoose import Mongoose
from slotool.elastic.slo_nn.rankers.ranker import RandomOrder, Ranker
from slotool.plugins import Registry

_KINDS: tuple[type[Ranker], ...] = (FreeHash, CentredFreeHash, Clusters, Mongoose, RandomOrder)
RANKERS = {kind.name: kind for kind in _KINDS}
registry: Registry[type[Ranker]] = Registry("rankers", RANKERS, Ranker)


def ranker_class(name: str) -> type[Ranker]:
    """Return one of ``RANKERS``, or a plugin's, also for an artifact that names it.

    Raises ``InputError`` for an unknown name, ``PluginError`` for an unusable plugin.
    """
    return RANKERS[name] if name in RANKERS else registry.load(name)
