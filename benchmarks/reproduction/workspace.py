"""The folder in which a paper's commands run: their documents are kept there, so what was done is not done again."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

from slotool.artifacts.bundle import shipped_artifact
from slotool.atomic import whole_file
from slotool.data.registry import shipped_dataset, shipped_table
from slotool.demo import Document, run_command
from slotool.errors import SlotoolError
from slotool.timing.interference import OtherWork

Scale = Literal["small", "paper"]
Value = TypeVar("Value")


# What figures look for in the user's data: sets, traces, and outcome tables of own services.
KNOWN = (
    "fashion-mnist",
    "fma",
    "wiki10",
    "amazoncat-13k",
    "delicious-200k",
    "voxforge",
    "azure_functions_2019_1000.csv",
    "asr-outcomes.parquet",
    "asr-outcomes.csv",
    "ic-outcomes.parquet",
    "ic-outcomes.csv",
    "ferplus.csv.gz",
    "results-imagenet.csv.gz",
)


def find(data: Path, name: str) -> Path | None:
    """The file or folder of this name: ``data`` itself, in it, or one folder deeper; None without."""
    if data.name == name:
        return data
    return next((path for path in (data / name, *sorted(data.glob(f"*/{name}"))) if path.exists()), None)


class NotHere(SlotoolError):
    """A figure needs data that is not given; the message says which."""


@dataclass(frozen=True)
class Ran:
    """A command as a person would type it; how long it took, and how many cores other processes kept busy."""

    command: str
    seconds: float
    busy_cores: float


class Workspace:
    """Runs commands in ``folder``, at a ``scale``, on the data below ``data``; ``again``: also those it has run before.

    ``note`` hears of each command as it starts. ``ran``: the commands since ``fresh``, those too whose documents an
    earlier run left.
    """

    def __init__(
        self,
        folder: Path,
        scale: Scale = "small",
        data: Path | None = None,
        seed: int = 0,
        note: Callable[[str], None] = lambda text: None,
        *,
        again: bool = False,
    ):
        self.folder, self.scale, self.data, self.seed, self._note = folder, scale, data, seed, note
        # What an earlier run left is not used then, but what this one has done is.
        self._again, self._done = again, set[str]()
        self.ran: list[Ran] = []
        self._asked: list[str] = []
        (folder / "documents").mkdir(parents=True, exist_ok=True)

    def fresh(self) -> None:
        self.ran, self._asked = [], []

    def measure_again(self) -> None:
        """Drop what the commands since ``fresh`` measured: a figure failed by it, as other work may have spoiled it."""
        for line in self._asked:
            if line.startswith("slotool profile "):
                for file in (self._document(line), *(self.folder / name for name in outputs_of(line))):
                    file.unlink(missing_ok=True)

    def pick(self, small: Value, paper: Value) -> Value:
        """What this scale takes of the two."""
        return paper if self.scale == "paper" else small

    def path(self, name: str) -> Path:
        return self.folder / name

    def slotool(self, command: str) -> Document:
        """The document of ``slotool COMMAND``: an earlier run's, while its outputs exist and its inputs are older.

        Raises ``RunError`` with its last words when it fails.
        """
        line = f"slotool {command}"
        there = [(self.folder / name).exists() for name in outputs_of(line)]
        # A campaign of measurements goes on where it was; other outputs of a run that was cut short are replaced.
        replaces = any(there) and not command.startswith("profile ")
        finished = self._once(line, [line], lambda: self._timed(f"{line} --force" if replaces else line))
        return dict(finished["document"])

    def python(self, script: str, made: str) -> None:
        """Run a script of the folder, unless ``made``, which it writes last, is there."""
        line = f"python {script}"
        self._once(line, [line], lambda: self._timed(line), made)

    def loaded(self, served: str, command: str) -> Document:
        """The document of ``slotool loadtest``, sent to a server of ``served`` that is started for it.

        ``command`` has ``URL`` for the server's address.
        """
        from slotool.planning.server_process import RunningServer

        def run() -> dict[str, Any]:
            with RunningServer([*served.split(), "--port", "0"], self.folder) as server:
                return self._timed(f"slotool {command} --force".replace("URL", server.url))

        shown = [f"slotool serve {served} &", f"slotool {command}".replace("URL", "http://127.0.0.1:8000")]
        return dict(self._once(f"slotool serve {served} & slotool {command}", shown, run)["document"])

    def data_set(self, names: Sequence[str], otherwise: str | None = None) -> str:
        """What ``--data`` is given: the folder of the first of ``names`` that lies below the user's data, or
        ``otherwise``.

        Raises ``NotHere``, which names them, when there is neither.
        """
        for name in names:
            path = self.find(name)
            if path is not None:
                return str(path)
        if otherwise is None:
            raise NotHere(f"needs {' or '.join(names)} in the folder given as --data")
        return otherwise

    def find(self, name: str) -> Path | None:
        """The file or folder of this name in the user's data; None without."""
        return None if self.data is None else find(self.data, name)

    def shipped_data(self, name: str) -> str:
        """Where a data set lies that slotool ships."""
        return str(shipped_dataset(name))

    def shipped_table(self, name: str) -> str:
        """Where a table lies that slotool ships."""
        return str(shipped_table(name))

    def shown(self, line: str) -> str:
        """The command without the paths of this machine."""
        if self.data is not None:
            line = line.replace(str(self.data), "$DATA")
        for folder, name in ((shipped_artifact("family").path.parent, "models"),
                             (shipped_dataset("tate-16k").parent, "datasets")):  # fmt: skip
            line = line.replace(str(folder), name)
        return line

    def _once(
        self, key: str, lines: Sequence[str], run: Callable[[], dict[str, Any]], made: str | None = None
    ) -> dict[str, Any]:
        """What ``run`` finds, or what it found before for this ``key``. ``lines``: what a person types for it, of which
        the last one takes the time; ``made``: a file that must be there too."""
        kept = self._document(key)
        self._asked.append(key)
        if self._still_holds(kept, key) and (made is None or (self.folder / made).exists()):
            figures: dict[str, Any] = json.loads(kept.read_text())
        else:
            for line in lines:
                self._note(f"$ {self.shown(line)}")
            figures = run()
            with whole_file(kept) as partial:
                partial.write_text(json.dumps(figures))
        *before, last = map(self.shown, lines)
        ran = [*(Ran(line, 0.0, 0.0) for line in before), Ran(last, figures["seconds"], figures["busy_cores"])]
        if ran[-1] not in self.ran:  # figures ask for a network again where they need it
            self.ran += ran
        return figures

    def _document(self, key: str) -> Path:
        return self.folder / "documents" / f"{_name(key)}.json"

    def _still_holds(self, kept: Path, line: str) -> bool:
        """Whether what was done by an earlier run, or by this one, need not be done again."""
        if self._again and line not in self._done:
            self._done.add(line)
            return False
        outputs = [self.folder / name for name in outputs_of(line)]
        if not kept.is_file() or not all(output.exists() for output in outputs):
            return False
        named = [self.folder / word for word in shlex.split(line) if not word.startswith("-")]
        inputs = [path for path in named if path not in outputs and path.exists()]
        return all(path.stat().st_mtime <= kept.stat().st_mtime for path in inputs)

    def _timed(self, line: str) -> dict[str, Any]:
        others = OtherWork()
        document = run_command(line, self.folder)
        seconds, busy = others.read()
        return {"command": self.shown(line), "document": document, "seconds": seconds, "busy_cores": busy}


def outputs_of(command: str) -> list[str]:
    """Return the files and folders that the command's options name as its outputs."""
    return [word for option, word in pairwise(shlex.split(command)) if option in ("-o", "--out", "--log")]


def _name(line: str) -> str:
    """A file's name for a command: its first words, and a hash of all."""
    words = "-".join(word for word in line.split()[1:4] if word.replace("-", "").isalpha())
    return f"{words}-{hashlib.sha256(line.encode()).hexdigest()[:10]}"
