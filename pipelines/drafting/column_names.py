"""What a column's name suggests about its role: a guess, for a draft or a warning."""

from __future__ import annotations

import re

__all__ = [
    "coordinate",
    "direct_identifier",
    "event_time",
    "identifier",
    "is_fixed",
    "is_label",
    "only_an_id",
    "person",
    "place_code",
    "quasi_identifier",
    "sensitive",
    "words",
]


def _set(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_PERSONS = _set(
    "person people individual patient customer client user member subscriber employee student "
    "subject driver rider passenger citizen resident account participant visitor respondent "
    "worker guest owner buyer seller voter pupil inmate donor cardholder consumer author"
)
_PERSON_ALONE = _set("pid uid ssn msisdn nino username login email mrn ptid ptno subj subjid idno ident respid rid")
#: What is not a person, though a person may belong to it: an id of it counts no persons.
_NO_PERSONS = _set(
    "clinic hospital ward center centre site practice provider facility department unit team store shop branch school "
    "class company product item order session device station vehicle trip event visit admission record transaction "
    "location household cluster group country state city"
)
_ROW_IDS = _set("id uuid guid")
_LABELS = _ROW_IDS | _set("key code hash ref")
_NUMBERS = _set("no nr num number")
_DIRECT = _set(
    "name firstname lastname fullname surname forename nickname username login email mail phone "
    "telephone tel mobile cell fax msisdn ssn nino passport license licence plate iban card "
    "address addr street ip mac imei imsi device cookie url signature vin password token "
    "fingerprint"
)
_QUASI_STRONG = _set(
    "age sex gender zip zipcode postal postcode postalcode plz birth birthday birthdate dob "
    "female male born yob birthyear city town county country state region province race ethnicity marital"
)
_QUASI_WEAK = _set(
    "municipality district borough neighborhood neighbourhood location lat lon lng latitude "
    "longitude place origin destination pickup dropoff station stop ethnic nationality nativity "
    "citizenship native married education degree school occupation job profession employer "
    "industry workclass language english height weight children family household relationship "
    "hispanic ethn black white educ vehicle weekday admission admitted discharge hired joined distance"
)
_FIXED = _set("sex gender male female birth birthday birthdate dob born yob birthyear race ethnicity ethn")
_LATITUDES, _LONGITUDES = _set("lat latitude"), _set("lon lng long longitude")
_PLACE_CODES = _set("zip zipcode postal postcode postalcode plz")
_SENSITIVE_STRONG = _set(
    "diagnosis diagnoses disease disorder illness condition icd medication drug treatment "
    "therapy symptom hiv cancer diabetes outcome salary income wage wages earnings balance debt "
    "religion politics party orientation conviction offence offense crime disability pregnancy"
)
_SENSITIVE_WEAK = _set(
    "pregnancies glucose insulin blood pressure bmi cholesterol result score grade gpa credit "
    "loan amount fare price cost tip total spend spending revenue payment dollars rating"
)
_TIMES = _set(
    "event time timestamp ts datetime date created occurred at start started begin received "
    "logged arrival arrived recorded observed visit visited"
)


def words(name: str) -> tuple[str, ...]:
    """Split a name into words, in lower case: `PickupLocationID` into pickup, location, id."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    found = re.findall(r"[^\W_]+", apart.lower())
    return tuple(re.sub(r"(?<=[a-z])\d+$", "", word) for word in found)


def person(name: str) -> str | None:
    """Find the word which suggests that a column tells persons apart."""
    found = words(name)
    if len(found) == 1:
        stem = re.sub(r"(id|no|nr|key)$", "", found[0])
        known = found[0] in _PERSONS | _PERSON_ALONE | _ROW_IDS or stem in _PERSONS
        return found[0] if known else None
    if not found or found[-1] not in _LABELS | _NUMBERS or _NO_PERSONS & set(found):
        return None
    return next((word for word in found if word in _PERSONS), None)


def only_an_id(name: str) -> bool:
    """Whether the name says only that the column is an identifier, but not of what."""
    return words(name)[:2] in {(word,) for word in _ROW_IDS}


def direct_identifier(name: str) -> str | None:
    """Find the word which suggests that a column names a person: a name, an address, a phone number."""
    field = name.rpartition(".")[2]
    found = _first(field, _DIRECT)
    # The zipcode of an address is none; what says nothing by itself is what its object is.
    is_telling = found is not None or field == name or quasi_identifier(field) is not None
    return found if is_telling else _first(name, _DIRECT)


def identifier(name: str) -> str | None:
    """Find the word which suggests that a column identifies a person or a row."""
    if is_label(name):
        return words(name)[-1]
    return direct_identifier(name) or person(name)


def is_label(name: str) -> bool:
    """Whether the values are labels even if they are numbers: `location_id`."""
    found = words(name)
    return bool(found) and (found[-1] in _LABELS or person(name) is not None)


def is_fixed(name: str) -> bool:
    """Whether the column holds what a person keeps for life: a sex, a birthday."""
    return bool(_FIXED & set(words(name)))


def coordinate(name: str) -> tuple[str, str] | None:
    """Tell whether it is a latitude or a longitude, and of what: `pickup_lat` is a `latitude` of a `pickup`."""
    field = name.rpartition(".")[2]
    found = words(field)
    for axis, known in (("latitude", _LATITUDES), ("longitude", _LONGITUDES)):
        if known & set(found):
            of = "_".join(word for word in found if word not in known)
            return axis, name.removesuffix(field) + of
    return None


def place_code(name: str) -> bool:
    """Whether it is a code whose first characters stand for a larger place, such as a zipcode."""
    return _first(name, _PLACE_CODES) is not None


def quasi_identifier(name: str) -> tuple[str, bool] | None:
    """Find the word which suggests that an attacker may know the column, and whether it is a clear one."""
    return _graded(name, _QUASI_STRONG, _QUASI_WEAK)


def sensitive(name: str) -> tuple[str, bool] | None:
    """Find the word which suggests that an attacker must not learn the column, and whether it is a clear one."""
    return _graded(name, _SENSITIVE_STRONG, _SENSITIVE_WEAK)


def event_time(name: str) -> str | None:
    """Find the word which suggests that a column says when something happened."""
    return _first(name, _TIMES)


def _first(name: str, known: frozenset[str]) -> str | None:
    return next((word for word in words(name) if word in known), None)


def _graded(name: str, strong: frozenset[str], weak: frozenset[str]) -> tuple[str, bool] | None:
    word = _first(name, strong)
    if word is not None:
        return word, True
    word = _first(name, weak)
    return None if word is None else (word, False)
