from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crenel.errors import PolicyError
from crenel.policy.hierarchy import Hierarchy

EDUCATION = """\
Bachelors;Undergraduate;Higher;*
11th;High School;Secondary;*
Some-college;Undergraduate;Higher;*
Doctorate;Graduate;Higher;*
12th;High School;Secondary;*
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="education.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def problems(make):
    with pytest.raises(PolicyError) as caught:
        make()
    return caught.value.problems


@st.composite
def nested(draw):
    """Draw a tree of mappings and lists of different depths, in which all labels differ."""
    count = iter(range(10**6))

    def group(depth):
        size = draw(st.integers(1, 3))
        if depth == 0 or draw(st.booleans()):
            return [f"n{next(count)}" for _ in range(size)]
        return {f"n{next(count)}": group(depth - 1) if draw(st.booleans()) else None for _ in range(size)}

    return {"*": group(4)}


def test_arx_csv(write):
    hierarchy = Hierarchy.from_csv(write(EDUCATION))
    assert hierarchy.leaves == ("Bachelors", "Some-college", "Doctorate", "11th", "12th")
    assert hierarchy.root_label == "*"
    assert hierarchy.depth == 3
    assert [hierarchy.leaf_number(leaf) for leaf in hierarchy.leaves] == [0, 1, 2, 3, 4]
    assert hierarchy.label_of_span(0, 0) == "Bachelors"
    assert hierarchy.label_of_span(0, 1) == "Undergraduate"
    assert hierarchy.label_of_span(1, 2) == "Higher"
    assert hierarchy.label_of_span(2, 3) == "*"
    assert hierarchy.label(0) == "*"
    with pytest.raises(KeyError):
        hierarchy.leaf_number("Higher")


def test_short_lines_repeated_labels_and_empty_cells_add_no_nodes(write):
    text = "a;a;G;*\nb;H;G;*\nc;;G;*\nd;*\n\na;G;*\n"
    hierarchy = Hierarchy.from_csv(write(text))
    assert hierarchy.to_mapping() == {"*": {"G": {"a": None, "H": ["b"], "c": None}, "d": None}}


def test_quotes_a_byte_order_mark_and_a_missing_last_newline(write):
    hierarchy = Hierarchy.from_csv(write('\ufeff"a;b";G;*\r\nc;G;*'))
    assert hierarchy.leaves == ("a;b", "c")


def test_a_csv_without_a_common_top_gets_one(write):
    assert Hierarchy.from_csv(write("a;G\nb;H\n")).root_label == "*"
    assert Hierarchy.from_csv(write("a\nb\n")).to_mapping() == {"*": ["a", "b"]}


def test_a_label_on_two_branches_is_refused_with_both_lines(write):
    found = problems(lambda: Hierarchy.from_csv(write("a;Other;A;*\nb;Other;B;*\nc;C;*\nc;D;*\n")))
    assert found == (
        "hierarchy: education.csv, line 2: the label in column 2 must be under the same label as in line 1; "
        "rename it on one of the branches.",
        "hierarchy: education.csv, line 4: the label in column 1 must be under the same label as in line 3; "
        "rename it on one of the branches.",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a;G;*\nG;H;*\n", "line 2: the label in column 1 must be under the same label as in line 1"),
        ("a;b;*\nb;*\n", "line 2: the leaf must be a value or a group, not both"),
        ("a;b;a;*\n", "line 1: a label must not occur twice on one path"),
        ("a;A;B\nb;B;A\n", "must be at the top everywhere"),
        ("a;G;*\nb;G\n", "line 2: the last label must be at the top everywhere, not under another as well"),
        ("a;*\nb;Any\n", "line 2: the top must be '*' everywhere, not another label"),
        (";G;*\n", "line 1: the leaf must not be empty"),
        ("", "education.csv must hold at least one value"),
        ("a,G,*\nb,G,*\n", "the columns must be separated by ';'"),
    ],
)
def test_a_file_that_is_not_a_tree_is_refused(write, text, message):
    found = problems(lambda: Hierarchy.from_csv(write(text)))
    assert message in found[0]
    assert "education.csv" in found[0]


def test_only_the_first_problems_of_a_file_are_listed(write):
    text = "".join(f"x{i};A{i};*\n" + f"x{i};B{i};*\n" for i in range(500))
    found = problems(lambda: Hierarchy.from_csv(write(text)))
    assert len(found) == 11
    assert found[-1] == "hierarchy: and 490 more problems of the same kinds."


def test_files_that_cannot_be_read(tmp_path):
    (found,) = problems(lambda: Hierarchy.from_csv(tmp_path / "none.csv"))
    assert found.startswith("hierarchy: there is no file")
    (found,) = problems(lambda: Hierarchy.from_csv(tmp_path))
    assert "cannot be read" in found
    (tmp_path / "latin.csv").write_bytes(b"caf\xe9;*\n")
    (found,) = problems(lambda: Hierarchy.from_csv(tmp_path / "latin.csv"))
    assert "cannot be read" in found


def test_a_mapping():
    hierarchy = Hierarchy.from_mapping(
        {"School": ["9th", 10, {"Late": ["12th"]}], "Higher": {"BSc": None, "MSc": None}}
    )
    assert hierarchy.root_label == "*"
    assert hierarchy.leaves == ("9th", "10", "12th", "BSc", "MSc")
    assert hierarchy.label_of_span(0, 2) == "School"
    assert Hierarchy.from_mapping({"Any": ["a", "b"]}).root_label == "Any"
    assert Hierarchy.flat(["a", "b"]).to_mapping() == {"*": ["a", "b"]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"A": ["x"], "B": ["x"]}, "the label 'x' must occur once, not again under 'B'"),
        ({"A": {"A": ["x"]}}, "the label 'A' must occur once"),
        (["x", "x"], "the label 'x' must occur once"),
        ({"A": [False]}, "must be text (put it in quotes), not False"),
        ({"A": [None]}, "must be text (put it in quotes), not None"),
        ({"A": []}, "the group 'A' must not be empty"),
        ([], "it must not be empty"),
        ({"A": "x"}, "the group 'A' must hold a mapping, a list or nothing, not 'x'"),
        ({"A": [["x"]]}, "must be text"),
        ("education", "it must be a mapping or a list"),
        ({"*": ["*"]}, "the label '*' must occur once"),
        ({"*": ["x"], "B": ["y"]}, "the top must be '*' everywhere"),
    ],
)
def test_a_mapping_that_is_not_a_tree_is_refused(given, message):
    found = problems(lambda: Hierarchy.from_mapping(given))
    assert message in found[0]


def test_a_mapping_that_contains_itself_is_refused():
    loop = {}
    loop["A"] = loop
    assert "must occur once" in problems(lambda: Hierarchy.from_mapping(loop))[0]


@given(nested())
def test_mappings_round_trip(tree):
    hierarchy = Hierarchy.from_mapping(tree)
    again = Hierarchy.from_mapping(hierarchy.to_mapping())
    assert again == hierarchy
    assert hash(again) == hash(hierarchy)
    assert pickle.loads(pickle.dumps(hierarchy)) == hierarchy


@given(nested())
def test_a_tree_survives_a_csv_file(tmp_path_factory, tree):
    hierarchy = Hierarchy.from_mapping(tree)
    lines = []
    for leaf in hierarchy.tree.leaf.tolist():
        nodes = [leaf]
        while nodes[-1]:
            nodes.append(int(hierarchy.parents[nodes[-1]]))
        lines.append(";".join(hierarchy.label(node) for node in nodes))
    path = tmp_path_factory.mktemp("csv") / "tree.csv"
    path.write_text("\n".join(lines))
    assert Hierarchy.from_csv(path) == hierarchy


def test_a_deep_chain_does_not_recurse():
    tree: dict = {}
    inner = tree
    for depth in range(5000):
        inner[f"level {depth}"] = {}
        inner = inner[f"level {depth}"]
    inner["leaf"] = None
    hierarchy = Hierarchy.from_mapping(tree)
    assert hierarchy.depth == 5000
    assert hierarchy.label_of_span(0, 0) == "leaf"
    assert len(repr(hierarchy.tree)) < 100


def test_a_hundred_thousand_leaves(tmp_path):
    codes = [f"{number:05}" for number in range(100_000)]
    path = tmp_path / "zip.csv"
    path.write_text("".join(f"{z};{z[:4]}*;{z[:3]}**;{z[:2]}***;{z[0]}****;*****\n" for z in codes))
    hierarchy = Hierarchy.from_csv(path)
    assert hierarchy.leaf_number("53706") == 53706
    assert hierarchy.label_of_span(53703, 53706) == "5370*"
    # A table of pairs of nodes would take all memory.
    assert all(table.size <= len(hierarchy.labels) + 1 for table in vars(hierarchy.tree).values())
    data = pickle.dumps(hierarchy)
    assert len(data) < 2_000_000
    assert pickle.loads(data) == hierarchy
    assert repr(hierarchy) == "Hierarchy(100000 leaves, depth 5, root '*****')"
