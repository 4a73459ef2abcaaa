"""Which job server a run uses: Beam's own where the Maven repository has one, and the pinned one where it has not."""

from __future__ import annotations

import os
import shutil
import time
import zipfile
from pathlib import Path

import pytest

from crenel.runners.flink import beam_patch, download_cache, job_server
from crenel.runners.flink.job_server import JobServer
from crenel.runners.runner_errors import RunnerError
from tests.runners.harness import need_flink

pytestmark = pytest.mark.flink

#: A version that no repository has.
VERSION = "2.99.0"
NAME = f"beam-runners-flink-1.20-job-server-{VERSION}"
SETTINGS = """<settings><profiles><profile><id>own</id><repositories><repository><id>own</id><url>{url}</url>
</repository></repositories></profile></profiles><activeProfiles><activeProfile>own</activeProfile></activeProfiles>
</settings>
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository that Maven is configured with, and an empty cache of crenel."""
    need_flink()
    home = Path.home() / ".m2" / "repository"
    known = tmp_path / "home" / ".m2" / "repository"
    # Maven's own plugins are there already. What it fetches now must not stay.
    shutil.copytree(home, known, copy_function=os.link, ignore=shutil.ignore_patterns("kafka*", "flink*", "beam*"))
    (tmp_path / "home" / ".m2" / "settings.xml").write_text(SETTINGS.format(url=(tmp_path / "own").as_uri()))
    monkeypatch.setenv("MAVEN_OPTS", f"-Duser.home={tmp_path / 'home'}")
    monkeypatch.setattr(job_server, "_version", lambda: VERSION)
    pinned = job_server.jars()
    monkeypatch.setattr(job_server, "jars", lambda: pinned)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "own"


def publish(repository: Path) -> None:
    """Publish a job server: the pinned jars behind a manifest that names them."""
    folder = repository / "org" / "apache" / "beam" / "beam-runners-flink-1.20-job-server" / VERSION
    folder.mkdir(parents=True)
    path = " ".join(jar.as_uri() for jar in sorted(job_server.jars().glob("*.jar")))
    line = f"Class-Path: {path}"
    folded = "\r\n ".join(line[start : start + 70] for start in range(0, len(line), 70))
    with zipfile.ZipFile(folder / f"{NAME}.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", f"Manifest-Version: 1.0\r\nMain-Class: {job_server._MAIN}\r\n{folded}\r\n")
    project = f"<groupId>org.apache.beam</groupId><artifactId>{NAME.removesuffix(f'-{VERSION}')}</artifactId>"
    text = f"<project><modelVersion>4.0.0</modelVersion>{project}<version>{VERSION}</version></project>"
    (folder / f"{NAME}.pom").write_text(text)


def test_it_is_taken_where_there_is_one_and_otherwise_the_pinned_one(repository: Path, tmp_path: Path) -> None:
    missing = JobServer("127.0.0.1:1", tmp_path, distinct=True)
    with missing:
        assert missing.said.startswith(f"Maven has no job server of Beam {VERSION}: ")
        assert "checkpoints stay flat" in missing.said
    publish(repository)
    assert job_server._own(corrected=True) is None, "the answer is remembered"
    mark = download_cache.root() / f"{NAME}.absent"
    os.utime(mark, (time.time(), time.time() - 8 * 86_400))
    shutil.rmtree(tmp_path / "home" / ".m2" / "repository" / "org" / "apache" / "beam", ignore_errors=True)
    found = JobServer("127.0.0.1:1", tmp_path, distinct=True)
    with found as endpoint:
        assert endpoint.startswith("localhost:")
        assert found.said == f"the job server is Beam's own, {VERSION}: checkpoints stay flat."
    assert not mark.exists()


def test_one_that_is_too_old_and_cannot_be_corrected_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "server.jar", "w") as jar:
        jar.writestr("of/another/Version.class", b"")
    with pytest.raises(RunnerError, match="not the version that crenel corrects"):
        beam_patch.correct(tmp_path / "server.jar", tmp_path / "corrected.jar")
    monkeypatch.setattr(job_server, "_version", lambda: "2.75.0")
    monkeypatch.setattr(job_server, "_own", lambda corrected: tmp_path / "server.jar")
    _, said = job_server._program(None, corrected=True)
    assert "checkpoints grow with every pause of a source" in said
    assert "install Beam 2.76 or later" in said
