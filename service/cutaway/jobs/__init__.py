"""Batch explainability jobs: a data set in, a table of explanations out.

from cutaway.jobs import Job, read, report, run

run(Job.load(Path("job.yaml")))
read(Path("explained"))["attribution:saliency:image"]  # [rows, ...]
report(Path("explained"))                     # one page of HTML
compare("explained", "explained-anew").alarm  # whether the other results have drifted
"""

from __future__ import annotations

from cutaway.jobs.drift import Drift, compare
from cutaway.jobs.reading import Results, read
from cutaway.jobs.report import write_report as report
from cutaway.jobs.running import Plan, Summary, Watcher, plan, run
from cutaway.jobs.spec import Job

__all__ = ["Drift", "Job", "Plan", "Results", "Summary", "Watcher", "compare", "plan", "read", "report", "run"]
