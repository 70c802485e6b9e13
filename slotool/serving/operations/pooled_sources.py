"""The sources of a server whose workers form several pools, and the ``[[pools]]`` of its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from slotool.errors import InputError
from slotool.rules.switching import SwitchingPlan
from slotool.serving.operations.sources import CombinedSources
from slotool.serving.routing.pools import Pool, combined
from slotool.serving.served import ServedModel
from slotool.tables import OperatingPoint

Text = Annotated[str, msgspec.Meta(min_length=1)]


class PoolEntry(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """One ``[[pools]]`` table: workers of one kind, and the share of the requests that they get.

    ``max_replicas``, ``requests_per_worker``: of workers that come and go with the pool's requests. ``name``: for
    metrics and events; ``latency``, ``policy``, ``deadline_ms``: of all models in this pool; what is left
    out is as in the models, or at the top of the file.
    """

    share: Annotated[float, msgspec.Meta(gt=0)]
    replicas: Annotated[int, msgspec.Meta(ge=1)] = 1
    threads: Annotated[int, msgspec.Meta(ge=1)] = 1
    max_replicas: Annotated[int, msgspec.Meta(ge=1)] | None = None
    requests_per_worker: Annotated[float, msgspec.Meta(gt=0)] | None = None
    name: Text | None = None
    latency: Text | None = None
    policy: Text | None = None
    deadline_ms: Annotated[float, msgspec.Meta(gt=0)] | None = None
    max_queue: Annotated[int, msgspec.Meta(ge=1)] | None = None
    device: Text | None = None

    def mistake(self, devices: Sequence[str]) -> tuple[str, str] | None:
        """A key and what is wrong with it, of keys that do not go together. ``devices``: that workers compute on."""
        most = self.max_replicas
        if most is None:
            if self.requests_per_worker is not None:
                return "requests-per-worker", "without max-replicas the pool has the same workers at any load"
        elif most < self.replicas:
            return "max-replicas", f"{most} workers at most, and {self.replicas} at least"
        elif len(devices) > 1:
            return "max-replicas", "several GPUs have a worker each, so that none can come with the load"
        return None


@dataclass(frozen=True)
class PooledSources:
    """As ``CombinedSources``; of each model there is one part per pool."""

    pools: tuple[Pool, ...]
    parts: tuple[CombinedSources, ...]

    @property
    def policies(self) -> tuple[str, ...]:
        """Names that ``policy`` may have in all pools."""
        return tuple(name for name in self.parts[0].policies if all(name in part.policies for part in self.parts))

    @property
    def policy(self) -> str:
        """Of all pools or, where they differ, of each in turn."""
        policies = [part.policy for part in self.parts]
        return policies[0] if len(set(policies)) == 1 else ", ".join(policies)

    def with_policy(self, name: str) -> PooledSources:
        return replace(self, parts=tuple(part.with_policy(name) for part in self.parts))

    def with_corrections(
        self, corrections: Mapping[str, Mapping[OperatingPoint, float]], pool: str | None = None
    ) -> PooledSources:
        """In ``pool``, or in all."""
        parts = zip(self.pools, self.parts, strict=True)
        return replace(
            self,
            parts=tuple(
                part.with_corrections(corrections) if pool is None or own.name == pool else part for own, part in parts
            ),
        )

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Replicas and threads of each pool."""
        return [part.workers for part in self.parts]

    @property
    def devices(self) -> tuple[str, ...]:
        """That any pool computes on."""
        return tuple(dict.fromkeys(device for part in self.parts for device in part.devices))

    @property
    def workers(self) -> tuple[int, int]:
        """Of all pools, and the threads of each of the first's."""
        return sum(part.workers[0] for part in self.parts), self.parts[0].workers[1]

    def with_workers(self, replicas: int, threads: int) -> PooledSources:
        """Raises ``InputError``: it is the file that says what each pool has."""
        raise InputError("the workers of [[pools]] are those of the file: start the server again to change them")

    @property
    def switching_plan(self) -> SwitchingPlan | None:
        """There is none of several pools."""
        return None

    def load(self, warn: Callable[[str], None]) -> dict[str, ServedModel]:
        """As ``CombinedSources.load``."""
        return combined([part.load(warn) for part in self.parts])

    def reload(
        self, served: Mapping[str, ServedModel], warn: Callable[[str], None], *, artifacts: bool = False
    ) -> dict[str, ServedModel]:
        """As ``CombinedSources.reload``. Raises ``InputError`` where an artifact was written meanwhile."""
        reloaded = [
            part.reload({name: model.by_pool[number] for name, model in served.items()}, warn, artifacts=artifacts)
            for number, part in enumerate(self.parts)
        ]
        models = combined(reloaded)
        for name, model in models.items():
            if len({each.manifest for each in model.by_pool}) > 1:
                raise InputError(f"{name}: its artifact was written while it was read; reload once more")
        return models

    def require_same_workers(self, before: PooledSources) -> None:
        """Raises ``InputError`` for pools that have other workers than they began with."""

        def shape(sources: PooledSources) -> Sequence[object]:
            return sources.pools, [(part.workers, part.devices) for part in sources.parts]

        if shape(self) != shape(before):
            raise InputError("the [[pools]] have other names, shares, workers or queues: start the server again")
