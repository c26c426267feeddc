"""A few seeded faults of the campaign; `make faults-kafka` does many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest

from tests.kafka.broker import Broker
from tests.kafka.campaign import Campaign
from tests.kafka.campaign_plan import Kill, Round, Start, rounds
from tests.kafka.proxy import Proxy

#: So many commits of the first micro-batch go by, which are the driver's.
_WARM = 4


@pytest.fixture(scope="module")
def campaign(
    proxy_and_broker: tuple[Proxy, Broker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Campaign]:
    proxy, broker = proxy_and_broker
    made = Campaign(tmp_path_factory.mktemp("campaign"), broker, proxy)
    yield made
    made.close()
    proxy.disarm()


@pytest.mark.slow
def test_workers_are_killed_and_a_commit_is_lost(campaign: Campaign) -> None:
    """At steps of tasks that publish by themselves, from the second micro-batch on."""
    kills = tuple(Kill(point, _WARM) for point in ("kafka.marker.after", "kafka.commit.after"))
    start = Start(2, 3, kills, "lose_reply", 0.0, 0)
    result = campaign.run(Round(0, 0, "exactly-once", (start,)))
    assert result.fine, result.line
    assert result.fired == Counter({
        ("kafka.marker.after", "kill"): 1, ("kafka.commit.after", "kill"): 1,
        ("EndTxn", "lose_reply"): 1,
    })  # fmt: skip


@pytest.mark.slow
def test_a_frozen_worker_goes_on_when_its_successor_has_won(campaign: Campaign) -> None:
    frozen = (Kill("kafka.commit.before", _WARM + 3, "freeze"),)
    starts = (Start(2, 1, (), "", 0.0, 0), Start(3, 2, frozen, "freeze", 0.0, 0))
    result = campaign.run(Round(0, 2, "exactly-once", starts))
    assert result.fine, result.line
    assert result.woken == 1


@pytest.mark.slow
def test_a_whole_micro_batch_is_interrupted(campaign: Campaign) -> None:
    kills = (Kill("kafka.manifest.after", 0), Kill("kafka.driver.published", 0))
    start = Start(2, 1, kills, "worker", 0.2, 0)
    result = campaign.run(Round(0, 1, "atomic", (start,)))
    assert result.fine, result.line
    assert result.fired.total() == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_kinds_of_faults(campaign: Campaign) -> None:
    for planned in islice(rounds(2), 6):
        result = campaign.run(planned)
        assert result.fine, result.line
