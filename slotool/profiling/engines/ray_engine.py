"""The nodes of a ray cluster that are like this machine, one measurement at a time on each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from slotool import __version__
from slotool.errors import InputError, WorkerError
from slotool.machine import differences, machine_id
from slotool.profiling.engines.base import Engine
from slotool.profiling.engines.ray_cluster import connect, first_line, quiet_ray
from slotool.profiling.measurers import measurer_for
from slotool.profiling.plan import Item, Settings
from slotool.profiling.rows import by_key

# A node answers what it is within so long, or has its CPUs free for us.
START_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 5.0
MAX_DIFFERENCES = 3


@dataclass(frozen=True)
class _Node:
    id: str
    name: str
    cpus: float
    gpus: float


@dataclass(frozen=True)
class _Task:
    """An item; ``lost_on`` names the node that was lost while measuring it."""

    item: Item
    lost_on: str = ""


@dataclass(frozen=True)
class _Errand:
    """What a node was asked: to measure, or, without a task, to get ready."""

    node: _Node
    task: _Task | None = None


class Station:
    """What runs on a node: a measurer, which keeps its worker processes there."""

    def __init__(self, settings: Settings):
        self._measurer = measurer_for(settings)

    def ready(self) -> None:
        """Answers as soon as the station is there."""

    def rows(self, item: Item) -> list[dict[str, Any]]:
        return self._measurer.rows(item)

    def close(self) -> None:
        self._measurer.close()


class RayEngine(Engine):
    """Measures on every node of a cluster that has this machine's fingerprint and this version of slotool.

    ``address`` is that of ``ray.init``: ``auto``, ``host:port``, ``ray://host:port``; ``local`` alone starts a
    cluster, of this machine. A process that is connected already stays so. ``left_out`` has a sentence for every node
    that does not take part, or no longer; ``tell`` is called with each, and with the names of those that do.

    A node's CPUs are reserved as a whole (its GPUs too for another device than the CPU), so that nothing of ray's
    runs beside a measurement. A node whose CPUs are taken joins when they are free. The item of a node that is lost
    goes to another one, and becomes ``failed`` when that is lost too; a node that comes back to itself goes on.
    Graphs travel with the items, but the folder of a trained model must lie at the same path on every node, or its
    row is ``failed`` there.

    Raises ``InputError`` when ray is not installed, no cluster answers, or no node is like this machine; ``rows``
    raises ``WorkerError`` when every node is lost.
    """

    only_here = False

    def __init__(self, settings: Settings, address: str = "auto", tell: Callable[[str], None] = lambda text: None):
        self.settings, self._tell = settings, tell
        self.left_out: list[str] = []
        self._stations: dict[_Node, Any] = {}
        self._errands: dict[Any, _Errand] = {}
        self._free: list[_Node] = []
        self._again: deque[_Task] = deque()
        self._ray = quiet_ray()
        self._connected = connect(self._ray, address)
        try:
            nodes = self._nodes_like_this()
            if not nodes:
                raise InputError(f"no node of the cluster is like this machine: {'; '.join(self.left_out)}")
            tell(f"measuring on {len(nodes)} of the cluster's nodes: {', '.join(node.name for node in nodes)}")
            for node in nodes:
                self._start(node)
        except BaseException:
            self.close()
            raise

    def rows(self, items: Iterator[Item]) -> Iterator[list[dict[str, Any]]]:
        while True:
            self._hand_out(items)
            if not self._measuring:
                if self._free and not self._again:
                    return
                if not self._stations:
                    if self._take("", items) is None:
                        return
                    raise WorkerError(f"every node of the cluster is lost: {'; '.join(self.left_out)}")
            yield from self._finished()

    def close(self) -> None:
        starting = {errand.node for errand in self._errands.values() if errand.task is None}
        self._end(*(station for node, station in self._stations.items() if node not in starting))
        for node in starting:
            self._ray.kill(self._stations[node])
        self._stations, self._errands = {}, {}
        if self._connected:
            self._connected = False
            self._ray.shutdown()

    @property
    def _measuring(self) -> bool:
        return any(errand.task for errand in self._errands.values())

    def _hand_out(self, items: Iterator[Item]) -> None:
        """A task for every free node, as long as there are any."""
        for node in list(self._free):
            task = self._take(node.id, items)
            if task is not None:
                self._free.remove(node)
                self._errands[self._stations[node].rows.remote(task.item)] = _Errand(node, task)

    def _take(self, node_id: str, items: Iterator[Item]) -> _Task | None:
        """The next task for a node: one that another node lost, else a new one."""
        for task in self._again:
            if task.lost_on != node_id or len(self._stations) == 1:
                self._again.remove(task)
                return task
        item = next(items, None)
        return None if item is None else _Task(item)

    def _finished(self) -> Iterator[list[dict[str, Any]]]:
        """Wait for one errand; its rows, if it has any."""
        exceptions, timeout_s = self._ray.exceptions, None if self._measuring else START_TIMEOUT_S
        done, _ = self._ray.wait(list(self._errands), num_returns=1, timeout=timeout_s)
        if not done:
            raise WorkerError(f"no node of the cluster had its CPUs free within {START_TIMEOUT_S:g} s")
        errand = self._errands.pop(done[0])
        try:
            rows = self._ray.get(done[0])
        except exceptions.RayTaskError as error:
            if not isinstance(error.cause, WorkerError):
                raise error.cause from None
            self._end(self._stations.pop(errand.node))
            self._leave_out(errand.node, str(error.cause))
            yield from self._lost(errand, str(error.cause))
        except exceptions.RayError as error:
            reason = first_line(error)
            self._ray.kill(self._stations.pop(errand.node))
            if errand.task:
                # The node itself may be well, as when its memory ran out and a process had to give way.
                self._start(errand.node)
            else:
                self._leave_out(errand.node, reason)
            yield from self._lost(errand, f"the node measuring it was lost: {reason}")
        else:
            self._free.append(errand.node)
            if errand.task:
                yield rows

    def _lost(self, errand: _Errand, reason: str) -> Iterator[list[dict[str, Any]]]:
        """The task of a lost node is tried once more."""
        if errand.task is None:
            return
        if errand.task.lost_on:
            yield self._failed(errand.task.item, f"{reason}, for the second time")
        else:
            self._again.append(replace(errand.task, lost_on=errand.node.id))

    def _failed(self, item: Item, reason: str) -> list[dict[str, Any]]:
        """Rows of an item that was not measured, as the measurer would have written them."""
        places, answer = self.settings.cores_of(len(item.members)), {"status": "failed", "reason": reason}
        with measurer_for(self.settings) as measurer:
            rows = [measurer.row(item, i, places[i], answer) for i in range(len(item.subjects))]
        return [dict(row) for row in by_key(rows, self.settings.rule).values()]

    def _start(self, node: _Node) -> None:
        """A station on a node, free as soon as it is ready. It can be closed while it measures, hence the two."""
        reserved = {"num_cpus": node.cpus, "num_gpus": node.gpus if self.settings.device != "cpu" else 0}
        remote = self._ray.remote(max_restarts=0, max_concurrency=2, **reserved)(Station)
        self._stations[node] = remote.options(scheduling_strategy=_on(node)).remote(self.settings)
        self._errands[self._stations[node].ready.remote()] = _Errand(node)

    def _end(self, *stations: Any) -> None:
        """Let them clear up, also in the midst of an item, then kill them; their workers die with them."""
        endings = [station.close.remote() for station in stations]
        if endings:
            self._ray.wait(endings, num_returns=len(endings), timeout=CLOSE_TIMEOUT_S)
        for station in stations:
            self._ray.kill(station)

    def _leave_out(self, node: _Node, reason: str) -> None:
        self.left_out.append(f"{node.name}: {reason}")
        self._tell(f"left out: {self.left_out[-1]}")

    def _nodes_like_this(self) -> list[_Node]:
        nodes = [_node(found) for found in self._ray.nodes() if found["Alive"]]
        question = self._ray.remote(num_cpus=0, max_retries=0)(_question())
        answers = {node: question.options(scheduling_strategy=_on(node)).remote() for node in nodes}
        done, _ = self._ray.wait(list(answers.values()), num_returns=len(answers), timeout=START_TIMEOUT_S)
        like_this = []
        for node, answer in answers.items():
            reason = self._unfit(node, answer if answer in done else None)
            if reason:
                self._leave_out(node, reason)
            else:
                like_this.append(node)
        return like_this

    def _unfit(self, node: _Node, answer: Any) -> str:
        """Why a node cannot take part; empty when it can."""
        if not node.cpus:
            return "it offers no CPU"
        if self.settings.device != "cpu" and not node.gpus:
            return "it offers no GPU"
        if answer is None:
            return f"no answer within {START_TIMEOUT_S:g} s"
        try:
            return _unlike(self._ray.get(answer))
        except self._ray.exceptions.RayTaskError as error:
            return f"slotool does not run there ({first_line(error.cause)})"
        except self._ray.exceptions.RayError as error:
            return first_line(error)


def _question() -> Callable[[], dict[str, Any]]:
    """What every node is asked. A function within a function, so that ray sends it as it is, and a node without
    slotool can say so."""

    def answer() -> dict[str, Any]:
        from slotool import __version__
        from slotool.machine import machine_facts, machine_id

        return {"version": __version__, "machine": machine_id(), "facts": machine_facts()}

    return answer


def _on(node: _Node) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.id, soft=False)


def _node(found: Mapping[str, Any]) -> _Node:
    offers = found["Resources"]
    name = f"{found['NodeManagerHostname']}/{found['NodeID'][:6]}"
    return _Node(found["NodeID"], name, offers.get("CPU", 0), offers.get("GPU", 0))


def _unlike(there: Mapping[str, Any]) -> str:
    """How what a node says of itself differs from this machine; empty when it does not."""
    if there["version"] != __version__:
        return f"it has slotool {there['version']}, this machine {__version__}"
    if there["machine"] == machine_id():
        return ""
    named = differences(there["facts"])[:MAX_DIFFERENCES]
    return f"another machine ({', '.join(named) or 'it gives itself another id'})"
