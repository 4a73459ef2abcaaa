"""Methods are compiled in a process of its own, which ends with the one that began it."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from crenel.encoding.rows import Rows
from crenel.engine import background, create_engine
from crenel.engine.background import Background
from crenel.engine.kernels import compiler
from crenel.policy import Policy
from tests.core.engine.kernels.test_tiers import VALUES, names_of, total

#: Stands for a process that compiles. It says that it began, and goes on until the one that began it ends.
PATIENT = """
import os
from crenel.engine import precompile
folder = os.environ["NUMBA_CACHE_DIR"]
with open(f"{folder}/begins", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"{folder}/begins", f"{folder}/begun")
precompile._end_with_parent()
"""

#: Begins such a process, and then does something.
BEGINNER = """
import os, sys, time
from pathlib import Path
from crenel.engine import background
background._PROGRAM = {patient!r}
folder = Path({folder!r})
one = background.Background(lambda text: None)
one.use("bastion")
assert one.goes_on(folder / "kernels")
while not (folder / "begun").exists():
    time.sleep(0.01)
{then}
"""


def until(happened: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not happened() and time.monotonic() < end:
        time.sleep(0.02)
    return happened()


def is_over(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    # It may have ended without anybody to ask how: in a container, nobody need be there to do so.
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def one(said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Background:
    (tmp_path / "kernels").mkdir()
    return Background(said.append)


def having(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_PROGRAM", program)


def test_it_begins_when_it_is_asked_and_ends_silently(
    one: Background, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    having("import sys; print('out'); print('err', file=sys.stderr)", monkeypatch)
    folder = tmp_path / "kernels"
    assert not one.goes_on(folder)  # nothing is used
    one.use("bastion")
    assert one.unfinished == []
    assert one.goes_on(folder)
    assert one.unfinished == ["bastion"]
    one.wait(folder)
    assert one.unfinished == []
    assert said == ["bastion in the background", "bastion", ""]
    assert not one.goes_on(folder)  # it does not begin again, also if nothing was compiled
    one.use("castle")
    assert one.goes_on(folder)
    one.wait(folder)
    assert said[3:] == ["castle in the background", "castle", ""]
    assert capfd.readouterr() == ("", "")


def test_without_a_folder_or_a_program_there_is_none(
    one: Background, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.use("bastion")
    assert not one.goes_on(None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    assert not one.goes_on(tmp_path)


def test_it_takes_no_module_from_the_folder_in_which_crenel_runs(
    one: Background, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "numba.py").write_text("raise SystemExit('not to be trusted')")
    monkeypatch.chdir(data)
    having("import os, numba; open('ran', 'w').write(numba.__file__)", monkeypatch)
    one.use("bastion")
    assert one.goes_on(tmp_path / "kernels")
    one.wait(tmp_path / "kernels")
    assert "site-packages" in (tmp_path / "ran").read_text()


ENDS: dict[str, tuple[str, int]] = {
    "it ends": ("", 0),
    "it fails": ("raise SystemExit(3)", 3),
    "it is killed": ("os.kill(os.getpid(), 9)", -9),
    "it ends by force": ("os._exit(5)", 5),
}


@pytest.mark.parametrize(("then", "code"), ENDS.values(), ids=ENDS)
def test_it_ends_with_the_process_that_began_it(then: str, code: int, tmp_path: Path) -> None:
    program = BEGINNER.format(patient=PATIENT, folder=str(tmp_path), then=then)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (code, "")
    begun = int((tmp_path / "begun").read_text())
    assert until(lambda: is_over(begun))


def test_ctrl_c_reaches_it_through_the_other_process_only(tmp_path: Path) -> None:
    program = BEGINNER.format(patient=PATIENT, folder=str(tmp_path), then="print(flush=True); time.sleep(60)")
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    begun = int((tmp_path / "begun").read_text())
    assert os.getpgid(begun) != os.getpgid(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert until(lambda: is_over(begun))


def test_a_forked_process_neither_keeps_it_nor_ends_it(tmp_path: Path) -> None:
    then = """
child = os.fork()
if child == 0:
    assert one.unfinished == []
    assert one._process is None
    time.sleep(30)
    os._exit(0)
assert one.goes_on(folder / "kernels")
os.kill(os.getpid(), 9)
"""
    program = BEGINNER.format(patient=PATIENT, folder=str(tmp_path), then=then)
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    assert process.wait(timeout=60) == -9
    begun = int((tmp_path / "begun").read_text())
    try:
        assert until(lambda: is_over(begun), seconds=20)  # although the forked process lives
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_one_process_at_a_time_compiles_a_method(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from crenel.engine import precompile
with precompile._alone(Path({str(tmp_path / "bastion.lock")!r})):
    with open({str(tmp_path / "log")!r}, "a") as log:
        print("in", file=log, flush=True)
        time.sleep(0.2)
        print("out", file=log, flush=True)
"""
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    assert (tmp_path / "log").read_text().split() == ["in", "out"] * 3


# --- What kernels do meanwhile ---


