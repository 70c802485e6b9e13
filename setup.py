"""Packages: all of slotool, and models/ as slotool.models, so that what it trained itself comes with it."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["slotool*"]), "slotool.models"],
    package_dir={"slotool.models": "models"},
    package_data={"slotool": ["py.typed"], "slotool.models": ["**/*"], "slotool.serving": ["*.html"]},
)
