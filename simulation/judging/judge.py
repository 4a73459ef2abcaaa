"""The judge: checks every promise, from the rows that went in and what came out. It shares no code with the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulation.history import History
from simulation.judging.hold_judge import Account, HoldJudge
from simulation.judging.learn_judge import LearnJudge
from simulation.judging.topic_judge import TopicJudge


@dataclass(frozen=True)
class Saved:
    """The judge's knowledge at a checkpoint."""

    accounts: dict[tuple[Any, Any], Account]
    released: dict[int, str]
    refused: set[int]
    kept: int
    dealt: dict[Any, bytes]


class Judge:
    """Judges one history. What a runner takes back is taken back here, too; what reached a topic never is."""

    def __init__(self, history: History) -> None:
        self.hold = HoldJudge(history.rows)
        self.learn = LearnJudge()
        self.topics = TopicJudge(history.rows)

    def save(self) -> Saved:
        """What to go back to when a checkpoint is restored."""
        accounts = {address: account.copy() for address, account in self.hold.accounts.items()}
        return Saved(
            accounts, dict(self.hold.released), set(self.hold.refused), self.topics.kept, dict(self.learn.chains)
        )

    def completed(self, saved: Saved) -> None:
        """Note that a checkpoint is complete."""
        self.topics.completed(saved.kept)

    def restore(self, saved: Saved) -> None:
        """Go back to a checkpoint."""
        self.hold.accounts = {address: account.copy() for address, account in saved.accounts.items()}
        self.hold.released = dict(saved.released)
        self.hold.refused = set(saved.refused)
        self.topics.restore(saved.kept)
        self.learn.chains = dict(saved.dealt)

    def finish(self) -> None:
        """Judge the whole: every row left once, and what left HOLD is what reached the topics."""
        self.topics.finish(self.hold.released, self.hold.refused)