@pytest.fixture
def compilation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> compiler._Compilation:
    """Return the state of a process that has just begun, and whose kernels are not on disk."""
    made = compiler._Compilation()
    monkeypatch.setattr(compiler, "FOLDER", tmp_path)
    monkeypatch.setattr(compiler, "_COMPILATION", made)
    monkeypatch.setattr(compiler, "is_cached", lambda function: False)
    return made


def test_kernels_are_interpreted_until_it_ends(
    compilation: compiler._Compilation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    having("import sys; sys.stdin.buffer.read()", monkeypatch)
    kernel = compiler.kernel(total)
    assert isinstance(kernel, compiler.Kernel)
    compiler.use("bastion")
    compiler.expect(compiler.INTERPRETED_ROWS)
    assert names_of(kernel, *VALUES) == []
    assert compiler.unfinished() == []
    compiler.expect(1)
    assert names_of(kernel, *VALUES) == ["bastion in the background"]
    assert names_of(kernel, *VALUES) == []
    assert compiler.unfinished() == ["bastion"]
    # What is half written is not used.
    monkeypatch.setattr(compiler, "is_cached", lambda function: True)
    assert not kernel.is_compiled()
    monkeypatch.setattr(compiler, "is_cached", lambda function: False)
    process = compilation.background._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=60)
    time.sleep(2 * background._PATIENCE)
    # It compiled nothing, so this process has to.
    assert names_of(kernel, *VALUES) == ["", "test_tiers.total", ""]
    assert compiler.unfinished() == []


def test_many_held_rows_are_not_interpreted(
    compilation: compiler._Compilation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever kernel comes next waits, also one that is called for the first time."""
    having("import time; time.sleep(0.3); raise SystemExit(1)", monkeypatch)
    kernel = compiler.kernel(total)
    assert isinstance(kernel, compiler.Kernel)
    compiler.use("bastion")
    compiler.expect_held(compiler.INTERPRETED_HELD)
    assert not kernel.is_compiled()
    compiler.expect_held(compiler.INTERPRETED_HELD + 1)
    assert names_of(kernel, *VALUES) == ["bastion in the background", "bastion", "", "test_tiers.total", ""]


def test_nothing_begins_where_the_compiler_is_turned_off(
    compilation: compiler._Compilation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler.numba.config, "DISABLE_JIT", 1)
    compiler.use("bastion")
    compiler.expect_held(compiler.INTERPRETED_HELD + 1)
    assert not compilation.has_begun
    assert compiler.unfinished() == []


PROGRAM = """
import sys
from crenel.engine.kernels import compiler
from tests.core.engine.test_background import released

switch = sys.argv[1]
if switch == "at once":
    compiler.compile_from_now_on()
print(released(switch))
"""


def released(switch: str) -> str:
    """Run a stream while kernels change from interpreted to compiled; return a digest of all releases."""
    columns = {name: {"type": "numeric", "domain": [0, 100]} for name in "xy"}
    said = {"person": "who", "quasi_identifiers": columns, "k": 3, "delay_rows": 30, "method": "partition", "seed": 3}
    engine = create_engine(Policy.from_dict(said))
    draw, digest, pushed, ways = np.random.default_rng(0), hashlib.sha256(), 0, set()
    while pushed < 40_000:
        rows = 100
        numbers = np.arange(pushed, pushed + rows)
        pushed += rows
        given = Rows(draw.integers(0, 100, (rows, 2)).astype(float), numbers, np.zeros((rows, 0), np.int64), numbers)
        ways.add(engine.kernel.is_compiled())  # type: ignore[attr-defined]
        out = engine.push(given)
        for column in (out.rows, out.lo, out.hi, out.kind):
            digest.update(column.tobytes())
        if switch == "later" and True not in ways and pushed > 2_000:
            time.sleep(0.1)
    assert ways == ({True} if switch == "at once" else {True, False}), ways
    return digest.hexdigest()


@pytest.mark.slow
def test_it_does_not_matter_when_kernels_change(tmp_path: Path) -> None:
    """A method is compiled while rows go on."""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(root)}
    found = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, switch],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
        for switch in ("later", "at once")
    ]
    assert [one.stderr for one in found] == ["", ""]
    assert found[0].stdout == found[1].stdout
    assert list(tmp_path.rglob("partition_kernel.run-*.nbc"))


def test_an_engine_tells_how_many_rows_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call may look at all of them, which takes longer than to compile."""
    told: list[int] = []
    monkeypatch.setattr(compiler, "expect_held", told.append)
    columns = {"x": {"type": "numeric", "domain": [0, 100]}}
    said = {"person": "who", "quasi_identifiers": columns, "k": 3, "delay_rows": 10_000, "method": "castle", "seed": 3}
    engine = create_engine(Policy.from_dict(said))
    count = compiler.INTERPRETED_HELD + 50
    rows = Rows(np.zeros((count, 1)), np.arange(count), np.zeros((count, 0), np.int64), np.arange(count))
    engine.push(rows)
    engine.advance(count)
    assert engine.flush().sizes.sum() == count
    assert told[0] == 0
    assert told[-2:] == [count, count]
