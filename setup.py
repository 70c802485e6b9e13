"""Packages: slotool, with ``models/`` as slotool.shipped and the data of demo, figures and names, of ``datasets/``."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["slotool*"]), "slotool.shipped", "slotool.shipped_datasets"],
    package_dir={"slotool.shipped": "models", "slotool.shipped_datasets": "datasets"},
    include_package_data=False,  # or folders of models count as packages
    package_data={
        "slotool": ["py.typed"],
        "slotool.shipped": ["**/*"],
        "slotool.shipped_datasets": [
            *("README.md", "tate-16k/*", "fashion-mnist-supernet-*.parquet", "timm-networks.parquet")
        ],
        "slotool.predictors.settings": ["*.toml"],
        "slotool.serving.front": ["*.html"],
        "slotool.serving.protocol": ["*.json"],
    },
)
