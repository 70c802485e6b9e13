"""Runtime settings: another policy, or reloaded tables and rules, while the models are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from slotool.errors import InputError
from slotool.serving.router import Router
from slotool.serving.served import ServedModel
from slotool.serving.sources import CombinedSources, Sources


class ReloadableSettings:
    """The settings of ``router`` that come from ``sources``; ``warn`` receives a sentence for every doubt."""

    def __init__(self, sources: Sources | CombinedSources, router: Router, warn: Callable[[str], None]):
        self._sources = sources
        self._router = router
        self._warn = warn

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
        """Tables and rules as their files are now. Raises ``InputError``; then nothing has changed."""
        self._replace(self._sources.reload(self._router.models, self._warn).values())
        self._router.events.emit("reload", "tables and rules reloaded")

    def _replace(self, models: Iterable[ServedModel]) -> None:
        before = list(self._router.models.values())
        try:
            for served in models:
                self._router.replace(served)
        except InputError:
            for served in before:
                self._router.replace(served)
            raise
