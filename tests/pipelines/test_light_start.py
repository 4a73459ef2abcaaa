"""Commands load no heavy module that they do not need, and Ctrl-C ends them silently even while they load modules."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

POLICY = """\
person: who
quasi_identifiers: {age: {type: numeric, domain: [0, 100]}}
k: 2
delay_rows: 10
"""

RUN = "run policy.yaml --input rows.csv --output out.csv"

#: What the installed script does. At the end it prints the modules that it loaded.
PROGRAM = """
import sys
from crenel.pipelines.cli import program
try:
    code = program()
except SystemExit as left:
    code = left.code
with open("modules.txt", "w") as file:
    print(*sys.modules, sep="\\n", file=file)
sys.exit(code)
"""

#: Packages that Beam, Arrow and numba load if they are installed, and that no command needs.
UNUSED = {"IPython", "bson", "cffi", "dill", "google.cloud", "pandas", "pymongo", "pyparsing", "scipy"}
UNUSED |= {"apache_beam.dataframe", "apache_beam.io.gcp.bigquery", "apache_beam.ml", "apache_beam.yaml"}
NO_ROWS = UNUSED | {"apache_beam", "fastavro", "grpc", "numba", "pyarrow"}
#: Needed by some other command or runner only.
OTHERS = {"confluent_kafka", "jinja2", "matplotlib", "crenel.audit.attacks", "crenel.runners.flink"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with a policy, 40 rows for it, and what may be published of them."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "wrong.yaml").write_text(POLICY.replace("k: 2", "k: two"))
    (tmp_path / "rows.csv").write_text("who,age\n" + "".join(f"{i},{20 + i}\n" for i in range(40)))
    (tmp_path / "published.csv").write_text("age\n" + "".join(f'"[{i}, {i + 1}]"\n' * 2 for i in range(20, 60, 2)))
    return tmp_path


def run(
    folder: Path, command: str, program: str = PROGRAM, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own; `path` is a further folder of packages."""
    return subprocess.run(
        [sys.executable, "-c", program, *command.split()],
        cwd=folder,
        env={**os.environ, **({} if path is None else {"PYTHONPATH": str(path)})},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.parametrize(
    ("command", "code", "unwanted"),
    [
        ("--help", 0, NO_ROWS | OTHERS | {"numpy", "yaml"}),
        ("--version", 0, NO_ROWS | OTHERS | {"numpy", "yaml"}),
        ("run --help", 0, NO_ROWS | OTHERS),
        ("check policy.yaml", 0, NO_ROWS | OTHERS),
        ("check wrong.yaml", 2, NO_ROWS | OTHERS),
        ("plan policy.yaml --rate 1/s", 0, NO_ROWS | OTHERS),
        ("run none.yaml --input rows.csv --output out.csv", 2, NO_ROWS | OTHERS),
        ("run wrong.yaml --input rows.csv --output out.csv", 2, NO_ROWS | OTHERS),
        ("run policy.yaml --input none.csv --output out.csv", 2, UNUSED | OTHERS | {"numba"}),
        ("init rows.csv", 0, UNUSED | OTHERS | {"apache_beam", "fastavro", "grpc", "numba"}),
        ("check policy.yaml --data rows.csv", 0, UNUSED | OTHERS | {"apache_beam", "grpc"}),
        ("audit policy.yaml --input rows.csv --published published.csv", 0, UNUSED | {"apache_beam", "grpc", "numba"}),
        (RUN, 0, UNUSED | OTHERS),
    ],
)
def test_a_command_loads_only_what_it_needs(command: str, code: int, unwanted: set[str], folder: Path) -> None:
    done = run(folder, command)
    assert done.returncode == code, done.stderr
    assert set((folder / "modules.txt").read_text().split()) & unwanted == set()


def test_the_unneeded_packages_are_installed_here() -> None:
    """Otherwise the test above would show nothing."""
    assert all(importlib.util.find_spec(name) for name in ("IPython", "cffi", "pandas", "pymongo", "scipy"))


@pytest.mark.slow
def test_nothing_is_hidden_from_a_process_of_somebody_else(folder: Path) -> None:
    """Nor is its garbage kept."""
    program = """
import gc
from crenel.pipelines.cli import main

assert main() == 0
import IPython, cffi, pandas, pymongo, scipy

assert gc.isenabled() and not gc.get_freeze_count()
"""
    done = run(folder, RUN, program)
    assert done.returncode == 0, done.stderr


def test_nothing_is_hidden_on_another_runner(folder: Path) -> None:
    program = PROGRAM.replace("with open", "import apache_beam.io.gcp.bigquery, pandas, pymongo, scipy\nwith open")
    done = run(folder, f"{RUN} --runner prism --unheard_of", program)
    assert "--unheard_of is neither" in done.stderr
    assert "pandas" in (folder / "modules.txt").read_text().split()


@pytest.mark.parametrize("group", ["crenel.methods", "crenel.quasi_identifiers"])
def test_nothing_is_hidden_where_other_packages_add_to_crenel(group: str, folder: Path, tmp_path: Path) -> None:
    """What they need is not known."""
    metadata = tmp_path / "site" / "theirs-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\ntheirs = theirs:THEIRS\n")
    program = PROGRAM.replace("with open", "import cffi, pandas, pymongo, scipy, IPython\nwith open")
    done = run(folder, "check policy.yaml", program, path=tmp_path / "site")
    assert (done.returncode, done.stderr) == (0, "")
    hidden = run(folder, "check policy.yaml", program)
    assert hidden.returncode == 1
    assert "hidden from this process" in hidden.stderr


def test_what_is_imported_later_works_when_it_is_used(folder: Path) -> None:
    program = """
import sys
from crenel.pipelines import light_start
light_start.begin()
import httplib2
before = "pyparsing" in sys.modules
print(before, httplib2.Http.__name__, "pyparsing" in sys.modules)
"""
    done = run(folder, "", program)
    assert done.stdout.split() == ["False", "Http", "True"], done.stderr


@pytest.mark.parametrize("module", ["crenel.policy", "apache_beam", "pyarrow.lib", "numba"])
def test_an_interrupt_during_an_import_is_silent(module: str, folder: Path) -> None:
    program = f"""
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from crenel.pipelines.cli import program
sys.exit(program())
"""
    done = run(folder, RUN, program)
    assert (done.returncode, done.stderr) == (130, "")
    assert not (folder / "out.csv").exists()
