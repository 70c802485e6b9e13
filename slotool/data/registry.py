"""Data sets and their adapters by name or path."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import slotool
from slotool.data.adapters.arrow import CsvAdapter, ParquetAdapter, SavedArrowAdapter
from slotool.data.adapters.base import DataAdapter, Location
from slotool.data.adapters.factory import FactoryAdapter, PluginAdapter
from slotool.data.adapters.idx import DigitsAdapter, IdxAdapter, has_fashion_mnist
from slotool.data.adapters.image_folder import ImageFolderAdapter
from slotool.data.adapters.npz import NpzAdapter
from slotool.data.adapters.xmc import XmcAdapter
from slotool.data.assembly import assemble
from slotool.data.dataset import Dataset, MultiLabelDataset, MultiLabelSplit
from slotool.data.options import DataOptions, DataSource, ImageOptions, Tensor
from slotool.errors import DataError, PluginError
from slotool.plugins import Registry
from slotool.regular_files import require_regular

DATA_DIR_VARIABLE = "SLOTOOL_DATA_DIR"
# Extreme-classification sets in the data folder, each in a folder of its name.
XMC_FOLDER = "xmc"
# The table of adapters: a name in ``known`` comes first, then ``name:`` and schemes, then suffixes, then, in this
# order, the first that recognises what lies there.
ADAPTERS: dict[str, DataAdapter] = {
    adapter.name: adapter
    for adapter in (
        DigitsAdapter(),
        IdxAdapter(),
        NpzAdapter(),
        ParquetAdapter(),
        CsvAdapter(),
        SavedArrowAdapter(),
        XmcAdapter(),
        ImageFolderAdapter(),
        FactoryAdapter(),
    )
}
# Data sets that have a name of their own.
DATASETS = tuple(name for adapter in ADAPTERS.values() for name in adapter.known)
registry: Registry[Callable[[], Any]] = Registry("datasets", ["auto", *DATASETS, *ADAPTERS])


class _UnknownName(DataError):
    """No adapter knows the name."""


def load_dataset(
    data: str | DataSource | Mapping[str, Any] = "auto",
    folder: str | Path | None = None,
    *,
    label: str | None = None,
    target: str = "class",
    inputs: Mapping[str, str] | None = None,
    tensors: Sequence[Tensor] = (),
    images: ImageOptions | None = None,
    classes: Sequence[str] = (),
    stored: bool = False,
) -> Dataset:
    """Load the data set called ``data`` (see ``DATASETS``), or at the path ``data``; ``auto`` is ``default_dataset()``.

    A path may be followed by a colon and the label column, and anything preceded by an adapter's name and a colon,
    which chooses that adapter. Relative paths are also searched in ``folder``, by default ``$SLOTOOL_DATA_DIR``.
    Nothing is downloaded. ``label``, ``target``, ``inputs``, ``tensors``, ``images``, ``classes``: see ``DataOptions``;
    a ``DataSource``, or its ``document()``, holds some of them with the name. ``stored``: leave the examples in their
    files; each ``x`` is then a ``StoredExamples``.

    Raises ``DataError`` for an unknown name, and for data that are missing, damaged or of another form, naming file,
    column and row.
    """
    source = DataSource.of(data)
    source = replace(
        source, label=label or source.label, inputs=inputs or source.inputs, images=images or source.images
    )
    requested = DataOptions(target=target, tensors=tuple(tensors), classes=tuple(classes))
    return open_dataset(source, requested, folder, stored=stored)


def open_dataset(
    data: str | DataSource | Mapping[str, Any],
    options: DataOptions,
    folder: str | Path | None = None,
    *,
    stored: bool = False,
) -> Dataset:
    """Return ``load_dataset`` with its options in one object; what ``data`` says itself goes before them."""
    source = DataSource.of(data)
    source = replace(source, name=default_dataset() if source.name == "auto" else source.name)
    adapter, location, options = locate(source.name, options.of_source(source), folder)
    opened = None if isinstance(adapter, XmcAdapter) else _opened(adapter, location, options)
    if opened is None or isinstance(opened, MultiLabelDataset):
        raise _many_labels(source.name)
    if isinstance(opened, Dataset):
        if replace(options, tensors=(), classes=(), features=()) != DataOptions():
            what = "options for labels, inputs and images have no effect"
            raise DataError(f"{source.name} is a finished data set: {what}")
        # A plugin may have made it of another data set.
        is_named = opened.source and not isinstance(adapter, PluginAdapter)
        return opened if is_named or source.name == opened.name else replace(opened, source=source.document())
    return replace(assemble(opened, options, stored=stored), source=source.document())


def load_multilabel(data: str | DataSource | Mapping[str, Any], folder: str | Path | None = None) -> MultiLabelDataset:
    """Return the multi-label data set of this name or path.

    A folder of the Extreme Classification Repository's files (see ``xmc.load_xmc``), also by its name in
    ``folder`` or its ``xmc``, by default ``$SLOTOOL_DATA_DIR``; or anything that ``load_dataset`` reads whose labels
    are lists of classes. Nothing is downloaded.
    Raises ``DataError`` when there is no such set, naming file and line where it is damaged.
    """
    source = DataSource.of(data)
    name = source.name
    if name in DATASETS or name == "auto":
        raise DataError(f"{name} has one class per example; a set of any number of labels per example is needed")
    searched = Path(folder) if folder else data_folder()
    try:
        adapter, location, options = locate(name, DataOptions(target="sets").of_source(source), searched)
    except _UnknownName:
        where = f"{searched} holds {', '.join(multilabel_names(searched)) or 'none'}" if searched else "it is not set"
        raise DataError(
            f"no multi-label data set {name!r}: it is neither a folder with train.txt and test.txt (or features.csv "
            f"and tracks.csv), nor a name in ${DATA_DIR_VARIABLE} ({where})"
        ) from None
    opened = _opened(adapter, location, options)
    if isinstance(opened, MultiLabelDataset):
        return opened if opened.source else replace(opened, source=source.document())
    dataset = opened if isinstance(opened, Dataset) else assemble(opened, options)
    if dataset.target != "sets":
        raise DataError(f"{name} has one label per example; a set of any number of labels per example is needed")
    dataset.input_shape  # noqa: B018  (raises where examples are no one tensor)
    train, validation, test = (MultiLabelSplit(split.x, split.y) for split in dataset.splits.values())
    return MultiLabelDataset(dataset.name, train, validation, test, dataset.classes, source=source.document())


def locate(
    name: str, options: DataOptions, folder: str | Path | None = None
) -> tuple[DataAdapter, Location, DataOptions]:
    """Return the adapter for ``name``, the data's location, and options with the label column that ``name`` ends in.

    Built-in names and prefixes come first, then those of plugins, then paths and modules. Raises ``DataError`` if no
    adapter has the name, or nothing lies there.
    """
    searched = Path(folder) if folder else data_folder()
    name = default_dataset() if name == "auto" else name
    prefix, colon, rest = name.partition(":")
    for adapter in ADAPTERS.values():
        if name in adapter.known:
            return adapter, Location(name, Path(name), searched), options
    for adapter in ADAPTERS.values():
        if urlsplit(name).scheme in adapter.schemes:
            return adapter, Location(name, Path(name), searched), options
        if colon and prefix == adapter.name:
            text, label = next(((t, c) for t, c in _readings(rest) if _path(t, searched).exists()), (rest, None))
            return adapter, Location(text, _path(text, searched), searched), options.for_label(label)
    if not _path(name, searched).exists() and prefix in registry.plugins:
        return _of_plugin(prefix, rest, options, searched)
    for text, label in _readings(name):
        location = Location(text, _path(text, searched), searched)
        match = _by_content(location)
        if match is not None:
            return match, location, options.for_label(label)
    for text, label in ((name, None), name.rpartition(":")[::2]):
        location = Location(text, _path(text, searched), searched)
        for plugin in registry.plugins if location.path.is_file() else ():
            with suppress(PluginError):  # an error only for a request of its name
                adapter = PluginAdapter(plugin, registry.load(plugin))
                if adapter.recognises(location):
                    return adapter, location, options.for_label(label)
    raise _unknown(name, searched)


def has_many_labels(data: str | DataSource | Mapping[str, Any], folder: str | Path | None = None) -> bool:
    """True if ``data`` is a set of any number of labels per example, by the kind of its files."""
    try:
        return isinstance(locate(DataSource.of(data).name, DataOptions(), folder)[0], XmcAdapter)
    except DataError:
        return False


def multilabel_names(folder: Path) -> list[str]:
    """Return the names by which ``load_multilabel`` finds sets in ``folder``."""
    below = [path for parent in (folder / XMC_FOLDER, folder) if parent.is_dir() for path in sorted(parent.iterdir())]
    return [path.name for path in below if ADAPTERS["xmc"].recognises(Location(path.name, path))]


def default_dataset() -> str:
    """Return ``fashion-mnist`` when its files lie in ``$SLOTOOL_DATA_DIR``, else ``digits``, which needs none."""
    return "fashion-mnist" if has_fashion_mnist(data_folder()) else "digits"


def shipped_dataset(name: str) -> Path:
    """Return the folder of a data set shipped with slotool: in ``datasets/``, or in a wheel's.

    Raises ``DataError`` if this installation lacks it.
    """
    return _shipped(name, "data set")


def shipped_table(name: str) -> Path:
    """Return the path of a table shipped with slotool, as ``shipped_dataset``."""
    return _shipped(name, "table")


def _shipped(name: str, what: str) -> Path:
    package = Path(slotool.__file__).parent
    for folder in (package / "shipped_datasets", package.parent / "datasets"):
        if (folder / name).exists():
            return folder / name
    raise DataError(f"this installation of slotool came without the {what} {name}")


def data_folder() -> Path | None:
    """Return ``$SLOTOOL_DATA_DIR`` when it is set."""
    value = os.environ.get(DATA_DIR_VARIABLE)
    return Path(value) if value else None


def _readings(name: str) -> list[tuple[str, str | None]]:
    """Return a location, and one followed by a colon and a label column; a file's suffix before the colon decides."""
    before, colon, label = name.rpartition(":")
    if not (colon and before and label):
        return [(name, None)]
    suffixes = tuple(suffix for adapter in ADAPTERS.values() for suffix in adapter.suffixes)
    return [(before, label)] if before.lower().endswith(suffixes) else [(name, None), (before, label)]


