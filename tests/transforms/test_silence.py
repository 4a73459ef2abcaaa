"""No log line, exception, metric or repr contains a row's values, and no output contains undeclared columns."""

from __future__ import annotations

import logging
import pickle
import traceback
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest

from crenel.transforms._hold import hold_step
from crenel.transforms._hold.engine_cache import CACHE
from crenel.transforms._hold.hold_step import HoldRows
from crenel.transforms._hold.shard_holder import ShardHolder
from crenel.transforms._pack import pack_step
from crenel.transforms._pack.row_pack import Packer, RowPack
from tests.transforms.cells import State, Worker, forget, packs
from tests.transforms.streams import anonymize, policy, rows, run

#: Ages that are easy to find in any text.
AGES = [31.41592653, 27.18281828]


def telling() -> list[dict[str, Any]]:
    """Return rows whose values would appear nowhere by chance; some rows are malformed."""
    given = [
        {
            **row,
            "patient": f"Xanthippe-{i}",
            "age": AGES[i % 2],
            "zipcode": "53706",
            "disease": f"quinsy-{i}",
            "nickname": f"Zaphod-{i}",
            "number": f"ledger-{i}",
        }
        for i, row in enumerate(rows(60))
    ]
    given[3]["age"] = 31_415_926.5
    given[4]["zipcode"] = "Zaphod-4"
    given[5]["seen"] = "Xanthippe-5"
    given[6]["education"] = "Zaphod-6"
    return given


TOLD = ["Xanthippe", "quinsy", "Zaphod", "ledger", "31.4159", "3.14159", "2.71828", "31415926", "53706", "5.3706"]


def silent(text: str) -> None:
    assert [word for word in TOLD if word in text] == []


@pytest.mark.parametrize("kind", [list, lambda given: [beam.Row(**row) for row in given]], ids=["dicts", "rows"])
def test_a_run_with_broken_rows_logs_nothing_of_anybody(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        out = run(kind(telling()), anonymize())
    assert len(out.rejected) == 4
    # At DEBUG, which is off by default, Beam itself logs elements. We cannot prevent that.
    silent("\n".join(r.getMessage() for r in caplog.records if not r.name.startswith("apache_beam")))
    silent("\n".join(r.getMessage() for r in caplog.records if r.levelno > logging.DEBUG))


@pytest.mark.parametrize("where", ["push", "encode", "emit"])
def test_an_exception_says_nothing_of_anybody(
    where: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **named: Any) -> Any:
        message = "out of memory"
        raise MemoryError(message)

    target = {"push": (ShardHolder, "push"), "encode": (Packer, "_pack"), "emit": (hold_step.Emitter, "_one_by_one")}[
        where
    ]
    monkeypatch.setattr(*target, broken)
    with caplog.at_level(logging.INFO), pytest.raises(Exception, match="out of memory") as caught:
        run(telling(), anonymize())
    silent("".join(traceback.format_exception(caught.value)))
    silent(caplog.text)


def test_strange_values_are_rejected_without_being_quoted() -> None:
    """Arrow and numpy would quote these values in their own error messages."""
    given = telling()
    mixed = [
        *given,
        {**given[0], "age": ["Zaphod"], "disease": {"Zaphod": {1, 2}}},
        {**given[0], "patient": {"Zaphod": 1}},
        {**given[0], "zipcode": b"Zaphod"},
    ]
    out = run(mixed, anonymize())
    assert len(out.rejected) == 7
    for left in out.rejected:
        silent(left.value["reason"] + left.value["field"])


def test_a_batch_of_the_wrong_types_is_rejected_without_a_word() -> None:
    batch = pa.table(
        {
            "patient": ["Xanthippe-1", "Xanthippe-2"],
            "seen": ["Zaphod", None],
            "age": ["thirty", "31.4159"],
            "zipcode": [53706, 1],
            "education": [1.0, 2.0],
            "disease": [["quinsy"], ["quinsy"]],
            "number": [1, 2],
        }
    )
    out = run([batch], anonymize())
    assert [left.value["reason"] for left in out.rejected] == ["not a date", "missing"]
    silent(repr([left.value["reason"] for left in out.rejected]))


def test_outputs_hold_no_more_than_the_policy_says() -> None:
    given = telling()
    out = run(given, anonymize(publish=None))
    names = {"age", "zipcode", "education", "disease"}
    for left in (*out.published, *out.suppressed):
        assert set(left.value) == names
    told = repr([left.value for left in (*out.published, *out.suppressed)])
    for text in (told, repr([left.value for left in (*out.releases, *out.counts)])):
        assert [word for word in ("Xanthippe", "Zaphod", "ledger") if word in text] == []
    assert not any(str(row["seen"]) in told for row in given if isinstance(row["seen"], float))


def test_a_release_tells_how_much_and_never_what() -> None:
    out = run(telling(), anonymize())
    columns = ("shard", "kind", "rows", "persons", "loss", "moment", "arrivals", "group")
    assert {tuple(left.value) for left in out.releases} == {columns}


def test_reprs_say_how_much_and_never_what() -> None:
    given = [row for i, row in enumerate(telling()) if i not in (3, 4, 5, 6)]
    of = policy()
    (raw,) = packs(of, given, 60)
    state, worker = State(), Worker(of)
    forget()
    worker.push(state, raw)
    (cached,) = CACHE._kept.values()
    packer = Packer(of, b"secret")
    packed = packer.pack_dicts(given, None)
    batch = packer.pack_arrow(pa.RecordBatch.from_pylist(given), None)
    holder = ShardHolder(of, b"secret", b"0")
    departures = [*holder.push(RowPack.from_bytes(raw)), *holder.flush()]
    things = [
        *(cached, cached.shards, packed, batch, holder, departures, packer, worker.step, anonymize()),
        *(*packed.packs, *batch.packs),
        *(made.payload for made in (*packed.packs, *batch.packs)),
        *(departure.payload for departure in departures),
        *(part for held in cached.shards._holders.values() for part in held._parts),
        *(pack_step.PackRows(of, b"secret"), HoldRows(of, b"secret", "uid")),
    ]
    for thing in things:
        silent(repr(thing) + str(thing))
    forget()


def test_the_secret_is_not_shown() -> None:
    of = policy(seed=987_654_321)
    step = pickle.loads(pickle.dumps(HoldRows(of, b"seed 987654321", "uid")))
    shown = repr(step) + str(step.display_data()) + repr(of)
    assert "987654321" not in shown
