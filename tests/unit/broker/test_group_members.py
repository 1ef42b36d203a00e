import pytest

from contrail.broker.group_members import MEMBERS_MAX, read_group_members
from contrail.errors import ConfigError

PEERS = "n0-127.0.0.1:40911;n1-host.example:40912; n2-[::1]:40913 ;"


def test_members_are_read_as_apache_writes_them() -> None:
    found = read_group_members(PEERS, "n2", preferred="n0")
    assert found.addresses == {
        "n0": "127.0.0.1:40911",
        "n1": "host.example:40912",
        "n2": "[::1]:40913",
    }
    assert (found.port, found.broker_id, found.preferred) == (40913, 3, "n0")


@pytest.mark.parametrize(
    ("peers", "self_id", "preferred", "text"),
    [
        ("", "n0", "", "dLegerPeers names nobody"),
        (PEERS, "", "", "dLegerSelfId=(nothing)"),
        (PEERS, "n7", "", "names n0, n1, n2"),
        (PEERS, "n0", "n7", "preferredLeaderId=n7"),
        ("n0:127.0.0.1:1", "n0", "", "is no member"),
        ("a-127.0.0.1:1", "a", "", "is no member"),
        ("n0-127.0.0.1", "n0", "", "is no host:port"),
        ("n0-a:1;n0-b:1", "n0", "", "stands there twice"),
        ("n0-a:1;n1-a:1", "n0", "", "stands there twice"),
        (";".join(f"n{n}-a:{n + 1}" for n in range(MEMBERS_MAX + 1)), "n0", "", "at most"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(
    peers: str, self_id: str, preferred: str, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_group_members(peers, self_id, preferred=preferred)
    assert text in str(caught.value)
