"""Signs of life: when they come, what they say, and that they leave the screen and the streams as they were."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

import jaxsink
from jaxsink.cli import platform
from jaxsink.cli.main import main
from jaxsink.runs import progress, reporter
from jaxsink.runs.progress import bytes_progress, duration, human_bytes, reporting, stage
from jaxsink.runs.reporter import EVERY, PATIENCE, Heard, Reporter

pytestmark = pytest.mark.usefixtures("quick_compilation")


class Screen(io.StringIO):
    """A file that may be a terminal; `new()` is what came since the last look."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal, self.seen = is_terminal, 0

    def isatty(self) -> bool:
        return self.is_terminal

    def new(self) -> str:
        begin, self.seen = self.seen, len(self.getvalue())
        return self.getvalue()[begin:]


class Waiting:
    """A reporter whose clock is set by hand."""

    def __init__(self, is_terminal: bool) -> None:
        self.now = 100.0
        self.screen = Screen(is_terminal)
        console = Console(file=self.screen, force_terminal=is_terminal, width=100, height=20, legacy_windows=False)
        self.reporter = Reporter(console, lambda: self.now)
        self.out = Heard(self.screen, self.reporter)

    def after(self, seconds: float) -> str:
        self.now += seconds
        self.reporter.beat()
        return self.screen.new()


@pytest.fixture
def plain() -> Waiting:
    return Waiting(False)


@pytest.fixture
def terminal(monkeypatch) -> Waiting:
    monkeypatch.setenv("TERM", "xterm")
    return Waiting(True)


def test_plain_lines_come_after_a_second_and_then_every_few(plain):
    assert PATIENCE <= 1.5 and EVERY <= 5
    plain.reporter.add("starting", None, "", "", None)
    assert plain.after(PATIENCE - 0.1) == ""
    assert plain.after(0.2) == "[    1 s] starting\n"
    assert plain.after(EVERY - 0.1) == ""
    number = plain.reporter.add("training", 600, "steps", "compiling", None)
    assert plain.after(0.2) == "[    6 s] training 0 of 600 steps, compiling\n"
    plain.reporter.update(number, done=10, detail="loss 2.3")
    plain.after(EVERY)
    plain.reporter.update(number, done=60)
    assert plain.after(EVERY) == "[   16 s, about 54 s left] training 60 of 600 steps, loss 2.3\n"
    plain.reporter.remove(number)
    assert plain.after(EVERY) == "[   21 s] working\n"


def test_who_hears_something_else_needs_no_sign(plain):
    plain.reporter.add("starting", None, "", "", None)
    for _ in range(5):
        plain.now += 0.8
        plain.out.write("a note\n")
        assert plain.after(0.1) == "a note\n"
    plain.out.write("half a line")
    assert plain.after(PATIENCE) == "half a line\n[    5 s] starting\n"


def test_short_stages_do_not_put_the_next_line_off(plain):
    plain.reporter.add("starting", None, "", "", None)
    for _ in range(4):
        number = plain.reporter.add("loading", 3, "", "", None)
        plain.now += 0.3
        plain.reporter.remove(number)
    assert plain.after(0) == "[    1 s] working\n"


def test_stages_inside_each_other_show_bars_and_the_innermost(plain):
    outer = plain.reporter.add("study", 4, "parts", "", None)
    plain.reporter.add("checking", None, "", "", None)
    plain.reporter.add("loading x", None, "", "", None)
    plain.reporter.update(outer, done=1)
    assert plain.after(PATIENCE) == "[    1 s] study 1 of 4 parts: loading x\n"


def test_parts_that_differ_give_the_time_left_by_their_costs(plain, monkeypatch):
    monkeypatch.setattr(progress, "_reporter", plain.reporter)
    with progress.progress([10, 30]) as (begin, end):
        begin("the first")
        assert plain.after(PATIENCE) == "[    1 s] the first\n"
        plain.now += 4
        end()
        begin("the second")
        assert plain.after(5) == "[   10 s, about 30 s left] the second\n"  # 10 s for a quarter


