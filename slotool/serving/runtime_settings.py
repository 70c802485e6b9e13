"""Runtime settings: another policy, or reloaded tables and rules, while the models are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from slotool.errors import InputError
from slotool.serving.router import Router
from slotool.serving.served import ServedModel
from slotool.serving.sources import CombinedSources, Sources
from slotool.tables import OperatingPoint


class ReloadableSettings:
    """The settings of ``router`` that come from ``sources``; ``warn`` receives a sentence for every doubt."""

    def __init__(self, sources: Sources | CombinedSources, router: Router, warn: Callable[[str], None]):
        self._sources = sources
        self._router = router
        self._warn = warn
        self._was_reloaded = False

    @property
    def policies(self) -> Sequence[str]:
        return self._sources.policies

    @property
    def policy(self) -> str:
        return self._sources.policy

    async def use(self, policy: str) -> None:
        """Another policy for all models. Raises ``InputError``; then nothing has changed."""
        sources = self._sources.with_policy(policy)
        # Reading tables takes longer than requests can wait.
        models = await asyncio.to_thread(sources.reload, self._router.models, self._warn)
        self._replace(models.values())
        self._sources = sources

    def reload(self) -> None:
        """Tables and rules as their files are now, without corrections. Raises ``InputError``; then nothing has
        changed."""
        sources = self._sources.with_corrections({})
        self._replace(sources.reload(self._router.models, self._warn).values())
        self._sources, self._was_reloaded = sources, True
        self._router.events.emit("reload", "tables and rules reloaded")

    async def correct(self, factors: Mapping[str, Mapping[OperatingPoint, float]]) -> None:
        """Plan with latencies of the tables times ``factors``, by model and point. Raises ``InputError``; then nothing
        has changed."""
        sources = self._sources.with_corrections(factors)
        # What the tables leave open was said at the start.
        models = await asyncio.to_thread(sources.reload, self._router.models, lambda sentence: None)
        self._replace(models.values())
        self._sources = sources

    def take_reloaded(self) -> bool:
        """Whether tables were reloaded since this was last asked."""
        was, self._was_reloaded = self._was_reloaded, False
        return was

    def _replace(self, models: Iterable[ServedModel]) -> None:
        before = list(self._router.models.values())
        try:
            for served in models:
                self._router.replace(served)
        except InputError:
            for served in before:
                self._router.replace(served)
            raise
