"""Server above edge servers: its session has the edge servers as devices, and rows for its orders and rounds."""

from __future__ import annotations

from collections.abc import Sequence

from edgesim.core.job import DELIVERED, Completion, Job, Outcome
from edgesim.engine.edges.tier import DOWN, UP, WORK, EdgeTier, Order
from edgesim.engine.rounds import Rounds, Tally
from edgesim.engine.session import Session
from edgesim.records.table import EdgeJobRow


class CloudSession(Session):
    """Session whose jobs are orders to edge servers."""

    held_in = "edges"
    world: EdgeTier  # type: ignore[assignment]

    def order_ended(self, job: Job, outcome: Outcome, order: Order) -> Completion:
        """Write the row of an order that has just ended; return its completion."""
        del self.running[job.id]
        self.world.reports[job.id] = order.report
        row = self.tables["edges"].append(self._order_row(job, outcome, order))
        if outcome in DELIVERED:
            self.server_buffer.add(job, row)
        return Completion(job, self.now_s, outcome, self.staleness(job), order.phase > WORK)

    def _order_row(self, job: Job, outcome: Outcome, order: Order) -> EdgeJobRow:
        report, seconds, moved = order.report, order.seconds, order.moved_bytes
        return EdgeJobRow(
            order=job.id,
            edge=job.device,
            round=job.round,
            base_version=job.base.version,
            sent_s=job.sent_s,
            down_s=seconds[DOWN],
            work_s=seconds[WORK],
            up_s=seconds[UP],
            link_wait_s=order.wait_s,
            end_s=self.now_s,
            outcome=outcome,
            rounds=report.rounds,
            asked=report.asked,
            used=report.used,
            late=report.late,
            samples=report.samples,
            server_s=report.server_s,
            down_bytes=int(moved[DOWN]),
            up_bytes=int(moved[UP]),
            link_j=order.link_j,
        )


class CloudRounds(Rounds):
    """Rounds of the server, whose rows count the jobs of devices that edge servers had in them."""

    session: CloudSession

    def _tally(self, completions: Sequence[Completion]) -> Tally:
        """Return how many jobs of devices ended for the orders of a round; of late orders none was merged."""
        reports = {each.job.id: self.session.world.reports.pop(each.job.id) for each in completions}
        used = [reports[each.job.id] for each in completions if each.outcome in DELIVERED]
        merged = sum(report.used for report in used)
        staleness = sum(report.staleness for report in used)
        return Tally(
            asked=sum(report.asked for report in reports.values()),
            used=merged,
            late=sum(report.late for report in reports.values()),
            staleness_mean=staleness / merged if merged else 0.0,
        )
