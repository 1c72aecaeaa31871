"""docs/evidence/proof.md: what its lemma on shares says holds in exact arithmetic; what it names is in the code."""

import itertools
import random
import re

import pytest
from places import ROOT
from test_docs import NAME, known

PAGE = (ROOT / "docs" / "evidence" / "proof.md").read_text(encoding="utf-8")
P = 16381  # The field of 100 clients.
T = 3

Row = list[int]


def weights(nodes: list[int], at: int) -> Row:
    """By how much the value at each node counts for that at ``at`` (Lagrange)."""
    out: Row = []
    for node in nodes:
        above = below = 1
        for other in nodes:
            if other != node:
                above, below = above * (at - other) % P, below * (node - other) % P
        out.append(above * pow(below, -1, P) % P)
    return out


class Committee:
    """What a server learns of packed secrets, as linear forms: first what clients draw, then what they share."""

    def __init__(self, clients: int, threshold: int, pack: int) -> None:
        self.clients, self.threshold, self.pack = clients, threshold, pack
        self.rows: list[Row] = []

    def asked(self, member: int, clients: list[int], factor: int = 1) -> Row:
        """The server has the sum of this member's shares of these clients."""
        nodes = [*range(1, self.threshold), *(-k for k in range(self.pack))]
        share, drawn = weights(nodes, member + 1), self.threshold - 1
        row = [0] * (self.clients * len(nodes))
        for client in clients:
            row[client * drawn : (client + 1) * drawn] = [factor * x % P for x in share[:drawn]]
            at = self.clients * drawn + client * self.pack
            row[at : at + self.pack] = [factor * x % P for x in share[drawn:]]
        self.rows.append(row)
        return row

    def secrets(self, row: Row) -> list[tuple[int, ...]]:
        """The part of a form that is about what clients share, client by client."""
        rest = row[self.clients * (self.threshold - 1) :]
        return [tuple(rest[u * self.pack : (u + 1) * self.pack]) for u in range(self.clients)]

    def leaks(self) -> list[list[tuple[int, ...]]]:
        """All forms in what clients share alone: Gauss takes out what is drawn."""
        rows, done = [list(row) for row in self.rows], 0
        for column in range(self.clients * (self.threshold - 1)):
            pivot = next((k for k in range(done, len(rows)) if rows[k][column]), None)
            if pivot is None:
                continue
            rows[done], rows[pivot] = rows[pivot], rows[done]
            inverse = pow(rows[done][column], -1, P)
            for k in range(done + 1, len(rows)):
                by = rows[k][column] * inverse % P
                if by:
                    rows[k] = [(x - by * y) % P for x, y in zip(rows[k], rows[done], strict=True)]
            done += 1
        found = [self.secrets(row) for row in rows[done:]]
        return [leak for leak in found if any(any(of) for of in leak)]


def division(rng: random.Random, clients: int) -> list[list[int]]:
    """Groups of two clients or more."""
    order = rng.sample(range(clients), clients)
    groups: list[list[int]] = []
    while order:
        size = rng.choice([n for n in range(2, len(order) + 1) if len(order) - n != 1])
        groups.append(order[:size])
        order = order[size:]
    return groups


def unions(rng: random.Random, groups: list[list[int]]) -> list[list[int]]:
    """Disjoint sets, each of whole groups; some groups are in none."""
    where = [rng.randrange(3) for _ in groups]
    sets = [[u for group, at in zip(groups, where, strict=True) if at == k for u in group] for k in range(2)]
    return [one for one in sets if one]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_lists_are_answered_all_that_follows_is_of_whole_groups(seed: int) -> None:
    """Each member answers other unions of groups, and up to one fewer than the threshold show all of their shares."""
    rng = random.Random(seed)
    clients, threshold, pack = rng.randrange(4, 8), rng.randrange(1, 4), rng.randrange(1, 3)
    members = rng.randrange(threshold + pack - 1, 8)
    made, groups = Committee(clients, threshold, pack), division(rng, clients)
    stolen = rng.sample(range(members), rng.randrange(threshold))
    for member in range(members):
        for client in range(clients) if member in stolen else []:
            made.asked(member, [client])
        for one in unions(rng, groups):
            made.asked(member, one)
    for leak in made.leaks():
        for group in groups:
            assert len({leak[u] for u in group}) == 1, (groups, leak)


