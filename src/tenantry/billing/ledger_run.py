"""Long work on ledgers, part by part: replay, reprocessing, backfill and reconciliation."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tenantry.domain.errors import DomainError

Part = TypeVar("Part")
Done = TypeVar("Done")
_Part_contra = TypeVar("_Part_contra", contravariant=True)
_Done_co = TypeVar("_Done_co", covariant=True)


class Act(Protocol[_Part_contra, _Done_co]):
    """Works on one part of a run, and returns what it did, or with ``dry_run`` what it would do."""

    def __call__(self, part: _Part_contra, /, *, dry_run: bool) -> Awaitable[_Done_co]: ...


@dataclass(eq=False)
class LedgerRun(Generic[Part, Done]):
    """Takes the parts of ``source``, which are events or tenants, in their order, and acts on each.

    What was done stays when a run ends early, and another one can continue after ``reached``, the
    last part that was done. A source that keeps itself where it continues is asked for the next
    part only once the last one is done.
    """

    source: AsyncGenerator[Part, None]
    act: Act[Part, Done]
    dry_run: bool
    reached: Part | None = field(default=None, init=False)
    interrupted: bool = field(default=False, init=False)
    """Whether the observer of `finish` has ended it."""
    stopped: DomainError | None = field(default=None, init=False)
    """The error that has ended `finish`."""

    async def results(self) -> AsyncGenerator[Done, None]:
        """Do the work, and yield the result of each part. Raises the errors of source and act."""
        async with aclosing(self.source) as parts:
            async for part in parts:
                done = await self.act(part, dry_run=self.dry_run)
                self.reached = part
                yield done

    async def finish(self, observe: Callable[[Done], bool | None]) -> None:
        """Do the work, and pass each result to ``observe``; end after a part if that returns True,
        or at a `DomainError`.
        """
        try:
            async with aclosing(self.results()) as results:
                async for done in results:
                    if observe(done):
                        self.interrupted = True
                        return
        except DomainError as error:
            self.stopped = error
