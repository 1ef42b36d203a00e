from contrail.replication.state.founding import Adopt, Found, Wait, plan_founding

PEERS = ["n0", "n1", "n2"]


def test_the_first_peer_founds_once_every_other_one_said_that_it_has_no_group() -> None:
    step = plan_founding("n0", PEERS, {"n1": "", "n2": ""}, is_log_empty=True)
    assert step == Found()


def test_a_peer_that_was_not_heard_may_have_a_group_and_is_waited_for() -> None:
    step = plan_founding("n0", PEERS, {"n1": ""}, is_log_empty=True)
    assert step == Wait("the group is founded once n2 can be reached")


def test_a_wiped_first_peer_adopts_the_group_of_the_others() -> None:
    step = plan_founding("n0", PEERS, {"n1": "g", "n2": ""}, is_log_empty=True)
    assert step == Adopt("g")


def test_nobody_but_the_first_peer_founds_by_itself() -> None:
    step = plan_founding("n1", PEERS, {"n0": "", "n2": ""}, is_log_empty=True)
    assert isinstance(step, Wait) and step.why.startswith("n0 founds")


def test_a_log_with_messages_neither_founds_nor_joins_by_itself() -> None:
    for groups in ({"n1": "", "n2": ""}, {"n1": "g", "n2": "g"}):
        step = plan_founding("n0", PEERS, groups, is_log_empty=False)
        assert isinstance(step, Wait) and "empty folder" in step.why


def test_peers_of_two_groups_are_a_question_for_an_operator() -> None:
    step = plan_founding("n0", PEERS, {"n1": "g", "n2": "h"}, is_log_empty=True)
    assert step == Wait("the peers belong to different groups: g, h")


def test_a_group_of_one_founds_at_once() -> None:
    assert plan_founding("n0", ["n0"], {}, is_log_empty=True) == Found()
