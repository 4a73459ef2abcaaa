"""The audit's page: its text, its figures, and how Chromium shows it."""

from __future__ import annotations

import functools
import hashlib
import html
import json
import math
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crenel.pipelines.auditing.page import plots, render, write
from crenel.pipelines.auditing.page.template import fill
from crenel.pipelines.auditing.page.words import clean, number, percent
from crenel.pipelines.command_errors import CommandError
from crenel.policy.durations import span_of_seconds
from tests.pipelines.auditing import documents
from tests.pipelines.auditing.browser import chromium, events, pdf, prefer, resize

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"' $x_{&amp;\n\x00\ud800"
PAGES = {
    "kept": documents.kept,
    "few": documents.kept_by_few,
    "broken": documents.broken,
    "no crowd": documents.no_crowd,
    "published": documents.of_the_published,
    "empty": documents.empty,
    "evil": lambda: documents.renamed(documents.broken(), EVIL),
}
FOLDER = Path(plots.__file__).parent


@functools.cache
def page_of(name: str) -> str:
    return render(PAGES[name]())


# --- The text ---


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[Any] = []
        self.texts: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_data(self, data: str) -> None:
        if self.tags:
            self.texts.append((self.tags[-1][0], data))


def embedded(page: str) -> str:
    found = re.search(r'<script type="application/json" id="audit">(.*?)</script>', page, re.DOTALL)
    assert found
    return found[1]


def test_the_same_document_gives_the_same_page() -> None:
    assert render(documents.kept()) == page_of("kept")


def test_the_page_is_written(tmp_path: Path) -> None:
    write(documents.empty(), tmp_path / "audit.html")
    assert (tmp_path / "audit.html").read_text("utf-8") == page_of("empty")


@pytest.mark.parametrize("name", PAGES)
def test_the_document_is_in_the_page(name: str) -> None:
    document, page = PAGES[name](), page_of(name)
    assert json.loads(embedded(page)) == document
    (link,) = re.findall(r'href="data:application/json,([^"]*)"', page)
    assert json.loads(unquote(link)) == document
    assert hashlib.sha256(unquote(link).encode()).hexdigest() in page
    ids = Elements(page).ids
    assert len(ids) == len(set(ids))


@settings(max_examples=50)
@given(name=st.text(min_size=1) | st.sampled_from([EVIL, "{{ 7 * 7 }}", "<!--", "]]>", "</style>", "&lt;"]))
def test_no_name_adds_an_element(name: str) -> None:
    """Whatever columns are called, the page has the elements of one whose columns have plain names."""
    document = documents.renamed(documents.broken(), name)
    page = fill(document, {})
    plain = fill(documents.renamed(documents.broken(), "plain"), {})
    assert Elements(page).tags == Elements(plain).tags
    assert json.loads(embedded(page)) == document


@settings(max_examples=5)
@given(name=st.text(min_size=1, max_size=30))
def test_any_name_can_be_drawn(name: str) -> None:
    drawn = plots.draw(documents.renamed(documents.kept(), name))
    assert len(drawn) == 5
    tags = {tag for svg in drawn.values() for tag, _ in Elements(svg).tags}
    assert tags <= {"svg", "defs", "g", "path", "text", "use", "clippath", "rect"}


def test_names_are_drawn_as_they_are() -> None:
    drawn = plots.draw(documents.renamed(documents.kept(), r"$\frac{a}$ & <b>"))["loss"]
    assert r"$\frac{a}$ &amp; &lt;b&gt;" in drawn


def test_the_banner_is_green_only_if_enough_rows_were_published() -> None:
    """Promises kept for a few published rows are no reason for green."""
    kept, few, broken = (page_of(name) for name in ("kept", "few", "broken"))
    assert '<div class="verdict kept">' in kept
    assert '<div class="verdict unproven">' in few
    assert '<div class="verdict broken">' in broken
    assert "The promises are kept, but too many rows were not published" in _said(few)
    assert "12,000 rows (20 %) were suppressed, 9,000 more than the limit of 5 % allows." in _said(few)
    assert "too many rows" not in _said(kept)
    shown = {tuple(json.loads(html.unescape(where))) for where in re.findall(r'data-at="([^"]*)"', few)}
    assert {path for path in _leaves(documents.kept_by_few()) if path[0] == "too_many"} <= shown


