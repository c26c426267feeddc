"""`tune`: measure choices of options for a query's load on this machine, and recommend one."""

from __future__ import annotations

from collections.abc import Callable

from dedup.tools.tuning.advice import advise
from dedup.tools.tuning.candidates import explore
from dedup.tools.tuning.costs import measure
from dedup.tools.tuning.demand import check
from dedup.tools.tuning.options import TuneOptions, demand_of
from dedup.tools.tuning.report import Tuning

#: Called with the finished share of the work, from 0 to 1, and the current step.
Progress = Callable[[float, str], None]
#: Finished share of the work once the costs of this machine are measured.
_COSTS = 0.15


def tune(options: TuneOptions, progress: Progress = lambda done, what: None) -> Tuning:
    """Measure the cost of choices of filter sizing for a load, and recommend one.

    Parameters
    ----------
    options : TuneOptions
        The load, and the query's own options.
    progress : callable, optional
        Called with the finished share of the work, from 0 to 1, and the current step.

    Raises
    ------
    ConfigError
        If the load is not known or cannot be measured. The error names the option.
    DataError, CatalogError, StateError
        If a sample, a catalog or a checkpoint cannot be read.
    FilterDamaged
        If a filter lacks an ID that was added to it.
    """
    progress(0.0, "reading")
    demand = check(demand_of(options))
    keys = demand.keys_of()
    costs = measure(keys, lambda done: progress(done * _COSTS, "costs of this machine"))
    choice = explore(demand, costs, lambda done, what: progress(_COSTS + done * (1 - _COSTS), what))
    progress(1.0, "done")
    return Tuning(demand, choice, costs, advise(demand, choice))
