"""Limits of the control groups that hold this process, versions 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class ControlGroups:
    """Folders of the groups of this process and of all groups above them, by controller; innermost first."""

    cpu: tuple[Path, ...] = ()
    memory: tuple[Path, ...] = ()

    @classmethod
    def of_this_process(cls, root: Path = Path("/")) -> ControlGroups:
        """Find the groups in ``/proc/self`` below ``root``; none where the kernel has none."""
        memberships = [line.split(":", 2) for line in _lines(root / "proc/self/cgroup") if line.count(":") >= 2]
        paths: dict[str, tuple[Path, ...]] = {}
        for line in _lines(root / "proc/self/mountinfo"):
            mount, _, filesystem = (part.split() for part in line.partition(" - "))
            if len(mount) < 5 or len(filesystem) < 3 or filesystem[0] not in ("cgroup", "cgroup2"):
                continue
            for number, controllers, group in memberships:
                version_2 = number == "0" and not controllers
                if version_2 != (filesystem[0] == "cgroup2"):
                    continue
                options = set(filesystem[2].split(","))
                for name in ("cpu", "memory"):
                    if version_2 or (name in options and name in controllers.split(",")):
                        folders = tuple(_folders(root / mount[4].lstrip("/"), mount[3], group))
                        # Controllers are of one version each; that of version 2 has a file of each limit.
                        paths[name] = (*paths.get(name, ()), *folders)
        return cls(**paths)

    def cpu_quota(self) -> float | None:
        """Return the cores' worth of CPU time that all groups allow; None without a limit."""
        return min((quota for folder in self.cpu if (quota := _cpu_quota(folder)) is not None), default=None)

    def memory_limit(self) -> int | None:
        """Return the bytes that all groups allow; None without a limit."""
        return min((limit for limit, _ in self._memory()), default=None)

    def memory_left(self) -> int | None:
        """Return the bytes below the limits that can be taken now; None without a limit."""
        return min((max(0, limit - used) for limit, used in self._memory()), default=None)

    def throttled(self) -> tuple[int, float]:
        """Return the periods, and the seconds, in which a quota kept a group from running since the group began."""
        periods, seconds = 0, 0.0
        for folder in self.cpu:
            stat = _numbers(folder / "cpu.stat")
            periods += stat.get("nr_throttled", 0)
            seconds += stat.get("throttled_usec", 0) / 1e6 + stat.get("throttled_time", 0) / 1e9
        return periods, seconds

    def _memory(self) -> Iterator[tuple[int, int]]:
        """Yield limits and bytes in use, without the file cache that the kernel gives back first."""
        names = ("memory.max", "memory.current", "inactive_file"), (
            "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
        )  # fmt: skip
        for folder in self.memory:
            for limit_name, used_name, cache_name in names:
                limit, used = _number(folder / limit_name), _number(folder / used_name) or 0
                # Version 1 states no limit as the largest number of pages.
                if limit is not None and limit < 2**60:
                    yield limit, used - min(used, _numbers(folder / "memory.stat").get(cache_name, 0))


def _folders(mount: Path, mount_root: str, group: str) -> Iterator[Path]:
    """Yield the group's folder and those above it, up to the mount, which inside a container may begin at the group."""
    path = PurePosixPath(group)
    if path.is_relative_to(mount_root):
        path = path.relative_to(mount_root)
    inner = mount / str(path).lstrip("/")
    # A group above the container's root is written with "..", and its folder is not to be seen.
    if ".." in path.parts or not inner.is_dir():
        inner = mount
    yield inner
    while inner != mount:
        inner = inner.parent
        yield inner


def _cpu_quota(folder: Path) -> float | None:
    quota, _, period = next(_lines(folder / "cpu.max"), "max").partition(" ")
    if quota.isdecimal() and period.isdecimal() and int(period):
        return int(quota) / int(period)
    limit, each = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return limit / each if limit and each else None


def _number(path: Path) -> int | None:
    """Return the number in a file; None where there is none, or a word such as ``max`` or -1."""
    text = next(_lines(path), "")
    return int(text) if text.isdecimal() else None


def _numbers(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in _lines(path))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text().splitlines()
    except OSError:
        return