def _said(page: str) -> str:
    return " ".join("".join(text for tag, text in Elements(page).texts if tag not in ("style", "script")).split())


def test_the_page_says_what_is_missing() -> None:
    said = _said(page_of("published"))
    for words in (
        "Not proven",
        "No promise is broken, but 5 of 8 are not proven.",
        "How many of 48,000 rows were released with fewer than 10 persons at one moment: not known.",
        "The policy promises that every row is released in a crowd. This is not proven.",
        "The auditor had the published rows alone",
        "Not measured. Only the input and the owner",
        "Not known: the given files do not show when rows were suppressed.",
        "No attack was tried",
        "the audit needs the input",
        "not differentially private",
        "These are rows",
    ):
        assert words in said
    bare = _said(page_of("empty"))
    for words in ("No promise was checked", "No group was published", "sets no deadline", "Notes None."):
        assert words in bare


def test_the_verdict_is_in_words() -> None:
    assert "The promises are kept 0 of 48,000 rows were released with fewer than 10 persons" in _said(page_of("kept"))
    assert "All 8 promises of the policy were checked" in _said(page_of("kept"))
    said = _said(page_of("broken"))
    assert "2 of 8 promises are broken." in said
    assert "In 3 groups, 41 rows." in said
    assert "some rows were late" in said


def _banner(page: str) -> str:
    found = re.search(r'<div class="verdict ([a-z]*)">', page)
    assert found
    return found[1]


def test_the_crowd_is_the_first_figure_of_all() -> None:
    for name in ("kept", "broken", "no crowd"):
        first = re.search(r'<data data-at="([^"]*)"', page_of(name))
        assert first
        assert first[1] == "[&#34;crowd&#34;, &#34;alone&#34;]"


def test_what_is_weaker_than_a_crowd_is_not_green() -> None:
    assert _banner(page_of("kept")) == "kept"
    assert _banner(page_of("broken")) == "broken"
    for name in ("no crowd", "published", "empty"):
        assert _banner(page_of(name)) == "unproven"
    said = _said(page_of("no crowd"))
    assert "No crowd is promised 9,435 of 48,000 rows were released with fewer than 10 persons at one moment" in said
    assert "and 120 in releases that hold a person more than once. An attacker who knows when a row arrived can" in said
    assert "The policy does not promise a crowd at one moment." in said
    assert "All 7 promises of the policy were checked" in said
    assert "A crowd at one moment: not promised." in said
    assert "An attacker who guesses it can recompute the order" in said
    assert "The promises are kept" not in said


def test_delays_may_be_counted_in_rows() -> None:
    document = documents.kept()
    document["delay"]["unit"] = "rows"
    assert "The deadline is 3,600 rows: no row was late." in _said(render(document))


def test_times_are_shown_by_day_and_hour() -> None:
    document = documents.of_the_published()
    document["over_time"]["unit"] = "event time"
    for hour, part in enumerate(document["over_time"]["bins"]):
        part.update({"from": f"2024-03-04T0{hour}:00Z", "to": f"2024-03-04T0{hour + 1}:00Z"})
    drawn = plots.draw(document)["loss-over-time"]
    assert {"2024-03-04", "00:00", "06:00", "event time"} <= {text for _, text in Elements(drawn).texts}


def test_many_columns_are_all_in_the_table() -> None:
    document = documents.kept()
    document["loss"]["per_attribute"] = {f"column {i}": i / 200 for i in range(100)}
    drawn = plots.draw(document)
    assert len(re.findall("<code>column ", fill(document, drawn))) == 100
    assert list(map(int, re.findall(">column ([0-9]+)<", drawn["loss"]))) == list(range(100 - plots.MOST_BARS, 100))


def test_a_document_that_is_not_json_is_refused() -> None:
    document = documents.kept()
    document["loss"]["overall"] = math.nan
    with pytest.raises(ValueError, match="JSON"):
        render(document)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "crenel.pipelines.auditing.page.plots")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    # A package that is already imported would be found without looking.
    monkeypatch.delattr("crenel.pipelines.auditing.page.plots")
    with pytest.raises(CommandError, match=r"needs the package matplotlib. Run: pip install 'crenel\[report\]'"):
        render(documents.kept())


COUNTS = st.integers(0, 2**63)
SHARES = st.floats(0, 1)
AMOUNTS = st.floats(0, 1e18)