@pytest.mark.parametrize("pack", [1, 2])
def test_as_many_members_as_the_threshold_say_something_of_one_client(pack: int) -> None:
    made = Committee(4, T, pack)
    for member in range(T):
        for client in range(4):
            made.asked(member, [client])
    assert any(len(set(leak)) > 1 for leak in made.leaks())


def test_lists_of_many_divisions_say_something_of_one_client_though_no_set_has_threshold_answers() -> None:
    """Five members, threshold 3: so the threshold alone is no proof where members answer lists of sets.

    A client is a sum of some of five words, each of which says nothing of what is drawn and nothing of one member.
    With and without this word a client is in the same set of that member.
    """
    rng, words = random.Random(1), list[tuple[Row, int]]()
    for silent in range(5):
        other = rng.choice([j for j in range(5) if j != silent])
        nodes = [j + 1 for j in range(5) if j not in (silent, other)]
        factor, word = rng.randrange(1, P), [0] * 5
        for node, x in zip(nodes, weights(nodes, 0), strict=True):
            word[node - 1] = factor * x % P
        words.append((word, factor))
    points: list[Row] = []
    for chosen in itertools.product((0, 1), repeat=5):
        points.append([sum(c * word[j] for c, (word, _) in zip(chosen, words, strict=True)) % P for j in range(5)])
    made, answers = Committee(32, T, 1), dict[tuple[int, ...], int]()
    for member in range(5):
        sets: dict[int, list[int]] = {}
        for client, point in enumerate(points):
            sets.setdefault(point[member], []).append(client)
        sets.pop(0, None)
        for factor, one in sets.items():
            assert len(one) >= 2
            made.asked(member, one, factor)
            answers[tuple(one)] = answers.get(tuple(one), 0) + 1
    assert max(answers.values()) < T
    total = [sum(column) % P for column in zip(*made.rows, strict=True)]
    assert not any(total[: 32 * (T - 1)])
    assert len(set(made.secrets(total))) == 32


PLACE = re.compile(r"`([\w/]+\.(?:rs|py))`: ((?:`\w+`(?:, )?)+)")


def test_every_place_that_the_page_names_is_in_the_code() -> None:
    found = 0
    for line in PAGE.splitlines():
        for file, names in PLACE.findall(line):
            folder = "crates/fedcipher-core/src" if file.endswith(".rs") else "python/fedcipher"
            path = ROOT / ("tools" if file.startswith("prove") else folder) / file
            if "TODO-CHECK" in line and not path.exists():
                continue
            text = path.read_text(encoding="utf-8")
            for name in re.findall(r"\w+", names):
                assert re.search(rf"\b(?:fn|const|def|class|struct|enum) {name}\b", text), f"{file} has no {name}"
                found += 1
    assert found > 60


def test_every_test_that_the_page_names_exists() -> None:
    named = set(NAME.findall(PAGE))
    assert len(named) > 50
    assert named - known() == set()


def test_no_sentence_of_the_page_is_longer_than_thirty_five_words() -> None:
    text = re.sub(r"```.*?```|<!-- maude -->.*?<!-- /maude -->", "", PAGE, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=[|#*]|\d+\. )", text):
        for cell in paragraph.split(" | "):
            for sentence in re.split(r"(?<=[.:])\s+", " ".join(cell.split())):
                words = [word for word in sentence.split() if re.search(r"\w", word)]
                assert len(words) <= 35, sentence
