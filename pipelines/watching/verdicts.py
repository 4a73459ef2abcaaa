"""What a watched topic showed of each promise: as text, for machines, and for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crenel.pipelines.metrics.exposition import Family, Sample, counter, gauge, histogram
from crenel.pipelines.watching.topic_watch_run import LATE_BOUNDS, TopicWatchRun
from crenel.policy import Policy

__all__ = ["BROKEN", "LIMITS", "UNKNOWN", "as_dict", "as_text", "families"]

#: States. There is no third: what readers see proves no promise.
BROKEN, UNKNOWN = "broken", "nothing against it"
#: Alarms that are no broken promise, but a limit of the user's.
LIMITS = ("late", "loss")
#: Bounds of the histogram of the sizes of groups.
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)


def as_dict(policy: Policy, watched: TopicWatchRun) -> dict[str, Any]:
    """Tell what was seen, for machines. The keys are part of the interface."""
    judge, seen = watched.judge, watched.seen
    rows = seen["with loss"]
    return {
        "verdict": BROKEN if _broken(watched) else UNKNOWN,
        "rows": seen["rows"],
        "stars": seen["stars"],
        "repeats": seen["repeats"],
        "groups": judge.groups,
        "groups_not_judged": judge.unjudged,
        "least_rows": judge.least,
        "least_values": dict(zip(policy.sensitive, judge.least_values, strict=True)),
        "loss": round(watched.loss_sum / rows, 6) if rows else None,
        "releases": seen["releases"] if watched.has_releases else None,
        "released_rows": watched.reported if watched.has_releases else None,
        "late_seconds": round(watched.latest, 3) if sum(watched.late) else None,
        "alarms": dict(sorted(watched.alarms.items())),
    }


def _broken(watched: TopicWatchRun) -> int:
    return sum(number for promise, number in watched.alarms.items() if promise not in LIMITS)


def as_text(policy: Policy, watched: TopicWatchRun) -> str:
    """Tell what was seen in a short table."""
    told = list(_lines(policy, watched))
    wide, far = (max(len(line[at]) for line in told) for at in (0, 1))
    lines = [f"{what:<{wide}}  {state:<{far}}  {said}".rstrip() for what, state, said in told]
    return "\n".join(lines) + "\n"


def _lines(policy: Policy, watched: TopicWatchRun) -> Iterator[tuple[str, str, str]]:
    judge, seen, alarms = watched.judge, watched.seen, watched.alarms

    def state(promise: str) -> str:
        return BROKEN if alarms[promise] else UNKNOWN

    least = "no group is complete" if judge.least is None else f"at least {judge.least:,} rows in each group"
    known = "; the run reports their persons" if watched.has_releases else "; their persons are unknown"
    yield "k", state("k"), f"{least} of {judge.groups:,}{known if judge.groups else ''}"
    for name, values in zip(policy.sensitive, judge.least_values, strict=True):
        if policy.l is not None and values is not None:
            yield f"l: {name}", state("l"), f"at least {values:,} values in each group"
    if policy.t is not None:
        yield "t", "not judged", "the distribution at that moment is not published"
    yield "columns", state("columns"), f"in {seen['rows']:,} rows"
    yield "values", state("values"), "what the policy cannot have published"
    yield "once", state("twice"), f"{seen['repeats']:,} records came again"
    if watched.has_releases:
        yield "rows", state("rows"), f"{watched.reported:,} rows in {seen['releases']:,} releases"
        sent = f"at most {watched.latest:,.0f} s after their moment" if sum(watched.late) else "no moments are known"
        yield "sent", "limit exceeded" if alarms["late"] else "", sent
    else:
        yield "deadline", "not judged", "published rows do not tell when they came"
    rows = seen["with loss"]
    if rows:
        yield "loss", "limit exceeded" if alarms["loss"] else "", f"{watched.loss_sum / rows:.3f} on average"
    if judge.unjudged:
        yield "not judged", "", f"{judge.unjudged:,} groups, which may have begun before the first row that was read"


def families(watched: TopicWatchRun) -> list[Family]:
    """Make the page for Prometheus."""
    with watched.lock:
        return _families(watched)


def _families(watched: TopicWatchRun) -> list[Family]:
    judge, seen = watched.judge, watched.seen
    bins = [0] * (len(_SIZES) + 1)
    for size, number in judge.sizes.items():
        bins[next((i for i, bound in enumerate(_SIZES) if size <= bound), len(_SIZES))] += number
    total = sum(size * number for size, number in judge.sizes.items())
    promises = ("k", "l", "columns", "values", "twice", "releases", "rows", "late", "loss")
    lags = ((records, {"partition": str(number)}) for number, records in sorted(watched.lags.items()))
    least: list[tuple[float, dict[str, str]]] = [] if judge.least is None else [(judge.least, {})]
    found = [
        counter(
            "crenel_watch_alarms_total",
            "Alarms, by the promise that is broken or the limit that is exceeded.",
            *((watched.alarms[promise], {"promise": promise}) for promise in promises),
        ),
        counter("crenel_watch_rows_total", "Published rows that were seen.", (seen["rows"], {})),
        counter("crenel_watch_repeats_total", "Records that came again.", (seen["repeats"], {})),
        histogram("crenel_watch_group_rows", "Rows of each group that was judged.", _SIZES, bins, total),
        gauge("crenel_watch_least_group_rows", "Rows of the smallest group.", *least),
        Family(
            "crenel_watch_row_loss",
            "summary",
            "Loss of each published row.",
            [Sample(watched.loss_sum, {}, "_sum"), Sample(seen["with loss"], {}, "_count")],
        ),
        gauge(
            "crenel_watch_last_row_timestamp_seconds",
            "When the latest row was sent, since the epoch.",
            (watched.last_row / 1e6, {}),
        ),
        gauge("crenel_watch_lag_records", "Records of each partition that are not read yet.", *lags),
    ]
    if watched.has_releases:
        said = "From the moment of each release, in event time, until its record was sent."
        found.append(histogram("crenel_watch_sent_seconds", said, LATE_BOUNDS, watched.late, watched.late_sum))
    return found
