"""Faults against the sink over a real broker, again and again, from a seed.

    python -m tests.kafka.campaign --kills 300 --seed 1

A round is one query into a topic of its own. It is started over some micro-batches, with faults
armed at named points, a process killed or frozen, the broker killed, or a commit
lost, cut off or late; it is started again until they are done, and then over the next ones, with
another number of tasks. A reader of committed records watches all the time. At the end of the round
each fault must have fired, and each record must be there once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dedup.testing import faults
from tests.faults.subject import stands_still
from tests.kafka import campaign_results
from tests.kafka.broker import Broker, connector_jars, free_port
from tests.kafka.campaign_plan import PROXY, RANDOM_KILLS, Round, Start, rounds
from tests.kafka.campaign_results import Result
from tests.kafka.campaign_subject import Command, SinkSubject
from tests.kafka.proxy import Api, Fault, Harm, Proxy, commits
from tests.kafka.records import make_topic, read_topic
from tests.kafka.watching import watched

#: Records of a micro-batch.
ROWS = 40
_START_TIMEOUT_S = 150.0
_POLL_S = 0.03
#: Starts without faults of their own, in which visits go by that armed faults wait for.
_MOST_EXTRA = 6
#: What a query may never be refused with: these are refusals of what no fault has done.
_NEVER = ("gives other rows", "divided into", "older than the sink", "Markers of this sink")


class Defect(AssertionError):
    """Something went wrong that no fault accounts for."""


class Campaign:
    """A broker, a proxy before it, and a session whose processes are killed.

    Parameters
    ----------
    work : Path
        Folder for all of it.
    broker : Broker
    proxy : Proxy
        Before the broker.
    """

    def __init__(self, work: Path, broker: Broker, proxy: Proxy) -> None:
        self._work, self._broker, self._proxy = work, broker, proxy
        self._subject = SinkSubject(work, connector_jars())
        self._number = 0

    def run(self, planned: Round) -> Result:
        """Run a round and judge it."""
        result = Result(planned.seed, planned.number, planned.mode)
        began_s = time.monotonic()
        name = f"round-{planned.seed}-{planned.number}"
        topic = make_topic(self._broker.address, name, 3)
        folder = self._work / name
        (folder / "input").mkdir(parents=True)
        self._clear_faults()
        written = 0
        with watched(self._broker.address, topic) as seen:
            for start in planned.starts:
                written = self._start(planned, start, folder, written, result)
            while self._armed() and result.extra < _MOST_EXTRA:
                result.extra += 1
                calm = Start(4, planned.starts[0].batches, (), "", 0.0, 0)
                written = self._start(planned, calm, folder, written, result)
            found = Counter(int(r.key or b"-1") for r in read_topic(self._broker.address, topic))
        expected = Counter(range(written))
        result.records = written
        result.lost = (expected - found).total()
        result.duplicated = (found - expected).total()
        result.seen_twice = sum(n > 1 for n in seen.values())
        result.seconds = time.monotonic() - began_s
        return result

    def close(self) -> None:
        """Kill all processes."""
        if self._subject.process is not None:
            self._subject.kill_all()

    def _start(
        self, planned: Round, start: Start, folder: Path, written: int, result: Result
    ) -> int:
        """Start the query over new micro-batches; return how many records there are by then."""
        number = written // ROWS
        for batch in range(number, number + start.batches):
            keys = [b"%d" % n for n in range(ROWS * batch, ROWS * (batch + 1))]
            table = pa.table({"key": keys, "value": [b"v" + key for key in keys]})
            pq.write_table(table, folder / "input" / f"{batch:06d}.parquet")
        for kill in start.kills:
            self._arm(kill.point, kill.kind, kill.after)
            result.armed[kill.point, kill.kind] += 1
        servers = self._broker.address
        if start.besides in PROXY:
            servers = self._proxy.address
        command = Command(str(folder), folder.name, servers, planned.mode, start.tasks)
        before = self._fired()
        with self._besides(start, result) as strike:
            result.failures += self._drive(command, strike, result)
        for place in (self._fired() - before).elements():
            result.fired[place] += 1
        self._wake(result)
        return written + ROWS * start.batches

    def _drive(self, command: Command, strike: Callable[[], None], result: Result) -> list[str]:
        """Let the session run the query to its end, in one session after another if it must."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        if self._subject.process is None:
            self._subject.start()
        self._subject.send(command)
        while time.monotonic() < deadline_s:
            try:
                if (failures := self._subject.answer(_POLL_S)) is not None:
                    for failure in failures:
                        if any(text in failure for text in _NEVER):
                            raise Defect(failure)
                    return failures
            except EOFError:
                self._subject.kill_all()
                log = self._subject.log(self._subject.starts - 1).read_text(errors="replace")
                if "AssertionError" in log:
                    raise Defect(log[-4000:]) from None
                result.sessions += 1
                self._subject.start()
                self._subject.send(command)
            strike()
        raise Defect(f"{command} does not end")

    @contextmanager
    def _besides(self, start: Start, result: Result) -> Iterator[Callable[[], None]]:
        """Gives what is to be called again and again while the query runs."""
        due_s = time.monotonic() + start.at_s
        waiting = [start.besides]

        def once(act: Callable[[], bool]) -> None:
            if waiting and time.monotonic() > due_s and act():
                waiting.clear()
                result.random[start.besides] += 1

        def restart() -> bool:
            self._broker.restart()
            return True

        if start.besides in RANDOM_KILLS:
            yield lambda: once(lambda: self._subject.kill(start.besides, start.choice))
        elif start.besides == "broker":
            yield lambda: once(restart)
        elif start.besides in PROXY:
            harm = Harm[start.besides.upper()]
            fault = self._proxy.arm(Api.END_TXN, harm, where=commits)
            result.armed["EndTxn", start.besides] += 1
            yield lambda: None
            self._ended(fault, start.besides, result)
        else:
            yield lambda: None

    def _ended(self, fault: Fault, kind: str, result: Result) -> None:
        if fault.fired.is_set():
            result.fired["EndTxn", kind] += 1
            if fault.harm is Harm.HOLD:  # micro-batches have been committed since
                fault.release()
        self._proxy.disarm()

    def _wake(self, result: Result) -> None:
        """Let go on what stands still, once its successor has won."""
        for pid in self._standing():
            os.kill(pid, signal.SIGCONT)
            result.woken += 1
        if result.woken:
            time.sleep(0.3)

    def _standing(self) -> list[int]:
        found = faults.fired(self._subject.faults)
        return [pid for _, kind, pid in found if kind == "freeze" and stands_still(pid)]

    def _fired(self) -> Counter[tuple[str, str]]:
        return Counter((p, kind) for p, kind, _ in faults.fired(self._subject.faults))

    def _armed(self) -> list[str]:
        return [p.name for p in self._subject.faults.iterdir() if not p.name.startswith("fired~")]

    def _arm(self, point: str, kind: str, after: int) -> None:
        """Arm a fault behind those that are armed there."""
        names = (p.name.removeprefix("fired~") for p in self._subject.faults.iterdir())
        used = [int(name.split("~")[1]) for name in names if name.split("~")[0] == point]
        number = max(used, default=-1) + 1
        for skipped in range(after):
            faults.arm(self._subject.faults, point, "skip", number + skipped)
        faults.arm(self._subject.faults, point, kind, number + after)

    def _clear_faults(self) -> None:
        self._subject.faults.mkdir(parents=True, exist_ok=True)
        for path in self._subject.faults.iterdir():
            path.unlink()


