"""What every command shares: help by theme, options for the terminal, options from a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slotool.cli import terminal
from slotool.cli.app import command as command_line
from slotool.cli.output import Output

Slotool = Callable[..., Any]
SCREEN_LINES, SCREEN_COLUMNS = 25, 80


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", [*commands(command_line())], ids=lambda path: " ".join(("slotool", *path)))
def test_help_starts_with_an_example_and_fits_two_screens(
    slotool: Slotool, monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", str(SCREEN_COLUMNS))
    lines = slotool(*path, "--help").stdout.splitlines()
    after_usage = next(line for line in lines[1:] if line.strip() and not line.startswith(" " * 8))
    assert after_usage.strip().startswith(f"Example: slotool {' '.join(path)}")
    assert len(lines) <= 2 * SCREEN_LINES
    assert max(map(len, lines)) <= SCREEN_COLUMNS


def test_the_list_of_commands_has_a_line_for_each(slotool: Slotool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(SCREEN_COLUMNS))
    lines = slotool("--help").stdout.splitlines()
    for name in command_line().commands:  # it is a group
        at = next(i for i, line in enumerate(lines) if line.startswith(f"  {name} "))
        assert not lines[at + 1].startswith(" " * 10), name


@pytest.mark.parametrize(("option", "behind"), [("--tolerances", "-o"), ("-o", "--json")])
def test_an_option_is_not_the_value_of_the_one_before_it(slotool: Slotool, option: str, behind: str) -> None:
    done = slotool("gen-rules", "out.csv", option, behind, "a.json")
    assert done.exit_code == 2
    assert f"Invalid value for {option}: it needs a value" in done.stderr


def test_a_long_example_can_be_copied_whole(slotool: Slotool) -> None:
    example = slotool("gen-switching-plan", "--help").stdout.partition("Example: ")[2].partition("\n\n")[0]
    command = " ".join(example.replace("\\\n", " ").split())
    assert "\\\n" in example
    assert command.endswith(
        " --outcomes family-outcomes.parquet --latency family-latency.parquet --deadline-ms 20 -o plan.json"
    )


def test_commands_are_listed_by_theme_and_no_sentence_is_cut(slotool: Slotool) -> None:
    shown = slotool("--help").stdout
    assert "Commands:" not in shown
    assert "..." not in shown.partition("\n")[2]
    assert "…" not in shown
    for theme in ("Measure and predict:", "SLO-NN and supernets:", "Rules, plans and serving:"):
        assert theme in shown


@pytest.mark.parametrize("place", ["before the command", "after it"])
def test_quiet_leaves_out_remarks(slotool: Slotool, tmp_path: Path, place: str) -> None:
    command = ["generate", "mlp", "-o", str(tmp_path / "mlps.parquet"), "-n", "3", "--force"]
    assert "drawing MLPs" in slotool(*command).stderr
    finished = slotool("--quiet", *command) if place.startswith("before") else slotool(*command, "--quiet")
    assert finished.stderr == ""
    assert "wrote" in finished.stdout


def test_quiet_keeps_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.change(quiet=True)
    try:
        Output().warn("a core is missing")
    finally:
        terminal.reset()
    assert capsys.readouterr().err == "warning: a core is missing\n"


def test_finished_work_has_no_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("slotool.cli.output.LINE_S", 0.0)
    with Output().progress("drawing", total=2) as steps:
        steps.advance()
        steps.advance()
    _, half, whole = capsys.readouterr().err.splitlines()
    assert (half.endswith("left"), whole) == (True, "drawing: 2 of 2")


def test_colour_is_for_terminals_unless_asked_for(slotool: Slotool) -> None:
    assert "\x1b[" not in slotool("doctor").stdout
    assert "\x1b[" in slotool("doctor", "--color", "always").stdout
    refused = slotool("doctor", "--color", "pink")
    assert refused.exit_code == 2
    assert "auto, always, never" in refused.stderr


def test_quiet_and_verbose_contradict_each_other(slotool: Slotool) -> None:
    assert slotool("doctor", "--quiet", "--verbose").exit_code == 2


def test_options_come_from_a_file_and_the_command_line_goes_before_it(slotool: Slotool, tmp_path: Path) -> None:
    config, out = tmp_path / "mlps.toml", tmp_path / "mlps.parquet"
    config.write_text('count = 4\ninput-shape = "10"\nseed = 7\n')
    found = json.loads(slotool("generate", "mlp", "-o", out, "--config", config, "--seed", "8", "--json").stdout)
    assert (found["written"], found["input_shape"], found["seed"]) == (4, [10], 8)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour = 1", "'colour' is no option of mlp"),
        ("cuont = 1", "'cuont' is no option of mlp; did you mean 'count'?"),
        ("[seed]\nvalue = 1", "'seed' is a table; write options at the top"),
        ("seed = = 1", "cannot be read as TOML"),
        ('seed = "many"', "mlps.toml: seed: "),
    ],
)
def test_a_wrong_file_of_options_is_refused(slotool: Slotool, tmp_path: Path, text: str, said: str) -> None:
    config = tmp_path / "mlps.toml"
    config.write_text(text)
    finished = slotool("generate", "mlp", "-o", tmp_path / "mlps.parquet", "--config", config)
    assert finished.exit_code == 2
    assert said in " ".join(finished.stderr.split())
    assert not (tmp_path / "mlps.parquet").exists()


def test_a_file_of_options_that_is_not_there_is_said_to_be_missing(slotool: Slotool, tmp_path: Path) -> None:
    missing = slotool("generate", "mlp", "-o", tmp_path / "mlps.parquet", "--config", "nowhere.toml")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert "--config: nowhere.toml: no such file" in " ".join(missing.stderr.split())


INPUT = "numbers.csv"


@pytest.mark.parametrize(
    "command",
    [
        ("gen-rules", INPUT, "-o", INPUT),
        ("gen-rules", INPUT, "-o", "linked.csv"),
        ("serve", "models/family", "--rules", INPUT, "--log", INPUT),
        ("train-predictor", "other.csv", INPUT, "--graphs", "nets.parquet", "-o", INPUT),
        ("generate", "arrivals", "--trace", INPUT, "-o", INPUT),
        ("report", "other.csv", INPUT, "-o", INPUT),
        ("profile", "solo", INPUT, "-o", INPUT),
        ("capture", "--onnx", INPUT, "-o", INPUT),
        ("family", f"a={INPUT}", "--data", "other.csv:kind", "-o", INPUT),
        ("family", "a=m.onnx", "--data", f"{INPUT}:kind", "-o", "fam", "--outcomes", INPUT),
        ("family", "a=m.onnx", "--data", f"csv:{INPUT}:kind", "-o", "fam", "--latency", INPUT),
        ("family", "a=m.onnx", "--data", INPUT, "--label", "kind", "-o", "fam", "--outcomes", INPUT),
        ("evaluate", "models/family", "--data", f"{INPUT}:kind", "-o", INPUT),
    ],
    ids=" ".join,
)
def test_no_command_writes_over_its_input(
    slotool: Slotool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(INPUT).write_text("measured")
    Path("linked.csv").symlink_to(INPUT)
    forced = () if command[0] == "serve" else ("--force",)
    finished = slotool(*command, *forced)
    assert (finished.exit_code, Path(INPUT).read_text()) == (2, "measured")
    assert f"{command[-1]} is also an input; name another output" in finished.stderr


def test_two_outputs_are_two_files(slotool: Slotool) -> None:
    finished = slotool("family", "a=m.onnx", "--data", "d.csv:kind", "-o", "made", "--outcomes", "made")
    assert finished.exit_code == 2
    assert "made is given as two outputs" in finished.stderr


def test_no_folder_is_replaced_that_holds_an_input_and_no_file_of_options(slotool: Slotool, tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    outcomes, config = tmp_path / "rules" / "outcomes.csv", tmp_path / "options.toml"
    outcomes.write_text("measured")
    config.write_text("seed = 1")
    refused = slotool("gen-rules", outcomes, "-o", tmp_path / "rules", "--force")
    assert (refused.exit_code, "lies in" in refused.stderr) == (2, True)
    refused = slotool("generate", "mlp", "-o", config, "--config", config, "--force")
    assert (refused.exit_code, config.read_text()) == (2, "seed = 1")
