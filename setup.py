"""Packages: all of slotool, and models/ as slotool.shipped, so that what it trained itself comes with it."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["slotool*"]), "slotool.shipped"],
    package_dir={"slotool.shipped": "models"},
    package_data={"slotool": ["py.typed"], "slotool.shipped": ["**/*"], "slotool.serving": ["*.html"]},
)
