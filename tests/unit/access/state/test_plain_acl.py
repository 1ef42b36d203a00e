"""``plain_acl.yml``: accounts of ACL 1.0 as users and rights; nothing is guessed."""

from __future__ import annotations

import pytest

from contrail.access.state.plain_acl import PlainAclInvalid, read_plain_acl
from contrail.access.state.rights import PolicyType
from contrail.access.state.users import UserType

FILE = """\
# As it comes with RocketMQ 4.9.
globalWhiteRemoteAddresses:
- 10.10.103.*
  # a comment
- 192.168.0.*

accounts:
- accessKey: RocketMQ
  secretKey: "12345678"
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB   # readers
  groupPerms:
    # the group should convert to retry topic
    - groupA=DENY
    - groupB=PUB|SUB

- accessKey: rocketmq2
  secretKey: 'a: secret'
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
"""


def test_the_file_of_rocketmq_becomes_users_and_rights() -> None:
    found = read_plain_acl(FILE)
    first, second = found.accounts
    assert (first.name, first.password, first.kind) == ("RocketMQ", "12345678", UserType.NORMAL)
    shown = {
        kind: [(str(one.resource), one.decision.value, sorted(a.value for a in one.actions))]
        for kind, rows in first.policies.items()
        for one in rows[:1]
    }
    assert shown == {
        PolicyType.DEFAULT: [("Topic:*", "Deny", ["All"])],
        PolicyType.CUSTOM: [("Topic:topicA", "Deny", ["All"])],
    }
    custom = [str(one.resource) for one in first.policies[PolicyType.CUSTOM]]
    assert custom == [
        "Topic:topicA",
        "Topic:topicB",
        "Topic:topicC",
        "Group:groupA",
        "Group:groupB",
    ]
    assert (second.name, second.password) == ("rocketmq2", "a: secret")
    assert second.kind is UserType.SUPER and second.policies == {}
    assert found.white_addresses == ["10.10.103.*", "192.168.0.*", "192.168.1.*"]


ACCOUNT = "accounts:\n- accessKey: user\n  secretKey: secret\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (ACCOUNT + "  topicPerms:\n  - topicA=ANY\n", "every right"),
        (ACCOUNT + "  topicPerms:\n  - topicA\n", "every right"),
        (ACCOUNT + "  topicPerms:\n  - =SUB\n", "names its topic"),
        (ACCOUNT + "  defaultTopicPerm: pubsub\n", "every right"),
        (ACCOUNT + "  topicPerms: [topicA=SUB]\n", "plain values"),
        (ACCOUNT + "  admin: yes\n", "true or false"),
        (ACCOUNT + "  rights: all\n", "not known"),
        (ACCOUNT + "  secretKey: again\n", "twice"),
        (ACCOUNT + "\tadmin: true\n", "tab"),
        (ACCOUNT + "  - lonely\n", "no list"),
        (ACCOUNT + "- accessKey: user\n  secretKey: other\n", "same accessKey"),
        ("accounts:\n- accessKey: user\n", "needs accessKey and secretKey"),
        ("accounts:\n- secretKey: &anchor x\n", "plain values"),
        ("accounts:\n  admin: true\n", "begins with"),
        ("accounts: {}\n", "plain values"),
        ("users:\n", "no part"),
        ("just text\n", "neither"),
        ("globalWhiteRemoteAddresses:\n- a: b\n", "address"),
    ],
)
def test_everything_else_is_refused_by_its_line(text: str, told: str) -> None:
    with pytest.raises(PlainAclInvalid, match=told):
        read_plain_acl(text)


def test_an_empty_file_has_no_accounts() -> None:
    assert read_plain_acl("# nothing\n").accounts == []