def _by_content(location: Location) -> DataAdapter | None:
    """Return the adapter by suffix, else by content."""
    path = location.path
    if not path.is_dir():
        for adapter in ADAPTERS.values():
            if path.name.lower().endswith(adapter.suffixes or ("/",)):
                require_regular(path, DataError)
                return adapter
    return next((adapter for adapter in ADAPTERS.values() if adapter.recognises(location)), None)


def _opened(adapter: DataAdapter, location: Location, options: DataOptions) -> Any:
    if location.path.exists() and not location.path.is_dir():
        require_regular(location.path)
    return adapter.open(location, options)


def _path(text: str, searched: Path | None) -> Path:
    """Return ``text`` as a path, or if absent, the one in the data folder or among its multi-label sets."""
    path = Path(text)
    if path.exists() or searched is None or not text:
        return path
    inside = (searched / XMC_FOLDER / text, searched / text)
    return next((match for match in inside if match.exists()), path)


def _of_plugin(
    name: str, rest: str, options: DataOptions, searched: Path | None
) -> tuple[DataAdapter, Location, DataOptions]:
    """Return ``name:location`` where a plugin reads a kind of data, ``name`` or ``name:LABEL`` where it has one set."""
    adapter = PluginAdapter(name, registry.load(name))
    if adapter.takes_location:
        return adapter, Location(rest, _path(rest, searched), searched), options
    return adapter, Location(name, Path(name), searched), options.for_label(rest or None)


def _unknown(name: str, searched: Path | None) -> DataError:
    path = _path(name, searched)
    if path.is_dir():
        return _UnknownName(f"{path}: no adapter reads this folder; it may hold {_readable(folders=True)}")
    files = ", ".join(suffix for adapter in ADAPTERS.values() for suffix in adapter.suffixes)
    for text in (name, name.rpartition(":")[0]):
        if text and (match := _path(text, searched)).is_file():
            return _UnknownName(f"{match}: this is no data file; files that end in {files} are read")
    names = ", ".join([*DATASETS, *registry.plugins])
    return _UnknownName(
        f"no data set called {name!r}; there are {names}, or give a file ({files}), a folder or module:factory"
    )


def _readable(*, folders: bool) -> str:
    kinds = [adapter.reads for adapter in ADAPTERS.values() if adapter.reads.startswith("a folder") == folders]
    return "; or ".join(kind.removeprefix("a folder of ").removeprefix("a folder that holds ") for kind in kinds)


def _many_labels(name: str) -> DataError:
    return DataError(
        f"{name} has any number of labels per example; here only sets of one class per example can be used: "
        f"{', '.join(DATASETS)}, or files and folders with one label per example"
    )
