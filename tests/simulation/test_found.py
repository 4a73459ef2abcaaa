"""Histories in which the simulator found a defect, shrunk."""

from __future__ import annotations

from simulation import campaign
from simulation.history import History


def check(history: History) -> None:
    """Play a history, which must keep every promise."""
    with campaign.simulated():
        found = campaign.broken(history)
    if found is not None:
        raise found


def test_a_timer_that_fired_in_vain_elsewhere_is_set_again() -> None:
    # Without the fix: on time: no timer will wake key 0 in time.
    check(
        History(
            seed=0,
            policy="castle-quick",
            workers=2,
            rows=[
                (0, 0, 0, 0, 20, 100, 0),
                (0, 0, 0, 1, 21, 101, 1),
                (0, 0, 0, 2, 22, 102, 2),
                (0, 0, 0, 3, 23, 103, 0),
            ],
            steps=[
                ("arrive", 1),
                ("read",),
                ("arrive", 2),
                ("read",),
                ("hold", 0, 4),
                ("clock", 63),
                ("read",),
                ("visit", 0, 0, 1),
            ],
        )
    )


def test_a_row_that_waits_for_its_time_is_decided_on_under_another_policy() -> None:
    # Without the fix: works: Anonymize/Hold/ParDo failed by itself (IndexError).
    check(
        History(
            seed=23246,
            policy="both",
            rows=[
                (0, 162, 162, 18, 32, 906, 1),
                (0, 886, 886, 9, 35, 121, 0),
                (0, 3158, 3158, 26, 30, 128, 1),
                (0, 3792, 4503792, 12, 21, 101, 1),
                (0, 4089, 4089, 32, 33, 100, 2),
                (0, 4346, 4346, 18, 20, 123, 1),
                (0, 4346, 4346, 16, 72, 100, 2),
                (0, 4346, 4346, 29, 78, 101, 0),
                (0, 4716, 4716, 13, 20, 908, 2),
                (0, 6259, 6259, 26, 27, 125, 1),
            ],
            steps=[
                ("arrive", 9),
                ("read", 0, 3),
                ("hold", 0, 1),
                ("savepoint", 0, 2),
            ],
        )
    )


def test_rows_wait_for_their_time_when_fewer_may_follow() -> None:
    # Without the fix: works: Anonymize/Hold/ParDo failed by itself (IndexError).
    check(
        History(
            seed=23232,
            policy="quick",
            rows=[
                (1, 25062, 4525062, 1, 26, 902, 0),
                (1, 45581, 45581, 0, 76, 105, 0),
                (1, 53964, 53964, 0, 32, 104, 1),
                (1, 55957, 55957, 4, 21, 100, 2),
                (0, 55957, 55957, 7, 28, 120, 1),
                (1, 57213, 57213, 2, 25, 128, 1),
            ],
            steps=[
                ("arrive", 7),
                ("read",),
                ("read",),
                ("read",),
                ("savepoint", 0, 1),
                ("hold", 0, 1),
                ("hold", 0, 2),
                ("savepoint", 0, 2),
            ],
        )
    )


def test_an_answer_to_a_bundle_that_failed_is_not_for_the_next_one() -> None:
    # Without the fix: works: Durable/Outbox/ParDo failed by itself (JobFailed: 1 records could not be written).
    check(
        History(
            seed=20543,
            policy="castle",
            rows=[
                (0, 0, 0, 5, 25, 904, 2),
                (0, 0, 0, 1, 27, 128, 2),
                (0, 6145, 6145, 25, 73, 128, 2),
                (0, 10580, 10580, 5, 22, 907, 0),
                (0, 34218, 34218, 27, 27, 120, 2),
                (0, 36504, 36504, 30, 39, 128, 2),
                (0, 51011, -8989, 21, 34, 123, 2),
                (0, 52414, 52414, 25, 36, 904, 0),
                (0, 60911, 60911, 38, 73, 106, 0),
                (0, 65136, 65136, 21, 26, 126, 0),
                (0, 65136, 65136, 19, 22, 902, 1),
                (0, 65136, 65136, 11, 39, 900, 1),
                (0, 65136, 65136, 2, 72, 102, 1),
            ],
            steps=[
                ("refuse", 7, 1),
                ("arrive", 17),
                ("read", 0, 4),
                ("hold", 0, 1),
                ("send", 0, 1),
                ("checkpoint",),
                ("send", 0, 1),
                ("checkpoint",),
                ("send", 0, 1),
                ("checkpoint",),
                ("send", 0, 1, 0, -31),
            ],
        )
    )


def test_seed_10260() -> None:
    # The judge's own mistake: a savepoint under a smaller `disorder` does not move the clock; the next row does.
    check(
        History(
            seed=10260,
            policy="reuse",
            partitions=1,
            workers=1,
            log=1048576,
            window=0,
            ends=False,
            rows=[
                (0, 38207, 38207, 11, 38, 123, 1),
                (0, 63674, 63674, 17, 27, 104, 1),
                (0, 63918, 63918, 25, 30, 121, 1),
                (0, 63918, 63918, 16, 73, 123, 0),
                (0, 64511, 64511, 4, 25, 908, 0),
                (3, 65109, 65109, 4, 21, 902, 2),
                (0, 89219, 86219, 7, 38, 902, 2),
                (1, 90237, 90237, 32, 72, 101, 0),
                (2, 139930, 136930, 4, 38, 106, 1),
            ],
            steps=[
                ("arrive", 11),
                ("read",),
                ("read",),
                ("savepoint", 0, 2),
                ("hold", 0, 1),
                ("hold", 0, 2),
                ("savepoint", 0, 5),
            ],
        )
    )
