"""How CASTLE splits a cluster that is about to leave into sub-clusters.

`members` has the slots of the cluster's rows in order of arrival; `part[i]` is the sub-cluster of members[i], and box p
of `boxes` is the box of sub-cluster p. A *bucket* is a set of rows of which each sub-cluster takes some: the rows of
one person in `split`, the rows with one sensitive value in `split_l`.
"""

from __future__ import annotations

import numpy as np

from crenel.engine.kernels.arrays import NONE, Array, copy_into
from crenel.engine.kernels.box_geometry import (
    Boxes,
    Space,
    enlargement_by_box,
    enlargements,
    enlargements_by,
    enlargements_of,
    grow_box,
    join_boxes,
    move_box,
    point_box,
)
from crenel.engine.kernels.closeness import clear_scratch, count_values, within_t
from crenel.engine.kernels.compiler import bare, inner
from crenel.engine.kernels.deadlines import LATEST
from crenel.engine.kernels.distinct_counts import count_down, count_up, erase_entry, find_entry, put_entry
from crenel.engine.kernels.generator import below
from crenel.engine.kernels.row_tree import (
    BLOCK,
    FIRST,
    LEAF,
    LEFT,
    ROWS,
    RowTree,
    add_row,
    insert_all,
    least_growth,
    new_tree,
    remove_row,
)
from crenel.engine.methods.castle.castle_state import Nearest, Persons, State


@bare
def group_by_person(s: State, cluster: int, members: Array, person_of: Array, following: Array, last: Array) -> int:
    """Write the person of each member, and its next row of the same person; return the number of persons."""
    for i in range(members.size):
        person_of[i] = i
        following[i] = NONE
    if s.clusters.distinct[cluster, 0] == members.size:
        return members.size
    persons = 0
    for i in range(members.size):
        person = s.buffer.slots[members[i]].person
        place = find_entry(s.scratch, 0, person)
        if s.scratch[place].count == 0:
            persons += 1
            put_entry(s.scratch, place, 0, person, persons)
            person_of[i] = persons - 1
        else:
            person_of[i] = s.scratch[place].count - 1
            following[last[person_of[i]]] = i
        last[person_of[i]] = i
    for i in range(members.size):
        if following[i] == NONE:
            erase_entry(s.scratch, find_entry(s.scratch, 0, s.buffer.slots[members[i]].person))
    return persons


@bare
def _nearest(space: Space, boxes: Boxes, row: Array, enlargement: Array) -> int:
    """Return the sub-cluster with the smallest enlargement, the first of several."""
    enlargements(space, boxes, row, enlargement)
    best = 0
    for p in range(1, enlargement.size):
        if enlargement[p] < enlargement[best]:
            best = p
    return best


@bare
def _sink(distance: Array, place: Array, i: int) -> None:
    """Restore the max-heap of (distance, place) below i."""
    n = distance.size
    while 2 * i + 1 < n:
        child = 2 * i + 1
        if child + 1 < n and (distance[child + 1], place[child + 1]) > (distance[child], place[child]):
            child += 1
        if (distance[i], place[i]) > (distance[child], place[child]):
            return
        distance[i], distance[child] = distance[child], distance[i]
        place[i], place[child] = place[child], place[i]
        i = child


