"""Reading of predictor artifacts of document versions 2 and 3, which had other names for files and tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from slotool.artifacts import Artifact

# Name of a part, and of its files until version 3.
_EARLIER_FILES = {"colocated": "together"}
# Keys of ``Setting``.
_EARLIER_SETTING = {"policy": "placement"}
# Of the graph network and of the sharing predictor.
_EARLIER_TENSORS = {"enter": "input_proj", "deepen": "hidden", "leave": "readout", "demands": "features"}
_PATTERN = re.compile(rf"(^|\.)({'|'.join(_EARLIER_TENSORS)})(?=\.|$)")


def file_name(artifact: Artifact, part: str) -> str:
    """Name, without suffix, of the files of a part in this artifact."""
    earlier = _EARLIER_FILES.get(part, part)
    files = artifact.manifest["files"]
    return earlier if f"{earlier}.json" in files and f"{part}.json" not in files else part


def holds(artifact: Artifact, part: str) -> bool:
    """Whether the artifact has the part, under its name or an earlier one."""
    return f"{file_name(artifact, part)}.json" in artifact.manifest["files"]


def renamed_setting(setting: Mapping[str, Any]) -> dict[str, Any]:
    """The setting's JSON under its present keys."""
    return {_EARLIER_SETTING.get(name, name): value for name, value in setting.items()}


def renamed_tensors(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors under their present names, also those of predictors within predictors."""
    return {_PATTERN.sub(lambda found: found[1] + _EARLIER_TENSORS[found[2]], name): v for name, v in tensors.items()}
