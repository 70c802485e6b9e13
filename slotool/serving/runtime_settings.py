"""Another policy, or tables and rules read anew, for models that go on being served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from slotool.errors import InputError
from slotool.serving.router import Router
from slotool.serving.served import ServedModel
from slotool.serving.sources import Sources


class ReloadableSettings:
    """Steers ``router`` by what ``sources`` say; ``warn`` is given a sentence for whatever is doubtful."""

    def __init__(self, sources: Sources, router: Router, warn: Callable[[str], None]):
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
        # Reading tables takes longer than requests may wait.
        models = await asyncio.to_thread(sources.reload, self._router.models, self._warn)
        self._replace(models.values())
        self._sources = sources

    def reload(self) -> None:
        """Tables and rules as their files are now. Raises ``InputError``; then nothing has changed."""
        self._replace(self._sources.reload(self._router.models, self._warn).values())
        self._router.events.emit("reload", "tables and rules read anew")

    def _replace(self, models: Iterable[ServedModel]) -> None:
        before = list(self._router.models.values())
        try:
            for served in models:
                self._router.replace(served)
        except InputError:
            for served in before:
                self._router.replace(served)
            raise