def test_parts_inside_a_part_move_its_time_left(plain: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts of 10 and 30; the second is shared out in three and one: after three of them 10 + 22.5 of 40 are done."""
    monkeypatch.setattr(progress, "_reporter", plain.reporter)
    with progress.progress([10, 30]) as (begin, end):
        begin("one")
        plain.now += 10
        end()
        begin("two")
        with progress.progress([3, 1]) as (begin_inner, end_inner):
            begin_inner("first")
            plain.now += 22.5
            end_inner()
            begin_inner("second")
            line = plain.after(EVERY)
        assert "two: second" in line and (row := plain.reporter.rows.tasks[-1]).completed == 32.5 and row.total == 40
        assert len(plain.reporter.rows.tasks) == 1 and re.search(r"about \d+ s left", line)
        end()
        assert plain.reporter.rows.tasks[-1].completed == 40
    assert progress._share is None


def test_bytes_are_counted_anew_for_each_pass(plain, monkeypatch):
    monkeypatch.setattr(progress, "_reporter", plain.reporter)
    with bytes_progress() as tell:
        tell("converting", 1 << 20, 4 << 20)
        assert plain.after(PATIENCE) == "[    1 s] converting 1.00 MiB of 4.00 MiB\n"
        tell("converting", 4 << 20, 4 << 20)
        tell("verifying", 1 << 20, 4 << 20)
        plain.after(1)
        tell("verifying", 2 << 20, 4 << 20)
        assert plain.after(EVERY) == "[    7 s, about 2 s left] verifying 2.00 MiB of 4.00 MiB\n"


def test_a_terminal_gets_a_line_that_moves_and_goes(terminal):
    number = terminal.reporter.add("loading x", None, "", "", None)
    assert terminal.after(PATIENCE - 0.1) == ""
    first, second = terminal.after(0.2), terminal.after(0.1)
    assert "loading x" in first and "\x1b[?25l" in first  # the cursor is hidden
    assert "loading x" in second and first.split("loading")[0][-6:] != second.split("loading")[0][-6:]  # the spinner
    terminal.out.write("a note\n")
    shown = terminal.screen.new()
    assert "\x1b[?25h" in shown and shown.endswith("\x1b[2Ka note\n")  # the line is gone before others write
    assert terminal.after(PATIENCE - 0.1) == "" and "loading x" in terminal.after(0.2)
    terminal.reporter.remove(number)
    assert terminal.screen.new().endswith("\x1b[2K")


def test_a_bar_shows_at_once_but_never_within_a_line(terminal):
    terminal.reporter.add("training", 600, "steps", "", "the canvas")
    shown = terminal.after(0)
    assert "training 0 of 600 steps" in shown and "the canvas" in shown
    terminal.out.write("half a")
    terminal.screen.new()
    assert terminal.after(0.2) == ""
    terminal.out.write(" line\n")
    assert "training" in terminal.after(0.2)
    terminal.out.write("half a line")
    terminal.screen.new()
    assert terminal.after(PATIENCE).startswith("\n")


def test_without_a_person_stages_cost_nothing():
    with stage("loading", total=3) as task:
        task.update(1, detail="x")
        task.restart()
        task.draw()
    assert task.reporter is None


def fast_reporter(monkeypatch) -> Screen:
    """What it writes to stderr. (No fixture: pytest sets sys.stderr anew between setup and test.)"""
    screen = Screen(False)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(reporter, "PATIENCE", 0.05)
    monkeypatch.setattr(reporter, "EVERY", 0.05)
    monkeypatch.setattr(progress, "FRAME", 0.01)
    return screen


def wait_for(screen: Screen, text: str, times: int = 1) -> None:
    deadline = time.monotonic() + 20
    while screen.getvalue().count(text) < times:
        assert time.monotonic() < deadline, screen.getvalue()
        time.sleep(0.01)


def test_the_heart_beats_while_work_waits_and_stops_with_it(monkeypatch):
    lines = fast_reporter(monkeypatch)
    streams = sys.stdout, sys.stderr
    with reporting(), stage("compiling"):
        assert isinstance(sys.stderr, Heard) and sys.stdout is streams[0]  # which is no terminal here
        with reporting():  # joins the one that is there
            wait_for(lines, "compiling")
        wait_for(lines, "] compiling\n", times=3)
    assert (sys.stdout, sys.stderr) == streams and progress._reporter is None
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_an_interrupt_ends_it_cleanly(monkeypatch):
    lines = fast_reporter(monkeypatch)

    def interrupted() -> None:
        with reporting(), stage("compiling"):
            wait_for(lines, "compiling")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sys.stderr is lines and progress._reporter is None
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_programs_that_call_the_command_line_get_results_only(monkeypatch, capsys):
    lines = fast_reporter(monkeypatch)
    assert main(["inspect", "mini-llada", "--json"]) == 0
    assert not isinstance(sys.stderr, Heard) and lines.getvalue() == ""


def test_loading_names_the_model_and_its_size(plain, monkeypatch):
    monkeypatch.setattr(progress, "_reporter", plain.reporter)
    printed = []
    model = SimpleNamespace(with_origin=lambda origin: None)
    monkeypatch.setattr(
        "jaxsink.checkpoints.storage.Reader.model", lambda *_: printed.append(plain.after(PATIENCE)) or model
    )
    jaxsink.load("mini-llada")
    assert re.fullmatch(r"\[    1 s\] loading mini-llada, \d\.\d\d MiB\n", printed[0])


def test_only_the_first_host_prints(plain, monkeypatch):
    plain.reporter.add("working", None, "", "", None)
    half_imported = SimpleNamespace()
    for jax, prints in (
        (half_imported, True),
        (SimpleNamespace(distributed=SimpleNamespace(is_initialized=lambda: False)), True),
        (SimpleNamespace(distributed=SimpleNamespace(is_initialized=lambda: True), process_index=lambda: 1), False),
        (SimpleNamespace(distributed=SimpleNamespace(is_initialized=lambda: True), process_index=lambda: 0), True),
    ):
        monkeypatch.setitem(sys.modules, "jax", jax)
        assert bool(plain.after(EVERY)) == prints


def test_durations_and_sizes():
    assert [duration(s) for s in (0.4, 59.4, 61, 3599, 3700)] == ["0 s", "59 s", "1:01", "59:59", "1:01 h"]
    assert [human_bytes(n) for n in (5, 2048, 3 << 30)] == ["5 B", "2.00 KiB", "3.00 GiB"]


# libtpu without a TPU


def card(root, name: str, vendor: str, device: str) -> None:
    folder = root / "sys/bus/pci/devices" / name
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(vendor + "\n")
    (folder / "device").write_text(device + "\n")


@pytest.mark.parametrize("name", ["accel0", "vfio/0", "nvidia0", "nvidiactl", "dxg", "kfd"])
def test_device_files_of_accelerators(tmp_path, name):
    (tmp_path / "dev/vfio").mkdir(parents=True)
    (tmp_path / "dev/vfio/vfio").touch()  # is there without any device
    assert not platform.has_accelerator(tmp_path)
    (tmp_path / "dev" / name).touch()
    assert platform.has_accelerator(tmp_path)


def test_pci_cards_of_accelerators(tmp_path):
    assert not platform.has_accelerator(tmp_path)
    card(tmp_path, "0", "0x8086", "0x0063")
    card(tmp_path, "1", "0x1ae0", "0x0042")  # a network card of a virtual machine
    assert not platform.has_accelerator(tmp_path)
    card(tmp_path, "2", "0x1ae0", "0x0063")
    assert platform.has_accelerator(tmp_path)


@pytest.mark.parametrize(
    ("environment", "is_installed", "is_there", "expected"),
    [
        ({}, True, False, "cpu"),
        ({}, True, True, None),
        ({}, False, False, None),
        ({"JAX_PLATFORMS": "tpu"}, True, False, "tpu"),
        ({"TPU_NAME": "v5e"}, True, False, None),
        ({"TPU_SKIP_MDS_QUERY": "1", "TPU_LIBRARY_PATH": "/x/libtpu.so"}, True, False, "cpu"),
        ({"JAX_FORCE_TPU_INIT": "1"}, True, False, None),
    ],
)
def test_the_cpu_is_taken_where_nothing_else_is(monkeypatch, environment, is_installed, is_there, expected):
    fake = {"HOME": "/x", **environment}
    monkeypatch.setattr(platform.os, "environ", fake)
    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.setattr(platform, "is_installed", lambda extra: is_installed and extra == "tpu")
    monkeypatch.setattr(platform, "has_accelerator", lambda: is_there)
    platform.use_cpu_if_alone()
    assert fake.get("JAX_PLATFORMS") == expected


def test_jax_that_runs_already_is_left_alone(monkeypatch):
    fake: dict[str, str] = {}
    monkeypatch.setattr(platform.os, "environ", fake)
    monkeypatch.setattr(platform, "has_accelerator", lambda: False)
    platform.use_cpu_if_alone()
    assert fake == {}
