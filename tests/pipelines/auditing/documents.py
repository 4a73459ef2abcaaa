"""Documents of audits, written by hand. The page is made from them."""

from __future__ import annotations

import copy
import math
from typing import Any


def kept() -> dict[str, Any]:
    """An audit with the owner's trace: all promises are decided, and all are kept."""
    return copy.deepcopy(_KEPT)


def kept_by_few() -> dict[str, Any]:
    """All promises are kept, but few rows were published."""
    document = _short(kept())
    text = "12,000 rows (20%) were suppressed, 9,000 more than --most-suppressed 5% allows."
    passed = {"what": "suppressed", "rows": 12_000, "share": 0.2, "limit": 0.05, "excess": 9_000, "text": text}
    return document | {"too_many": [passed]}


def broken() -> dict[str, Any]:
    """Some groups are too small, and some rows left late."""
    document = _short(kept())
    document["verdict"] = "broken"
    _promise(document, "k").update(
        measured="at least 4 persons", value=4, state="broken", groups=3, rows=41, note="Groups below k were published."
    )
    _promise(document, "deadline").update(
        measured="1h 2m at the latest", value=3720.0, state="broken", rows=7, note="Rows left after their deadline."
    )
    document["groups"]["smallest"] = 4
    document["groups"]["histogram"].insert(0, {"from": 4, "to": 10, "groups": 3, "rows": 41})
    document["delay"]["largest"] = 3720.0
    document["delay"]["histogram"].append({"from": 3600.0, "to": 3720.0, "rows": 7})
    document["attacks"][0].update(right=61, success=0.1220, state="broken")
    return document


def no_crowd() -> dict[str, Any]:
    """An audit of a policy that lets rows leave alone, and has a seed."""
    document = _short(kept())
    seed = "The policy has a seed. An attacker who guesses it can recompute the order of the rows."
    document["verdict"] = "no crowd"
    document["crowd"].update(alone=9_435, repeated=120, promised=False, state="not promised", seed=seed)
    document["crowd"]["text"] = "A crowd at one moment is not promised: 9,435 of 48,000 rows left with fewer."
    note = "An attacker who knows when a row arrived can single these rows out."
    _promise(document, "crowd").update(promised="not promised by the policy", value=9_435, rows=9_500, note=note)
    _promise(document, "crowd").update(state="not promised", measured="9,435 of 48,000 rows left with fewer")
    return document


def of_the_published() -> dict[str, Any]:
    """An audit of the published rows alone."""
    document = _short(kept())
    document.update(knowledge="published", verdict="not proven", delay=None, utility=None, attacks=[])
    document["rows"].update(input=None, rejected=None, suppressed=None, sampled_out=None, lost=None)
    document["crowd"].update(alone=None, repeated=None, exact=False, state="unknown", text="It is not known.")
    document["groups"]["unit"] = "rows"
    document["loss"]["information_loss"] = None
    for name in ("crowd", "k", "deadline", "nothing lost", "contained"):
        note = "Give --input and --trace to prove it."
        _promise(document, name).update(measured="not known", value=None, state="unknown", groups=None, note=note)
    for part in document["over_time"]["bins"]:
        part["suppressed"] = None
    document["notes"] = ["The input was not given: persons, delays and lost rows are not known."]
    return document


def empty() -> dict[str, Any]:
    """An audit of no rows, with nothing to show."""
    document = of_the_published()
    document["policy"].update(l=None, delay=None, quasi_identifiers=[], sensitive=[], publish=[])
    document["rows"].update(published=0, groups=0)
    document["crowd"]["rows"] = 0
    document["promises"] = []
    document["loss"] = {**dict.fromkeys(document["loss"]), "per_attribute": {}}
    document["groups"].update(smallest=None, median=None, largest=None, histogram=[])
    document["over_time"]["bins"] = []
    document["notes"] = []
    return document


def renamed(document: dict[str, Any], name: str) -> dict[str, Any]:
    """A document in which everything a user or a row's owner can name has that name."""
    document["policy"].update(method=name, person=name, delay=name, quasi_identifiers=[name, name], sensitive=[name])
    document["policy"].update(publish=[name], on_suppress=name)
    document["loss"]["per_attribute"] = {name: 0.3, f"{name}2": 0.1}
    for promise in document["promises"]:
        promise.update(name=f"l:{name}", promised=name, measured=name, note=name)
    for attack in document["attacks"]:
        attack.update(name=name, text=name)
    for part in document["over_time"]["bins"]:
        part.update({"from": name, "to": name})
    document["over_time"]["unit"] = "event time"
    document["crowd"].update(text=name, seed=name)
    document["differential"] = {"epsilon": 1.0, "delta": 1e-6, "text": name}
    document["notes"] = [name]
    return document


