"""Versioned bundles on disk: a folder of safetensors, Parquet and JSON with a manifest written last."""

from slotool.artifacts.bundle import Artifact, ArtifactWriter, create_artifact, open_artifact

__all__ = ["Artifact", "ArtifactWriter", "create_artifact", "open_artifact"]
