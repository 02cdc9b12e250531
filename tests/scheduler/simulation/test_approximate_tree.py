from scheduler.simulation.approximate_tree import ApproximateTree
from tests.scheduler.simulation.test_contents import chain

SHORT = chain((1, 100))
LONG = chain((1, 100), (2, 50))


def test_it_knows_what_was_sent_where() -> None:
    tree = ApproximateTree()
    tree.insert(LONG, 0, 1.0)
    tree.insert(SHORT, 2, 2.0)

    assert tree.matches(chain((1, 100), (2, 50), (3, 9)), 3, 3.0) == [150, 0, 100]
    assert tree.matches(chain((9, 9)), 3, 3.0) == [0, 0, 0]


def test_the_deepest_match_goes_to_who_got_it_last() -> None:
    tree = ApproximateTree()
    tree.insert(LONG, 0, 1.0)
    tree.insert(SHORT, 1, 2.0)

    assert tree.deepest(LONG) == (150, 0)
    assert tree.deepest(chain((1, 100), (7, 7))) == (100, 1)
    assert tree.deepest(chain((9, 9))) == (0, None)


def test_what_nobody_used_is_forgotten() -> None:
    tree = ApproximateTree(10.0)
    tree.insert(LONG, 0, 0.0)

    assert tree.matches(LONG, 1, 10.0) == [150]
    assert tree.matches(LONG, 1, 10.1) == [0]