def _promise(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = (promise for promise in document["promises"] if promise["name"] == name)
    return found


def _short(document: dict[str, Any]) -> dict[str, Any]:
    """Keep few parts of the stream: a browser takes seconds for long tables."""
    del document["over_time"]["bins"][6:]
    return document


def _holds(name: str, promised: str, measured: str, value: float | None = None, bound: float | None = None) -> Any:
    return {
        "name": name,
        "promised": promised,
        "measured": measured,
        "value": value,
        "bound": bound,
        "state": "kept",
        "groups": 0,
        "rows": 0,
        "note": "",
    }


def _time_bin(place: int) -> dict[str, Any]:
    suppressed = 1 + round(4 * math.sin(place / 3) ** 2) + (9 if place in (17, 18) else 0)
    loss = 0.19 + 0.03 * math.sin(place / 4) + 0.08 * math.exp(-place / 4)
    return {"from": 1000 * place, "to": 1000 * (place + 1), "published": 1000, "suppressed": suppressed, "loss": loss}


_TIME_BINS = [_time_bin(place) for place in range(48)]
_GROUP_BINS = [(10, 12, 640), (12, 14, 812), (14, 16, 540), (16, 20, 333), (20, 26, 160), (26, 34, 71), (34, 61, 22)]
_DELAY_BINS = [310, 640, 1210, 2105, 3380, 4902, 6110, 7204, 7925, 6840, 4600, 2632]
_SUPPRESSED = sum(part["suppressed"] for part in _TIME_BINS)

_PUBLISHED = 48_000

_KEPT: dict[str, Any] = {
    "crenel": "0.1.0",
    "crowd": {
        "alone": 0,
        "rows": _PUBLISHED,
        "k": 10,
        "exact": True,
        "repeated": 0,
        "promised": True,
        "state": "kept",
        "text": "A crowd at one moment is kept: 0 of 48,000 rows left with fewer than 10 persons at one moment.",
        "seed": None,
    },
    "verdict": "kept",
    "knowledge": "trace",
    "policy": {
        "method": "bastion",
        "k": 10,
        "l": 2,
        "t": None,
        "delay": "1h",
        "delay_rows": None,
        "on_suppress": "drop",
        "person": "customer",
        "quasi_identifiers": ["age", "zipcode", "education", "hours", "joined"],
        "sensitive": ["diagnosis"],
        "publish": ["visit_kind"],
    },
    "rows": {
        "input": _PUBLISHED + 19 + _SUPPRESSED,
        "rejected": 19,
        "published": _PUBLISHED,
        "suppressed": _SUPPRESSED,
        "sampled_out": 0,
        "lost": 0,
        "groups": 2_578,
    },
    "promises": [
        _holds(
            "crowd",
            "every row leaves in a release of at least 10 persons, each person once, at one moment",
            "0 of 48,000 rows left with fewer than 10 persons at one moment",
            0,
            0,
        ),
        _holds("k", "at least 10 persons in each group", "at least 10 persons", 10, 10),
        {
            **_holds("l:diagnosis", "at least 2 distinct values in each group", "at least 2 distinct values", 2, 2),
            "note": "By entropy, each group has at least 1.72 equally likely values.",
        },
        _holds("deadline", "each row leaves within 1h of event time", "at most 3599.2 seconds", 3599.2, 3600.0),
        _holds("nothing lost", "each row leaves exactly once", "0 rows lost", 0, 0),
        _holds(
            "contained",
            "ranges contain the row's own values, and all other values are unchanged",
            "in all rows",
            0,
            0,
        ),
        _holds("columns", "no column is published that the policy does not name", "no other column"),
        _holds("boxes", "every published value is one that the policy can publish", "all are"),
    ],
    "loss": {
        "overall": 0.2131,
        "per_attribute": {"age": 0.1024, "zipcode": 0.3412, "education": 0.2785, "hours": 0.0921, "joined": 0.2513},
        "ncp": 0.2087,
        "discernibility": 893_310,
        "uncertainty_penalty": 1.0437,
        "information_loss": 1.2219,
        "suppression_rate": _SUPPRESSED / (48_000 + _SUPPRESSED),
    },
    "groups": {
        "smallest": 10,
        "median": 14,
        "largest": 60,
        "unit": "persons",
        "histogram": [
            {"from": low, "to": high, "groups": groups, "rows": groups * (low + high - 1) // 2}
            for low, high, groups in _GROUP_BINS
        ],
    },
    "delay": {
        "unit": "seconds",
        "deadline": 3600.0,
        "mean": 2175.3,
        "p50": 2288.0,
        "p99": 3571.25,
        "largest": 3599.2,
        "histogram": [
            {"from": 300.0 * place, "to": 300.0 * (place + 1), "rows": rows} for place, rows in enumerate(_DELAY_BINS)
        ],
    },
    "over_time": {"unit": "published rows", "bins": _TIME_BINS},
    "utility": {"theta": 0.1, "queries": 500, "windows": 10, "error": 0.1187, "seed": 1, "empty": 0.012},
    "attacks": [
        {
            "name": "linkage",
            "text": "An attacker who knows everyone's quasi-identifiers guesses which row belongs to a person.",
            "targets": 500,
            "claims": 500,
            "right": 38,
            "bound": 0.1,
            "success": 0.076,
            "state": "kept",
        },
        {
            "name": "homogeneity",
            "text": "An attacker looks for groups in which all rows have the same sensitive value.",
            "targets": 2_578,
            "claims": 0,
            "right": 0,
            "bound": 0.0,
            "success": 0.0,
            "state": "kept",
        },
        {
            "name": "order",
            "text": "An attacker takes the order of the output for the order of arrival.",
            "targets": 48_000,
            "claims": 24_000,
            "right": 12_190,
            "bound": None,
            "success": 0.5079,
            "state": "information",
        },
    ],
    "differential": None,
    "notes": ["Delays are counted in event time, from a row's event time to its release."],
}
