"""One page over HTTP, where the user says, and nowhere else."""

from __future__ import annotations

import argparse
import socket
import urllib.error
import urllib.request

import pytest

from crenel.pipelines.command_errors import CommandError
from crenel.pipelines.metrics.endpoint import Address, serving
from crenel.pipelines.metrics.exposition import gauge


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (":9108", Address("127.0.0.1", 9108)),
        ("9108", Address("127.0.0.1", 9108)),
        ("0.0.0.0:9108", Address("0.0.0.0", 9108)),
        ("[::1]:9108", Address("::1", 9108)),
        ("metrics.example:0", Address("metrics.example", 0)),
    ],
)
def test_addresses(given: str, expected: Address) -> None:
    assert Address.of(given) == expected


@pytest.mark.parametrize("given", ["", ":", "localhost", ":65536", "::1:9108", "http://a:1", ":9108/metrics", "-1"])
def test_what_is_no_address(given: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be :PORT, or ADDRESS:PORT"):
        Address.of(given)


def test_the_page_is_made_anew_for_each_scrape_and_is_gone_in_the_end() -> None:
    scrapes, said = [0], list[str]()

    def collect() -> list[object]:
        scrapes[0] += 1
        return [gauge("scrapes", "So far.", (scrapes[0], {}))]

    with serving(Address.of(":0"), collect, said.append) as bound:  # type: ignore[arg-type]
        assert bound.host == "127.0.0.1"
        assert said == [f"metrics are at http://{bound}/metrics"]
        for number in (1, 2):
            with urllib.request.urlopen(f"http://{bound}/metrics", timeout=10) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                assert answer.headers["Server"].strip() == "crenel"
                assert answer.read().decode().endswith(f"scrapes {number}\n")
        request = urllib.request.Request(f"http://{bound}/metrics", method="HEAD")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.read() == b""
        for path in ("/", "/metrics/", "/etc/passwd"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"http://{bound}{path}", timeout=10)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://{bound}/metrics", timeout=10)


def test_a_silent_client_does_not_hold_up_the_end() -> None:
    with serving(Address.of(":0"), list, lambda line: None) as bound:
        client = socket.create_connection((bound.host, bound.port))
    client.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1", "no.such.host.invalid"])
def test_a_place_that_cannot_be_listened_on(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with (
            pytest.raises(CommandError, match=f"--metrics: {host}:{port} cannot be listened on: .* Give another"),
            serving(Address(host, port), list, lambda line: None),
        ):
            pass
