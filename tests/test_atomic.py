"""Whatever happens while a file or folder is written, its place holds the old one, the new one, or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slotool.atomic import whole_file, whole_folder
from slotool.errors import AlreadyExistsError, InputError


def fail_at(path: Path) -> None:
    path.write_text("half")
    raise ZeroDivisionError


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "new" / "table.csv"
    with whole_file(out) as partial:
        partial.write_text("half")
        assert not out.exists()
        partial.write_text("whole")
    assert [path.name for path in out.parent.iterdir()] == ["table.csv"]
    assert out.read_text() == "whole"


@pytest.mark.parametrize("before", ["old", None])
def test_a_file_that_fails_leaves_what_was_there(tmp_path: Path, before: str | None) -> None:
    out = tmp_path / "table.csv"
    if before is not None:
        out.write_text(before)
    with pytest.raises(ZeroDivisionError), whole_file(out) as partial:
        fail_at(partial)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == ({"table.csv": "old"} if before else {})


def test_of_two_that_write_at_once_exactly_one_wins(tmp_path: Path) -> None:
    out = tmp_path / "rules.json"

    def write_slowly() -> None:
        with whole_file(out, replace=False) as partial:
            partial.write_text("slower")
            out.write_text("faster")  # by another process, before this one is done

    with pytest.raises(AlreadyExistsError, match=r"rules\.json exists already: another process"):
        write_slowly()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"rules.json": "faster"}


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    out = tmp_path / "plots"
    for name in ("first", "second"):
        with whole_folder(out) as partial:
            (partial / name).touch()
    assert [path.name for path in tmp_path.iterdir()] == ["plots"]
    assert [path.name for path in out.iterdir()] == ["second"]


def test_a_folder_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    out = tmp_path / "plots"
    out.mkdir()
    (out / "old").touch()
    with pytest.raises(ZeroDivisionError), whole_folder(out) as partial:
        fail_at(partial / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["plots"]
    assert [path.name for path in out.iterdir()] == ["old"]


def test_a_folder_behind_a_link_is_replaced_and_a_pipe_there_is_not(tmp_path: Path) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to("plots")
    for name in ("first", "second"):
        with whole_folder(link) as partial:
            (partial / name).touch()
    assert link.is_symlink()
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["second"]
    os.mkfifo(pipe)
    with pytest.raises(InputError), whole_folder(pipe):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "plots"]
