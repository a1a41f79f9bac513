"""Training reports of devices, as nodes of the graph of a run and as answers."""

from __future__ import annotations

from collections.abc import Sequence

from edgesim.core.backend import Reports, Result
from edgesim.core.job import Job
from edgesim.core.learner import NO_REPORTS, Answer, Ready
from edgesim.execution.graph import Graph, Node
from edgesim.execution.memo import Memo
from edgesim.execution.pending import Pending
from edgesim.execution.pending_answer import PendingAnswer


class ReportNodes:
    """The reports that were asked for. A checkpoint holds all of them for the run that continues."""

    def __init__(self, graph: Graph, memo: Memo) -> None:
        self._graph = graph
        self._memo = memo
        self._outstanding: list[PendingAnswer[Reports]] = []  # answers that `get` has not returned yet

    def node(self, jobs: Sequence[Job], pending: Pending) -> Node:
        """Return the node of the reports of jobs whose training has nodes."""
        results = [pending.result(job) for job in jobs]
        devices = [job.device for job in jobs]

        def make(*results: Result) -> Reports:
            found = zip(devices, (result.report for result in results), strict=True)
            return Reports.of({device: report for device, report in found if report is not None})

        id_ = self._memo.name("reports", [node.id for node in results])
        return self._graph.computed(id_, make, *results)

    def ask(self, node: Node | None, round_: int, ahead: int) -> Answer[Reports]:
        """Return the answer with a node's reports, none without a node; computed at once if `ahead` is 0."""
        if node is None:
            return Ready(NO_REPORTS)
        known = self._memo.look_up(node.id)
        if known is None:
            self._graph.want([node])
            self._graph.go_on()
        asked: PendingAnswer[Reports] = PendingAnswer(self._graph, self._memo, node.id, round_, known, node)
        if not ahead:
            asked.get()
        self._outstanding = [each for each in (*self._outstanding, asked) if not each.is_got]
        return asked

    def get_all(self) -> None:
        """Wait for all outstanding reports."""
        for asked in self._outstanding:
            asked.get()
        self._outstanding = []
