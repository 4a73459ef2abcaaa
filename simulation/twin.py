"""Does once more, where nothing goes wrong, what HOLD did in a history: it must emit the same."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from functools import partial

from apache_beam.utils.windowed_value import WindowedValue

from simulation.judging.hold_judge import Account, HoldJudge
from simulation.model.process import forget_all
from simulation.model.state import Store, Transaction


def repeat(judge: HoldJudge, keys: Set[int]) -> None:
    """Repeat the calls of these keys, and let the judge compare.

    Raises:
        Broken: HOLD emitted something else.
    """
    for (key, window), account in judge.accounts.items():
        if key in keys:
            _repeat(judge, key, window, account)


def _repeat(judge: HoldJudge, key: int, window: object, account: Account) -> None:
    forget_all()
    store: Store = {}
    chain, stage = b"", None
    for job, call in account.calls:
        if stage is not job.hold:
            stage = job.hold
            stage.set_up()
        stage.begin(Transaction(store, stage.tick), 0)
        stage.start()
        if call.rows is None:
            emitted = stage.watched(partial(stage.fire, stage.timer, key, window, call.given))
        else:
            emitted = stage.watched(partial(stage.process, WindowedValue((key, call.given), call.at, (window,))))
        stage.finish()
        store.update(stage.transaction.changed)
        chain = judge.compared(chain, job, replace(call, emitted=emitted))