@bare
def _neighbours(enlargement: Array, chosen: int, distance: Array, place: Array) -> None:
    """Write the places of the `place.size` smallest values of `enlargement`, without `chosen`.

    Of equal values the first ones win.
    """
    wanted = place.size
    found = 0
    for a in range(enlargement.size):
        if a == chosen or wanted == 0:
            continue
        if found < wanted:
            distance[found] = enlargement[a]
            place[found] = a
            found += 1
            if found == wanted:
                for i in range(found // 2 - 1, -1, -1):
                    _sink(distance, place, i)
        elif enlargement[a] < distance[0]:
            distance[0] = enlargement[a]
            place[0] = a
            _sink(distance, place, 0)


@bare
def _search_leaf(space: Space, tree: RowTree, node: int, boxes: Boxes, at: int, nearest: Nearest, found: int) -> int:
    """Replace persons that were found by nearer ones of a leaf, and return how many there are."""
    distance, person = nearest.distance, nearest.person
    block, count = tree.links[node, BLOCK], tree.links[node, ROWS]
    rows, enlargement = tree.rows[block * LEAF : block * LEAF + count], nearest.enlargement[:count]
    enlargements_of(space, boxes, at, tree.columns[block], enlargement)
    for i in range(count):
        if found == person.size and enlargement[i] > distance[0]:
            continue
        of = tree.order[rows[i]]
        if found < person.size:
            distance[found], person[found] = enlargement[i], of
            found += 1
            if found == person.size:
                for j in range(found // 2 - 1, -1, -1):
                    _sink(distance, person, j)
        elif (enlargement[i], of) < (distance[0], person[0]):
            distance[0], person[0] = enlargement[i], of
            _sink(distance, person, 0)
    return found


@bare
def _find_nearest(space: Space, tree: RowTree, boxes: Boxes, at: int, nearest: Nearest) -> None:
    """Write the persons whose rows in the tree enlarge box `at` the least; of equal enlargements the first persons."""
    lo, hi, leaf = boxes.lo[:, at], boxes.hi[:, at], boxes.node[:, at]
    distance, person, first = nearest.distance, nearest.person, tree.marks[:, FIRST]
    nearest.node[0], nearest.bound[0] = 0, 0.0
    found, waiting = 0, 1
    while waiting > 0:
        waiting -= 1
        node, bound = nearest.node[waiting], nearest.bound[waiting]
        while found < person.size or (bound, first[node]) < (distance[0], person[0]):
            near = tree.links[node, LEFT]
            if near == NONE:
                found = _search_leaf(space, tree, node, boxes, at, nearest, found)
                break
            far, bound = near + 1, least_growth(space, tree.boxes, near, lo, hi, leaf)
            farther = least_growth(space, tree.boxes, far, lo, hi, leaf)
            if (farther, first[far]) < (bound, first[near]):
                near, far, bound, farther = far, near, farther, bound
            nearest.node[waiting], nearest.bound[waiting] = far, farther
            waiting += 1
            node = near


@bare
def _person_of_rank(left: Array, rank: int) -> int:
    """Return the person of a rank, from 0, among those who are left: `left` counts them as a Fenwick tree does."""
    step, at = 1, 0
    while 2 * step < left.size:
        step *= 2
    while step > 0:
        if at + step < left.size and left[at + step] <= rank:
            at += step
            rank -= left[at]
        step //= 2
    return at


@bare
def _take_out(left: Array, person: int) -> None:
    """Let a person not be left."""
    at = person + 1
    while at < left.size:
        left[at] -= 1
        at += at & -at


@inner
def split(s: State, persons: Persons, members: Array, part: Array, boxes: Boxes) -> int:
    """Split a cluster into sub-clusters of k nearest neighbours, one row per person, as the paper's `split` does.

    Returns the number of sub-clusters.
    """
    k, rows, parts = s.numbers[0].k, members.size, boxes.lo.shape[1]
    points = np.empty((rows, boxes.lo.shape[0]))
    for i in range(rows):
        copy_into(s.buffer.qi[members[i]], points[i])
    tree = new_tree(points.T, persons.of, np.empty(0), rows)
    nodes = tree.links.shape[0]
    nearest = Nearest(
        np.empty(k - 1),
        np.empty(k - 1, dtype=np.int64),
        np.empty(nodes, dtype=np.int64),
        np.empty(nodes),
        np.empty(max(parts, LEAF)),
    )
    front, left = np.empty(persons.count, dtype=np.int64), np.empty(persons.count + 1, dtype=np.int64)
    return _split_into(s, persons, tree, nearest, part, boxes, front, left, np.empty(rows, dtype=np.int64))


@bare
def _split_into(
    s: State,
    persons: Persons,
    tree: RowTree,
    nearest: Nearest,
    part: Array,
    boxes: Boxes,
    front: Array,
    left: Array,
    scratch: Array,
) -> int:
    """Do the work of `split`, in scratch space.

    `front` has the oldest row that is left in each bucket, and the tree has these rows. `left` counts the buckets that
    have rows, as a Fenwick tree.
    """
    points, following = tree.points.T, persons.following
    for i in range(points.shape[0] - 1, -1, -1):
        front[persons.of[i]] = i
    for i in range(1, left.size):
        left[i] = i & -i
    copy_into(front, scratch[: front.size])
    insert_all(s.space, tree, 0, scratch[: front.size])
    buckets, parts = persons.count, 0
    while buckets >= s.numbers[0].k:
        chosen = _person_of_rank(left, below(s.random, s.numbers, buckets))
        point_box(s.space, points[front[chosen]], boxes, parts)
        remove_row(tree, front[chosen])
        _find_nearest(s.space, tree, boxes, parts, nearest)
        for j in range(-1, nearest.person.size):
            person = nearest.person[j] if j >= 0 else chosen
            i = front[person]
            part[i] = parts
            grow_box(s.space, points[i], boxes, parts)
            if j >= 0:
                remove_row(tree, i)
            front[person] = following[i]
            if front[person] != NONE:
                add_row(s.space, tree, front[person], scratch)
            else:
                buckets -= 1
                _take_out(left, person)
        parts += 1
    for person in range(front.size):
        i = front[person]
        while i != NONE:
            part[i] = _nearest(s.space, boxes, points[i], nearest.enlargement[:parts])
            grow_box(s.space, points[i], boxes, part[i])
            i = following[i]
    return parts


@bare
def _remove_none(items: Array, n: int) -> int:
    """Remove NONE from the first n items, and return how many are left, in the same order."""
    kept = 0
    for i in range(n):
        if items[i] != NONE:
            items[kept] = items[i]
            kept += 1
    return kept


@inner
def _generate_buckets(
    s: State,
    members: Array,
    column: int,
    person_of: Array,
    following: Array,
    representative: Array,
    bucket_of: Array,
) -> int:
    """Choose one row per person, put it into the bucket of its sensitive value, return the number of buckets."""
    counts, sensitive = s.scratch, s.buffer.sensitive
    persons = representative.size
    size = np.zeros(persons, dtype=np.int64)
    value = np.empty(persons, dtype=np.int64)
    buckets = 0
    first = 0
    for person in range(persons):
        while person_of[first] != person:  # persons are numbered by their first row
            first += 1
        best = first
        best_size = np.int64(LATEST)
        i = first
        while i != NONE:
            known = counts[find_entry(counts, 0, sensitive[members[i], column])].count
            i_size = size[known - 1] if known > 0 else 0
            if i_size < best_size:
                best, best_size = i, i_size
            i = following[i]
        code = sensitive[members[best], column]
        place = find_entry(counts, 0, code)
        if counts[place].count == 0:
            value[buckets] = code
            buckets += 1
            put_entry(counts, place, 0, code, buckets)
        bucket = counts[place].count - 1
        size[bucket] += 1
        representative[person] = best
        bucket_of[person] = bucket
    for b in range(buckets):
        erase_entry(counts, find_entry(counts, 0, value[b]))
    return buckets


@bare
def _scarcest_column(distinct: Array) -> int:
    """Return the sensitive column that has the fewest distinct values."""
    best = 1
    for j in range(2, distinct.size):
        if distinct[j] < distinct[best]:
            best = j
    return best - 1


@inner
def split_l(s: State, persons: Persons, cluster: int, members: Array, part: Array, boxes: Boxes) -> int:
    """Split a cluster into diverse parts: function split^l(C, a_s) of the paper.

    Returns the number of sub-clusters, or 0 if the cluster cannot be split.
    """
    qi = s.buffer.qi
    k, l = s.numbers[0].k, s.numbers[0].l
    representative = np.empty(persons.count, dtype=np.int64)
    bucket_of = np.empty(persons.count, dtype=np.int64)
    column = _scarcest_column(s.clusters.distinct[cluster])
    opened = _generate_buckets(s, members, column, persons.of, persons.following, representative, bucket_of)
    if opened < l:
        return 0
    # Bucket b is rows[start[b] : start[b] + size[b]], in order of insertion.
    size = np.zeros(opened, dtype=np.int64)
    start = np.zeros(opened + 1, dtype=np.int64)
    for person in range(persons.count):
        start[bucket_of[person] + 1] += 1
    for b in range(opened):
        start[b + 1] += start[b]
    rows = np.empty(persons.count, dtype=np.int64)
    for person in range(persons.count):
        b = bucket_of[person]
        rows[start[b] + size[b]] = representative[person]
        size[b] += 1
    alive = np.arange(opened)
    columns = np.empty((qi.shape[1], members.size))
    for i in range(members.size):
        copy_into(qi[members[i]], columns[:, i])
    enlargement = np.empty(persons.count)
    distance = np.empty(persons.count)
    place = np.empty(persons.count, dtype=np.int64)
    buckets = opened
    left = persons.count
    parts = 0
    while buckets >= l and left >= k:
        total = left
        b = alive[below(s.random, s.numbers, buckets)]
        r = start[b] + below(s.random, s.numbers, size[b])
        part[rows[r]] = parts
        point_box(s.space, qi[members[rows[r]]], boxes, parts)
        rows[r] = NONE
        size[b] = _remove_none(rows[start[b] :], size[b])
        left -= 1
        for a in range(buckets):
            b = alive[a]
            bucket = rows[start[b] :]
            take = (k * size[b] + total - 1) // total
            bucket_enlargement = enlargement[: size[b]]
            enlargements_by(s.space, boxes, parts, columns, bucket, bucket_enlargement)
            _neighbours(bucket_enlargement, NONE, distance[:take], place[:take])
            for i in place[:take]:
                part[bucket[i]] = parts
                grow_box(s.space, qi[members[bucket[i]]], boxes, parts)
                bucket[i] = NONE
            size[b] = _remove_none(bucket, size[b])
            left -= take
            if size[b] == 0:
                alive[a] = NONE
        buckets = _remove_none(alive, buckets)
        parts += 1
    for a in range(buckets):
        b = alive[a]
        for i in rows[start[b] : start[b] + size[b]]:
            row = qi[members[i]]
            part[i] = _nearest(s.space, boxes, row, enlargement[:parts])
            grow_box(s.space, row, boxes, part[i])
    for i in range(members.size):
        part[i] = part[representative[persons.of[i]]]
        grow_box(s.space, qi[members[i]], boxes, part[i])
    return parts


@bare
def _part_ready(s: State, members: Array, part: Array, p: int) -> bool:
    """Return whether sub-cluster p has l values of each sensitive column and is within t."""
    sensitive = s.buffer.sensitive
    for j in range(1, s.numbers[0].tracked):
        distinct = 0
        for i in range(members.size):
            if part[i] == p and count_up(s.scratch, 0, sensitive[members[i], j - 1]):
                distinct += 1
        for i in range(members.size):
            if part[i] == p:
                count_down(s.scratch, 0, sensitive[members[i], j - 1])
        if distinct < s.numbers[0].l:
            return False
    if s.numbers[0].t < 0.0:
        return True
    clear_scratch(s.closeness)
    total = 0
    for i in range(members.size):
        if part[i] == p:
            count_values(s.closeness.scratch, sensitive[members[i]])
            total += 1
    return within_t(s.numbers, s.closeness, s.closeness.scratch, total)


@bare
def repair(s: State, members: Array, part: Array, boxes: Boxes, parts: int) -> int:
    """Join each sub-cluster that cannot be published with its nearest, until all can; return how many are left."""
    p = 0
    while p < parts and parts > 1:
        if _part_ready(s, members, part, p):
            p += 1
            continue
        best = NONE
        smallest = np.inf
        for other in range(parts):
            if other != p:
                enlargement = enlargement_by_box(s.space, boxes, p, other)
                if enlargement < smallest:
                    smallest = enlargement
                    best = other
        join_boxes(s.space, boxes, best, p)
        for i in range(members.size):
            if part[i] == p:
                part[i] = best
            if part[i] > p:
                part[i] -= 1
        for other in range(p, parts - 1):
            move_box(boxes, other + 1, other)
        parts -= 1
        p = 0  # with t, a sub-cluster that was ready may not be after it has taken another
    return parts