def _bins(of: st.SearchStrategy[Any], bounds: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Bins side by side, each with its counts."""

    def joined(drawn: tuple[list[Any], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        edges = sorted(drawn[0])
        return [{"from": a, "to": b, **counts} for (a, b), counts in zip(pairwise(edges), drawn[1], strict=False)]

    return st.tuples(st.lists(bounds, max_size=6), st.lists(of, max_size=6)).map(joined)


@st.composite
def odd_documents(draw: st.DrawFn) -> dict[str, Any]:
    """Any document that an audit may give: empty, small, or with huge numbers."""
    document = draw(st.sampled_from([documents.kept, documents.of_the_published, documents.empty]))()
    document["rows"] = {name: draw(st.none() | COUNTS) for name in document["rows"]}
    document["loss"] = {name: draw(st.none() | SHARES) for name in document["loss"]}
    document["loss"]["per_attribute"] = draw(st.dictionaries(st.text(max_size=40), st.none() | SHARES, max_size=4))
    document["groups"].update({name: draw(st.none() | COUNTS) for name in ("smallest", "median", "largest")})
    document["groups"]["histogram"] = draw(_bins(st.fixed_dictionaries({"groups": COUNTS, "rows": COUNTS}), COUNTS))
    document["policy"]["k"] = draw(COUNTS)
    if document["delay"]:
        document["delay"].update({name: draw(AMOUNTS) for name in ("deadline", "mean", "p50", "p99", "largest")})
        document["delay"]["histogram"] = draw(_bins(st.fixed_dictionaries({"rows": COUNTS}), AMOUNTS))
        document["delay"]["unit"] = draw(st.sampled_from(["seconds", "rows"]))
    told = {"published": COUNTS, "suppressed": st.none() | COUNTS, "loss": st.none() | SHARES}
    document["over_time"]["bins"] = draw(_bins(st.fixed_dictionaries(told), draw(st.sampled_from([COUNTS, st.text()]))))
    return document


@settings(max_examples=12)
@given(document=odd_documents())
def test_odd_documents_have_a_page(document: dict[str, Any]) -> None:
    page = render(document)
    assert json.loads(embedded(page)) == document
    for where, value, text in re.findall(r'<data data-at="([^"]*)" value="([^"]*)">([^<]*)</data>', page):
        assert says(text, json.loads(value)), where


# --- Figures, read back without the code that wrote them ---

_SECONDS = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}


def says(text: str, value: float) -> bool:
    """Whether a text gives a figure, within the precision of the text."""
    if text == "under 0.01 %":
        return 0 < value < 0.000_1
    if text == "over 99.9 %":
        return 0.999 < value < 1
    if text.endswith(" %"):
        digits = text.removesuffix(" %")
        return abs(_read(digits) - value * 100) <= max(0.051 if value >= 0.01 else 0.005_1, abs(value) * 0.051)
    parts = re.findall(r"([0-9.,e+-]+) (d|h|min|s)\b", text)
    if parts:
        seconds = sum(_read(digits) * _SECONDS[unit] for digits, unit in parts)
        # A duration has two units, and seconds to a tenth; the rest is cut off.
        first = _SECONDS[parts[0][1]]
        finest = {86_400: 3_600, 3_600: 60, 60: 0.1, 1: 0}[first]
        return abs(seconds - value) <= finest + abs(value) * _digits(text)
    if isinstance(value, int):
        return text == f"{value:,}"
    return math.isclose(_read(text), value, rel_tol=_digits(text))


def _digits(text: str) -> float:
    """The precision of a number: three digits with an exponent, else four."""
    return 6e-3 if re.search("[0-9]e", text) else 6e-4


def _read(text: str) -> float:
    return float(text.replace(",", ""))


@given(value=st.floats(-1e18, 1e18) | st.integers(-(2**70), 2**70))
def test_numbers_can_be_read_back(value: float) -> None:
    assert says(number(value), value)


@given(share=SHARES)
def test_shares_can_be_read_back(share: float) -> None:
    assert says(percent(share), share)
    assert (percent(share) == "0 %") == (share == 0)
    assert (percent(share) == "100 %") == (share == 1)


@given(seconds=st.floats(0, 1e12))
def test_durations_can_be_read_back(seconds: float) -> None:
    assert says(span_of_seconds(seconds), seconds)
    assert "60 min" not in span_of_seconds(seconds).split(" ", 2)[-1]


def test_a_wrong_figure_is_noticed() -> None:
    assert not says("21.3 %", 0.22)
    assert not says("1 h", 3720.0)
    assert not says("1,001", 1000)
    assert not says("0.12", 0.13)


# --- Colours ---


def _palettes() -> list[dict[str, str]]:
    """The colours of the light and the dark page."""
    roots = re.findall(r":root \{(.*?)\}", (FOLDER / "page.css").read_text("utf-8"), re.DOTALL)
    return [dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", root)) for root in roots[:2]]


def _contrast(one: str, other: str) -> float:
    """Contrast, by the formula of WCAG 2."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, bright = sorted([light(one), light(other)])
    return (bright + 0.05) / (dark + 0.05)


def test_colours_stand_out_from_the_background() -> None:
    day, night = _palettes()
    assert day != night
    for palette in (day, night):
        for name in ("ink", "muted", "bar", "limit", "link", "kept", "broken", "unproven"):
            assert _contrast(palette[name], palette["paper"]) >= 4.5, name
        for state in ("kept", "broken", "unproven"):
            assert _contrast(palette[state], palette[f"{state}-tint"]) >= 4.5, state
            assert _contrast(palette["ink"], palette[f"{state}-tint"]) >= 4.5, state
        assert _contrast(palette["muted"], palette["tint"]) >= 4.5


# --- In Chromium ---


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The addresses of the pages."""
    folder = tmp_path_factory.mktemp("pages")
    for name in PAGES:
        (folder / f"{name}.html").write_text(page_of(name), "utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in PAGES}


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(running: Any) -> Any:
    """The browser, with a wide and light page and empty logs."""
    resize(running, 1280)
    prefer(running)
    running.get("about:blank")
    running.get_log("browser")
    events(running)
    return running


def _asked(browser: Any) -> list[str]:
    """The addresses that the pages requested."""
    return [
        event["params"]["request"]["url"]
        for event in events(browser)
        if event["method"] == "Network.requestWillBeSent" and not event["params"]["request"]["url"].startswith("data:")
    ]


@pytest.mark.browser
def test_requests_and_console_messages_would_be_noticed(browser: Any, tmp_path: Path) -> None:
    noisy = tmp_path / "noisy.html"
    noisy.write_text('<img src="http://127.0.0.1:9/pixel"><script>console.error("no")</script>')
    browser.get(noisy.as_uri())
    assert "http://127.0.0.1:9/pixel" in _asked(browser)
    assert browser.get_log("browser")


@pytest.mark.browser
@pytest.mark.parametrize("name", PAGES)
def test_it_opens_without_messages_and_requests(name: str, browser: Any, addresses: dict[str, str]) -> None:
    browser.get(addresses[name])
    assert _asked(browser) == [addresses[name]]
    assert browser.get_log("browser") == []
    scripts = browser.execute_script("return [...document.scripts].map(s => s.type)")
    assert scripts == ["application/json"]
    # The links to the verdict and to the document.
    assert browser.execute_script("return [document.images.length, document.links.length]") == [0, 2]
    document = PAGES[name]()
    assert json.loads(browser.execute_script("return document.getElementById('audit').textContent")) == document


@pytest.mark.browser
def test_its_own_policy_forbids_scripts_and_requests(browser: Any, tmp_path: Path) -> None:
    """Even if a script were smuggled in, it could neither run nor send anything."""
    smuggled = '<script>document.title = "ran"</script><img src="http://127.0.0.1:9/pixel">'
    page = page_of("empty").replace("<main", smuggled + "<main", 1)
    (tmp_path / "page.html").write_text(page, "utf-8")
    browser.get((tmp_path / "page.html").as_uri())
    assert browser.title != "ran"
    refused = [entry["message"] for entry in browser.get_log("browser")]
    assert len([message for message in refused if "Content Security Policy" in message]) == 2


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all numbers in a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _leaves(inner, (*path, place))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path


def _at(document: Any, path: list[Any]) -> Any:
    for step in path:
        document = document[step]
    return document


@pytest.mark.browser
@pytest.mark.parametrize("name", PAGES)
def test_its_figures_are_those_of_the_document(name: str, browser: Any, addresses: dict[str, str]) -> None:
    browser.get(addresses[name])
    document = PAGES[name]()
    shown = browser.execute_script(
        "return [...document.querySelectorAll('[data-at]')].map(e => [e.dataset.at, e.value ?? null, e.textContent])"
    )
    known = [(json.loads(where), value, text) for where, value, text in shown]
    for where, value, text in known:
        figure = _at(document, where)
        if value is not None:
            assert json.loads(value) == figure
            assert says(text, figure), (where, text, figure)
        elif figure is None:
            assert text in ("not known", "no bound")
        elif where[-1] == "state":
            assert text == {"unknown": "not proven", "information": "for information"}.get(figure, figure)
        elif where != ["verdict"]:
            assert text == clean(figure)
    # The figures of a promise are part of its texts.
    told = {tuple(where) for where, _, _ in known}
    missing = {path for path in _leaves(document) if path not in told and path[0] != "promises"}
    assert missing == set()


@pytest.mark.browser
@pytest.mark.parametrize("name", PAGES)
def test_a_phone_scrolls_one_way(name: str, browser: Any, addresses: dict[str, str]) -> None:
    browser.get(addresses[name])
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    for width in (320, 360, 390):
        resize(browser, width, 740)
        assert browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]") == [width, width]


@pytest.mark.browser
def test_plots_can_be_read_on_a_phone(browser: Any, addresses: dict[str, str]) -> None:
    resize(browser, 360, 740)
    browser.get(addresses["kept"])
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('.plot text')].map("
        "t => parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getScreenCTM().a)"
    )
    assert len(sizes) > 30
    assert min(sizes) >= 10


@pytest.mark.browser
@pytest.mark.parametrize("name", PAGES)
def test_it_can_be_printed(name: str, browser: Any, addresses: dict[str, str]) -> None:
    browser.get(addresses[name])
    printed = pdf(browser)
    assert printed.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 12
    a4 = [0, 0, pytest.approx(595, abs=1.5), pytest.approx(842, abs=1.5)]
    assert all([float(side) for side in box.split()] == a4 for box in re.findall(rb"/MediaBox\s*\[([^]]*)\]", printed))


@pytest.mark.browser
def test_the_keyboard_reaches_every_link(browser: Any, addresses: dict[str, str]) -> None:
    from selenium.webdriver import ActionChains, Keys

    browser.get(addresses["kept"])

    def press(key: str) -> Any:
        ActionChains(browser).send_keys(key).perform()
        return browser.switch_to.active_element

    skip = press(Keys.TAB)
    assert skip.text == "Skip to the verdict"
    assert skip.rect["x"] >= 0
    style = browser.execute_script(
        "let s = getComputedStyle(arguments[0]); return [s.outlineStyle, s.outlineWidth]", skip
    )
    assert style == ["solid", "3px"]
    assert press(Keys.ENTER).get_attribute("id") == "main"

    reached = []
    while (element := press(Keys.TAB)).tag_name in ("summary", "a"):
        reached.append(element.text)
        if element.tag_name == "summary":
            press(Keys.ENTER)
    assert [text for text in reached if text.startswith("The numbers of")] == [
        f"The numbers of “{title}”"
        for title in (
            "Group sizes against k",
            "Delay against the deadline",
            "Loss of each column",
            "Loss over time",
            "Suppressions over time",
        )
    ]
    assert reached[-2:] == ["Download audit.json", "Read it here"]
    assert browser.execute_script("return [...document.querySelectorAll('details')].every(d => d.open)")


@pytest.mark.browser
@pytest.mark.parametrize(
    ("name", "width", "media", "scheme"),
    [
        ("broken", 1280, "", "light"),
        ("broken", 360, "", "dark"),
        ("broken", 1280, "print", "light"),
        ("published", 360, "", "light"),
        ("empty", 1280, "", "dark"),
    ],
)
def test_axe_finds_no_barrier(
    name: str, width: int, media: str, scheme: str, browser: Any, addresses: dict[str, str]
) -> None:
    from axe_core_python.selenium import Axe

    resize(browser, width)
    prefer(browser, media, scheme)
    browser.get(addresses[name])
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    found = Axe().run(browser)["violations"]
    assert [(rule["id"], rule["impact"], rule["nodes"][0]["html"][:200]) for rule in found] == []


@pytest.mark.browser
def test_headings_are_in_order(browser: Any, addresses: dict[str, str]) -> None:
    browser.get(addresses["kept"])
    levels = browser.execute_script(
        "return [...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
