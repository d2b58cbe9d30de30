"""Where an iteration begins: the one rule of ``set_epoch``, ``load_state_dict`` and iterating again.

- After ``load_state_dict`` the next iteration goes on where the state was taken.
- ``set_epoch`` of the epoch that comes next anyway changes nothing, so a training loop may call it at the head of
  each epoch, of a resumed one too. Any other epoch begins at its front.
- The first batch uses the place up: the next iteration of the same epoch begins at its front.

On four ranks with batches of four, 43 samples::

    load_state_dict({"epoch": 2, "consumed": 16})
    set_epoch(2)    27 samples are left            set_epoch(3)    all 43
    set_epoch(2)    once a batch was taken: all 43
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from shardlab.config import Tail
from shardlab.errors import UsageError

T = TypeVar("T")
TAIL_NUMBERS: dict[Tail, int] = {"pad": 0, "drop": 1, "keep": 2}
"""Tails as a state has them, which is made of integers."""


class Place(NamedTuple):
    """``start`` positions of the epoch's order are consumed, and ``drawn`` indices of a rank's next batch."""

    epoch: int = 0
    start: int = 0
    drawn: int = 0


class Running(Protocol):
    """An iteration that has begun."""

    @property
    def begin(self) -> Place:
        """Where it began."""

    @property
    def is_through(self) -> bool:
        """Whether it has no more."""

    def place(self) -> Place:
        """Where it is."""


class Bookmark:
    """The place of a loader or sampler: where it is and where its next iteration begins, by the rule above."""

    def __init__(self) -> None:
        self.next = Place()
        self.running: Running | None = None  # the iteration that began last
        self._left: Place | None = None  # where that one was when an epoch was chosen
        self._over: Place | None = None  # the end of an epoch that a loaded state says is over

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that comes next."""
        self._left = self.running.place() if self.running else None
        if self._over is not None and epoch == self._over.epoch:
            self.next = self._over
        elif epoch != self.next.epoch:
            self.next = Place(epoch)

    def load(self, place: Place) -> None:
        """Go on there."""
        self.next, self.running, self._over = place, None, None

    def load_over(self, end: Place) -> None:
        """Go on with the epoch after the one that ends there; nothing is left of that one if it is chosen."""
        self.load(Place(end.epoch + 1))
        self._over = end

    def begin(self, running: Running) -> None:
        """An iteration is asked for its first batch: the place is used up."""
        self.running, self._left, self._over = running, None, None
        self.next = Place(running.begin.epoch)

    def place(self) -> Place:
        """Where the iteration that gave the last batch is; where the next one begins, once that is chosen."""
        going_on = self._going_on()
        return self.next if going_on is None else going_on.place()

    def begin_of_place(self) -> Place:
        """Where the iteration that ``place`` is of began, or begins."""
        going_on = self._going_on()
        return self.next if going_on is None else going_on.begin

    def ahead(self) -> Place:
        """Where the iteration that is under way began; where the next one begins, if there is none."""
        going_on = self._going_on()
        return self.next if going_on is None or going_on.is_through else going_on.begin

    def _going_on(self) -> Running | None:
        """The iteration that began last, unless an epoch was chosen and it gave nothing since."""
        return None if self.running is None or self.running.place() == self._left else self.running


@dataclass
class Progress:
    """How far an iteration is, in steps.

    ``consumed`` says how many positions are dealt with after so many steps; ``whole``, how many are when it is
    through, None where it stops before that.
    """

    begin: Place
    consumed: Callable[[int], int]
    whole: int | None = None
    step: int = 0
    is_through: bool = False

    def place(self) -> Place:
        """The same on all ranks after the same step, those that end early included."""
        if self.is_through and self.whole is not None:
            return Place(self.begin.epoch, self.whole)
        return Place(self.begin.epoch, self.consumed(self.step))


class Followed(Generic[T]):
    """Batches as they come; the bookmark learns of each.

    No generator: its frame would keep each batch alive until the next one is there. The bookmark is given the
    progress and not this object, which would keep workers alive after the loop has dropped it.
    """

    def __init__(self, batches: Iterator[T], bookmark: Bookmark, progress: Progress) -> None:
        self._batches, self._bookmark, self._progress = batches, bookmark, progress
        self._begun = False

    def __iter__(self) -> Followed[T]:
        return self

    def __next__(self) -> T:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._progress.is_through = True
            self._begin()
            raise
        self._progress.step += 1
        self._begin()
        return batch

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._bookmark.begin(self._progress)


def refuse_another(
    state: Mapping[str, int],
    own: Mapping[str, int],
    fixed: Collection[str],
    needs: Collection[str] = ("epoch", "consumed"),
) -> None:
    """Raise UsageError for a state that cannot be loaded: of another kind, of another order, outside the epoch.

    ``own`` is a state of the loader that is to load it, ``fixed`` names what has to be the same in both. What
    an older state does not say is not compared, ``needs`` apart.
    """
    strange = [name for name in state if name not in own or type(state[name]) is not int]
    lacking = [name for name in needs if name not in state]
    if strange or lacking:
        raise UsageError(
            f"a state that is loaded here must be made of the integers {', '.join(own)}",
            dict(state),
            cure="load what state_dict() of the same kind of loader or sampler gave",
        )
    for name in fixed:
        if state.get(name, own[name]) != own[name]:
            values = _said(name, state[name]), [_said(name, own[name])]
            raise UsageError(f"the {name} of the state must be that of the run", *values)
    if not 0 <= state["consumed"] <= own["samples"]:
        raise UsageError(f"consumed must lie in [0, {own['samples']}]", state["consumed"])


def _said(name: str, value: int) -> int | str:
    """A value as the user gave it."""
    tails: dict[int, Tail] = {number: tail for tail, number in TAIL_NUMBERS.items()}
    return tails.get(value, value) if name == "tail" else value
