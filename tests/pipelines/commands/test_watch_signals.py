"""`crenel watch` ends, and prints what it saw, when it is told to: by Ctrl-C, by SIGTERM, or by its closed terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from crenel.pipelines.commands import watch


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restores the handlers of signals, of which none ends the tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, lambda *_: None)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_ends_the_watch_and_the_second_one_the_process(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with watch._stoppable() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(number)
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) is before


def test_a_watch_under_nohup_goes_on_without_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with watch._stoppable() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert not stop.is_set()
