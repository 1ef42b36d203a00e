from contrail.replication.state.member_names import member_name, self_id_of


def test_a_name_has_the_id_and_the_folder_and_gives_the_id_back() -> None:
    first, wiped = member_name("n1", "a1"), member_name("n1", "b2")
    assert first != wiped
    assert self_id_of(first) == self_id_of(wiped) == "n1"
