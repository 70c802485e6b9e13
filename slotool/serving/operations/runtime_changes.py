"""Changes at run time: another policy, other workers, and reloaded files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from slotool.errors import InputError, RunError, SlotoolError
from slotool.serving.front.oip import MODELS_ARE_FIXED
from slotool.serving.operations.sources import UNLOADED, CombinedSources, Sources, require_same_interface
from slotool.serving.routing.router import Router
from slotool.serving.served import ServedModel

AnySources = Sources | CombinedSources


class ReloadableSettings:
    """Settings of ``router`` that come from ``sources``; ``warn`` receives a sentence for every doubt.

    ``read``: returns the sources as the server's file states them now; by default they do not change. Files are read in
    a thread while the server goes on; changes are made one at a time.
    """

    def __init__(
        self,
        sources: AnySources,
        router: Router,
        warn: Callable[[str], None],
        read: Callable[[], AnySources] | None = None,
    ):
        self._sources = sources
        self._router = router
        self._warn = warn
        self._read = read or (lambda: self._sources)
        # Choices at run time replace the file's.
        self._chosen_policy: str | None = None
        self._chosen_workers: tuple[int, int] | None = None
        self._read_workers = sources.workers
        self._changing = asyncio.Lock()
        # True while ``reload`` waits for another change, and has read nothing yet.
        self.reload_waits = False
        router.metrics.threads.set_function(lambda: self.workers[1])

    @property
    def policies(self) -> Sequence[str]:
        return self._sources.policies

    @property
    def policy(self) -> str:
        return self._sources.policy

    @property
    def workers(self) -> tuple[int, int]:
        """Replicas, and threads of each."""
        return self._sources.workers

    async def use(self, policy: str) -> None:
        """Change the policy of all models. Raises ``InputError``; then nothing has changed."""
        async with self._changing:
            sources = self._sources.with_policy(policy)
            # Reading tables takes longer than requests can wait.
            models = await asyncio.to_thread(sources.reload, self._router.models, self._warn)
            self._replace(models.values())
            self._sources, self._chosen_policy = sources, policy

    async def use_workers(self, replicas: int, threads: int, reason: str) -> None:
        """Change to ``replicas`` workers of ``threads`` threads, loaded beside those that serve.

        ``reason``: for the event. Artifacts are read again, as the new workers read them. Raises ``InputError`` or
        ``RunError``; then nothing has changed.
        """
        async with self._changing:
            if (replicas, threads) == self.workers:
                return
            sources = self._sources.with_workers(replicas, threads)
            models = await asyncio.to_thread(self._reloaded, sources, self._router.models)
            await self._exchange(sources, models, reason)
            self._chosen_workers = sources.workers

    @property
    def unloaded(self) -> Mapping[str, str]:
        """Reasons why models are not served for now, by name."""
        return self._sources.unloaded

    async def load(self, name: str, config: str | None = None) -> None:
        """Load this model's current files; other models stay as they are.

        ``config``: JSON in place of its configuration. Raises ``InputError`` or ``RunError``; then nothing has changed.
        """
        async with self._changing:
            latest = self._as_chosen(await asyncio.to_thread(self._read))
            if not isinstance(latest, CombinedSources) or not isinstance(self._sources, CombinedSources):
                raise InputError(MODELS_ARE_FIXED)
            await self._change_model(name, self._sources.with_loaded(name, latest, config), f"{name} loaded")

    async def unload(self, name: str) -> None:
        """Stop serving this model once its requests are answered. Raises ``InputError`` where there is none."""
        async with self._changing:
            if not isinstance(self._sources, CombinedSources):
                raise InputError(MODELS_ARE_FIXED)
            await self._change_model(name, self._sources.with_unloaded(name), f"{name} unloaded")

    async def _change_model(self, name: str, sources: CombinedSources, change: str) -> None:
        """Serve this model from ``sources``, and leave the others unchanged."""
        served = self._router.models.items()
        changed, others = (
            {key: model for key, model in served if (model.model_name == name) is same} for same in (True, False)
        )
        parts = tuple(part for part in sources.loaded if part.model_name == name)
        models = await asyncio.to_thread(self._reloaded, replace(sources, parts=parts), changed)
        models = {**others, **models}
        await self._exchange(sources, models, change)
        self._router.events.emit("reload", change, models=list(models))

    async def _exchange(self, sources: AnySources, models: Mapping[str, ServedModel], reason: str) -> None:
        """Serve ``models`` on the workers of ``sources``."""
        before, after = self.workers, sources.workers
        await self._router.exchange(models, None if before == after else after)
        self._sources = sources
        if before != after:
            self._router.metrics.reconfigurations.inc()
            sentence = f"{before[0]}x{before[1]} to {after[0]}x{after[1]} (replicas x threads): {reason}"
            self._router.events.emit(
                "workers", sentence, replicas=after[0], threads=after[1], before=list(before), reason=reason
            )

    @property
    def is_changing(self) -> bool:
        """True if a change is in progress, for which others wait."""
        return self._changing.locked()

    async def reload(self) -> str:
        """Reload models, tables, rules and the number of workers from their files; return what was reloaded.

        Raises ``InputError``, or ``RunError`` for a model that cannot run; then nothing has changed.
        """
        self.reload_waits = True
        async with self._changing:
            self.reload_waits = False
            before = self._router.models
            sources = await asyncio.to_thread(self._read)
            read_workers = sources.workers
            sources = self._as_chosen(sources)
            if isinstance(sources, CombinedSources):
                unloaded = {name: reason for name, reason in self.unloaded.items() if reason == UNLOADED}
                sources = replace(sources, unloaded=unloaded)
            models = await asyncio.to_thread(self._reloaded, sources, before)
            added, removed = models.keys() - before.keys(), before.keys() - models.keys()
            exchanged = [name for name in before.keys() & models.keys() if models[name].model is not before[name].model]
            changed = sorted([*exchanged, *added, *removed])
            other_workers = sources.workers != self.workers
            if changed or other_workers:
                await self._exchange(sources, models, "the files of the server ask for it")
            else:
                self._replace(models.values())
                self._sources = sources
            if read_workers != self._read_workers:
                self._read_workers, self._chosen_workers = read_workers, None
        reread = ", ".join([*sorted(exchanged), *(["workers"] if other_workers else []), "tables and rules"])
        came = [f"{name} {how}" for names, how in ((added, "added"), (removed, "removed")) for name in sorted(names)]
        what = "; ".join([*came, reread])
        self._router.events.emit("reload", f"{what} reloaded", models=changed)
        return what

    def report_failed(self, why: str) -> None:
        """Emit an event for those who watch the log and the live page."""
        self._router.events.emit("reload-failed", f"not reloaded: {why}")

    def _as_chosen(self, sources: AnySources) -> AnySources:
        """Apply what was chosen at run time, unless the file has come to state other workers."""
        if self._chosen_policy is not None:
            sources = sources.with_policy(self._chosen_policy)
        if self._chosen_workers is not None and sources.workers == self._read_workers:
            sources = sources.with_workers(*self._chosen_workers)
        return sources

    def _reloaded(self, sources: AnySources, before: Mapping[str, ServedModel]) -> dict[str, ServedModel]:
        try:
            models = sources.reload(before, self._warn, artifacts=True)
        except SlotoolError:
            raise
        except Exception as error:  # libraries that read models may raise anything
            raise RunError(f"a model cannot be read ({type(error).__name__}: {error})") from error
        for name in before.keys() & models.keys():
            require_same_interface(before[name], models[name])
        return models

    def _replace(self, models: Iterable[ServedModel]) -> None:
        before = list(self._router.models.values())
        try:
            for served in models:
                self._router.replace(served)
        except InputError:
            for served in before:
                self._router.replace(served)
            raise
