"""Artifacts that come with slotool itself: those of ``models/``, which a wheel holds as ``slotool.shipped``."""

from __future__ import annotations

from pathlib import Path

import slotool
from slotool.artifacts.bundle import Artifact, open_artifact
from slotool.errors import ArtifactError


def shipped_artifact(name: str, kind: str | None = None) -> Artifact:
    """The artifact of this name that slotool ships. Raises ``ArtifactError`` when there is none, or of another kind."""
    package = Path(slotool.__file__).parent
    for models in (package / "shipped", package.parent / "models"):
        if (models / name).is_dir():
            return open_artifact(models / name, kind)
    raise ArtifactError(f"this installation of slotool came without the artifact {name}")
