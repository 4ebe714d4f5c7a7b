"""The balance of connections between server processes."""

from tenantry.server.connection_balance import NOT_ACCEPTING, SECONDS_AHEAD, ConnectionBalance


class Process:
    """A process with this number of connections, among others."""

    def __init__(self, connections: int, *others: int) -> None:
        self.connections = connections
        self.counts = [0, *others]
        self.balance = ConnectionBalance(self.counts, 0, lambda: self.connections)
        self.now = 1000.0

    def surplus_after(self, seconds: float) -> int:
        self.now += seconds
        return self.balance.surplus(self.now)

    def surpluses(self, seconds: int) -> list[int]:
        """Return the surplus now and after each of so many seconds."""
        return [self.surplus_after(0), *(self.surplus_after(1) for _ in range(seconds))]


def test_process_is_ahead_of_one_with_fewer_connections() -> None:
    assert [Process(3, other, 5).balance.is_ahead(0) for other in (2, 3, 4)] == [True, False, False]


def test_new_connections_count() -> None:
    assert Process(3, 3).balance.is_ahead(1)


def test_process_that_does_not_accept_counts_for_nothing() -> None:
    process = Process(30, NOT_ACCEPTING)
    assert not process.balance.is_ahead(0)
    assert set(process.surpluses(2 * SECONDS_AHEAD)) == {0}


def test_others_see_the_number() -> None:
    process = Process(3, 9)
    process.balance.is_ahead(1)
    assert process.counts == [4, 9]
    process.surplus_after(0)
    assert process.counts == [3, 9]
    process.balance.leave()
    assert process.counts == [NOT_ACCEPTING, 9]


def test_surplus_is_what_exceeds_the_mean_after_some_seconds() -> None:
    assert Process(64, 0).surpluses(SECONDS_AHEAD + 1) == [0] * SECONDS_AHEAD + [32, 32]
    assert Process(40, 20, 30).surpluses(SECONDS_AHEAD)[-1] == 10


def test_seconds_are_those_of_the_clock_however_seldom_a_busy_process_looks() -> None:
    process = Process(64, 0)
    assert [process.surplus_after(0), process.surplus_after(SECONDS_AHEAD)] == [0, 32]


def test_small_difference_is_no_surplus() -> None:
    for own, other in ((2, 1), (33, 31), (110, 90)):
        assert set(Process(own, other).surpluses(SECONDS_AHEAD)) == {0}, own


def test_surplus_ends_once_enough_are_closed() -> None:
    process = Process(64, 0)
    process.surpluses(SECONDS_AHEAD)
    process.connections, process.counts[1] = 40, 24
    assert process.surplus_after(1) == 8
    process.connections, process.counts[1] = 32, 32
    assert process.surplus_after(1) == 0


def test_surplus_that_goes_by_itself_is_not_closed() -> None:
    process = Process(64, 0)
    process.surpluses(SECONDS_AHEAD - 2)
    process.connections = 1
    assert process.surplus_after(1) == 0
    process.connections = 64
    assert set(process.surpluses(SECONDS_AHEAD - 1)) == {0}
