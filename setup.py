"""Packages: all of slotool; models/ as slotool.shipped, and of datasets/ what the demo trains on and
figures are reproduced from, so that they come with it."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["slotool*"]), "slotool.shipped", "slotool.shipped_datasets"],
    package_dir={"slotool.shipped": "models", "slotool.shipped_datasets": "datasets"},
    package_data={
        "slotool": ["py.typed"],
        "slotool.shipped": ["**/*"],
        "slotool.shipped_datasets": ["tate-16k/*", "fashion-mnist-supernet-*.parquet"],
        "slotool.serving.front": ["*.html"],
        "slotool.serving.protocol": ["*.json"],
    },
)
