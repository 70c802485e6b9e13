"""Settings of a server as its operator states them, checked before any model is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotool import devices
from slotool.errors import ArgumentError
from slotool.serving.access import AddressRates
from slotool.serving.operations.repository import is_repository
from slotool.serving.operations.runtime_changes import AnySources
from slotool.serving.operations.service_file import KeysInForce, ServiceFile
from slotool.serving.operations.sources import CombinedSources, Sources, sources_of


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Options of ``slotool.serve``, whose signature documents them.

    Attributes:
        models: ``[[models]]`` of ``file``; None or empty: ``artifacts`` are served.
        file: Service file that options were read from.
        require_valid_file: Raises ``InputError`` for an option of ``file`` that a start would reject.
        on_command_line: Names of the options that the command line states.
        in_file: Names of the options that ``file`` states.
        states_processes: Some option is stated that only worker processes have.
    """

    artifacts: Sequence[Path]
    rules: Path | None
    latency: Path | None
    outcomes: Sequence[Path]
    policy: str
    deadline_ms: float | None
    plan: Path | None
    names: Sequence[str]
    host: str
    port: int | None
    grpc_port: int | None
    token_file: Path | None
    tls_certificate: Path | None
    tls_key: Path | None
    tls_clients: Path | None
    engine: str
    replicas: int | None
    threads: int | None
    address: str | None
    hang_s: float
    max_batch: int
    max_queue: int
    default_deadline_ms: float
    lame_duck_s: float | None
    drain_s: float
    log: Path | None
    access_log: str | None
    max_body_mib: int
    traces: str | None
    traces_share: float
    shared_memory: bool
    address_rate: float | None
    trusted_proxies: str | None
    device: str
    precision: str
    eager: bool
    allow_faults: bool
    deadline_headers: Sequence[str]
    check_config: bool
    models: Sequence[Mapping[str, Any]] | None = None
    file: Path | None = None
    require_valid_file: Callable[[], None]
    on_command_line: frozenset[str] = frozenset()
    in_file: frozenset[str] = frozenset()
    states_processes: bool = False

    @property
    def wanted_engine(self) -> str:
        """Requested engine; ``auto`` only while that depends on the models."""
        of_processes = self.device != devices.CPU or self.states_processes
        return "local" if self.engine == "auto" and of_processes else self.engine

    @property
    def default_deadline_us(self) -> float:
        """Longest wait of a request without a deadline, µs; ``inf`` for no limit."""
        return 1e3 * self.default_deadline_ms or math.inf

    def address_rates(self) -> AddressRates | None:
        """Return the rates of client addresses; None without a limit."""
        proxies = self.trusted_proxies.split(",") if self.trusted_proxies else ()
        return None if self.address_rate is None else AddressRates(self.address_rate, proxies)

    def keys_in_force(self) -> KeysInForce | None:
        """Return the file's keys at this moment; None unless it lists models."""
        return KeysInForce(self.file) if self.models and self.file is not None else None

    def reader(self) -> Callable[[], AnySources]:
        """Return a function that reads the sources as files and command line state them. Raises ``ArgumentError``."""
        sources = Sources(
            tuple(self.artifacts),
            tuple(self.names),
            self.rules,
            self.latency,
            tuple(self.outcomes),
            self.threads or 1,
            self.policy,
            math.inf if self.deadline_ms is None else self.deadline_ms * 1e3,
            self.plan,
            self.replicas or 1,
            mapped=self.wanted_engine != "inline",
            devices=self._devices(),
            precision=devices.required_precision(self.precision, self.device),
        )
        if not (self.artifacts or self.models):
            lists_none = f"; {self.file} lists none" if self.file else ""
            problem = f"give one at least, or --config FILE.toml that lists [[models]]{lists_none}"
            raise ArgumentError("artifacts", problem)
        if self.models:
            read: Callable[[], AnySources] = self._service_file(sources).read
        else:
            stated = self.on_command_line | self.in_file
            # Workers of the switching plan, unless stated elsewhere.
            follows_plan = sources.mapped and stated.isdisjoint(("replicas", "threads"))
            read = lambda: sources_of(sources.as_planned() if follows_plan else sources)  # noqa: E731
            if any(map(is_repository, sources.artifacts)):
                self._require_no_tables()

        def read_valid() -> AnySources:
            if self.models:
                self.require_valid_file()
            return _with_a_worker_each(read())

        return read_valid

    def _require_no_tables(self) -> None:
        """Raise ``ArgumentError`` for options of one model, where models come from a folder."""
        for option in ("rules", "latency", "outcomes", "plan"):
            if getattr(self, option):
                raise ArgumentError(option, "a folder names its models; state it for each in [[models]] of --config")

    def _devices(self) -> tuple[str, ...]:
        """Return the workers' devices. Several GPUs have a worker each."""
        engine, on = self.wanted_engine, devices.several(self.device)
        if devices.is_cuda(on[0]) and engine not in ("inline", "local"):
            raise ArgumentError("device", f"workers of --engine {engine} compute on the CPU: leave it out")
        if self.precision != devices.FLOAT32 and engine not in ("auto", "inline", "local"):
            raise ArgumentError("precision", f"workers of --engine {engine} compute in float32: leave it out")
        if len(on) > 1 and engine == "inline":
            raise ArgumentError("device", "several GPUs have a worker process each: --engine local")
        return on

    def _service_file(self, sources: Sources) -> ServiceFile:
        """Return the models that the file lists; options of the command line replace the file's."""
        if self.file is None:
            raise ArgumentError("models", "models are listed in a file: --config service.toml")
        if sources.artifacts or sources.names:
            raise ArgumentError(
                "artifacts" if sources.artifacts else "names", f"{self.file} lists the models: leave them out"
            )
        if len(sources.outcomes) > 1:
            raise ArgumentError("outcomes", f"one table for each of the models: name it in {self.file}")
        values = {
            "rules": sources.rules,
            "latency": sources.latency,
            "outcomes": sources.outcomes[0] if sources.outcomes else None,
            "plan": sources.plan,
            "policy": sources.policy,
            "deadline-ms": sources.deadline_us * 1e-3,
        }
        overriding = {
            key: value.absolute() if isinstance(value, Path) else value
            for key, value in values.items()
            if key.replace("-", "_") in self.on_command_line
        }
        fixed = self.on_command_line & {"replicas", "threads"}
        workers = (sources.replicas if "replicas" in fixed else 1, sources.threads if "threads" in fixed else 1)
        return ServiceFile(self.file, overriding, sources.with_workers(*workers), fixed, sources.mapped)


def _with_a_worker_each(sources: Sources | CombinedSources) -> Sources | CombinedSources:
    """Return the sources with one worker for each of several GPUs."""
    on, (replicas, threads) = sources.devices, sources.workers
    if len(on) == 1:
        return sources
    if replicas not in (1, len(on)):
        raise ArgumentError("replicas", f"{replicas} workers for {len(on)} GPUs, which have one each: leave it out")
    return sources.with_workers(len(on), threads)
