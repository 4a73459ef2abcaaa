"""`crenel run` from S3 to S3: a real server of its interface on the loopback address, asked by Beam and boto3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_beam.io.filesystems import FileSystems

from crenel.pipelines.cli import main

boto3 = pytest.importorskip("boto3", reason="needs boto3: pip install 'crenel[aws]'")
moto_server = pytest.importorskip("moto.server", reason="needs moto's server of S3")

POLICY = """\
person: who
quasi_identifiers: {age: {type: numeric, domain: [0, 100]}}
k: 3
delay_rows: 20
seed: 5
"""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        client = boto3.client("s3", endpoint_url=url)
        client.create_bucket(Bucket="visits")
        yield url, client
    finally:
        server.stop()
        FileSystems.set_options(None)


@pytest.mark.slow
def test_from_bucket_to_bucket(
    store: tuple[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, client = store
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(POLICY)
    for part in range(2):
        rows = [f"p{n % 30},{n * 7 % 100}" for n in range(part * 30, part * 30 + 30)]
        client.put_object(Bucket="visits", Key=f"in/{part}.csv", Body="\n".join(["who,age", *rows, ""]).encode())
    places = ["--input", "s3://visits/in/*.csv", "--output", "s3://visits/out.parquet"]
    owners = ["--rejected", "s3://visits/rejected.jsonl", "--trace", "s3://visits/trace.csv"]
    assert main(["run", "policy.yaml", *places, *owners, f"--s3_endpoint_url={url}"]) == 0, capsys.readouterr().err
    there = {one["Key"] for one in client.list_objects_v2(Bucket="visits")["Contents"]}
    assert there == {"in/0.csv", "in/1.csv", "out.parquet", "rejected.jsonl", "trace.csv"}
    assert not client.list_multipart_uploads(Bucket="visits").get("Uploads")
    capsys.readouterr()
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)  # commands that take no options of Beam
    FileSystems.set_options(None)
    given = ["--published", "s3://visits/out.parquet", "--input", "s3://visits/in/*.csv"]
    assert main(["audit", "policy.yaml", *given, "--trace", "s3://visits/trace.csv", "--queries", "5"]) == 0
    assert "no promise was found broken" in capsys.readouterr().out
    told = main(["run", "policy.yaml", "--input", "s3://visits/in/*.csv", "--output", "s3://nowhere/out.csv"])
    assert told == 2
    error = capsys.readouterr().err
    assert "s3://nowhere/out.csv cannot be written: An error occurred (NoSuchBucket)" in error
    assert "Traceback" not in error