@contextmanager
def running_campaign(work: Path) -> Iterator[Campaign]:
    """Start a broker and a proxy; gives what runs rounds over them."""
    port = free_port()
    (work / "broker").mkdir()
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(work / "broker", proxy_port=port))
        proxy = stack.enter_context(Proxy(port, to_port=broker.behind_proxy or 0))
        campaign = Campaign(work, broker, proxy)
        stack.callback(campaign.close)
        yield campaign


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--kills", type=int, default=300, help="stop after so many")
    options.add_argument("--minutes", type=float, default=1e9, help="or after so long")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--keep", type=Path, default=campaign_results.FILE)
    arguments = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started goes with this process
    work = Path(tempfile.mkdtemp(prefix="dedup-kafka-campaign-"))
    end_s = time.monotonic() + 60 * arguments.minutes
    results: list[Result] = []
    with running_campaign(work) as campaign:
        for planned in rounds(arguments.seed):
            result = campaign.run(planned)
            results.append(result)
            print(result.line, flush=True)
            campaign_results.add(result, arguments.keep)
            killed = sum(result.kills for result in results)
            if not result.fine or killed >= arguments.kills or time.monotonic() > end_s:
                break
    fine = all(result.fine for result in results)
    if fine:
        shutil.rmtree(work, ignore_errors=True)
    else:
        print(f"Logs are in {work}.")
    print(campaign_results.table(campaign_results.load(arguments.keep)))
    return int(not fine)


if __name__ == "__main__":
    raise SystemExit(main())
