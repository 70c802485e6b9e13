"""JSON files that declare the name and version of their schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotool import strict_json
from slotool.atomic import whole_file
from slotool.errors import InputError
from slotool.regular_files import open_regular, require_regular

_PARQUET = b"PAR1"


def save_document(path: str | Path, document: Mapping[str, Any], *, replace: bool = True) -> None:
    """Write ``document``, which names its schema, by one rename.

    Raises ``AlreadyExistsError`` without ``replace`` if ``path`` exists.
    """
    with whole_file(path, replace=replace) as partial:
        partial.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")


def load_document(path: str | Path, schema: str, version: int, what: str, *, from_table: str = "") -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises ``InputError`` for anything but a JSON object of this schema and version.

    Args:
        path: File to read.
        schema: Name of the schema that the document must state.
        version: Version that it must state.
        what: Noun for the document in messages.
        from_table: Command that makes such a document of a table, for the message about a table.
    """
    require_regular(path)
    try:
        document = strict_json.read(Path(path))
    except OSError as error:
        raise InputError(f"{path}: not a JSON file ({error.strerror})") from error
    except InputError as error:
        if not _is_parquet(Path(path)):
            raise
        hint = f"; {from_table}" if from_table else ""
        raise InputError(f"{path}: a table (Parquet), not a {what} (JSON){hint}") from error
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise InputError(f"{path}: not a {what} (schema {schema})")
    if document.get("schema_version") != version:
        name, stated = schema.rpartition("/")[2], str(document.get("schema_version"))[:40]
        raise InputError(f"{path}: {name} schema version {stated}, expected {version}")
    return document


def _is_parquet(path: Path) -> bool:
    with open_regular(path) as file:
        return file.read(len(_PARQUET)) == _PARQUET
