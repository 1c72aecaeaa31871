"""Who is who among nodes and clients."""

import pytest
from fedcipher import errors
from fedcipher.federation.records import ClientRecord, RoundRecord
from fedcipher.federation.server.node_map import NodeMap

NOBODY = frozenset()


def met(**known):
    parties = NodeMap()
    for node, client in known.items():
        parties.learn(int(node[1:]), client)
    return parties


def test_a_client_id_is_of_one_node_while_that_is_there():
    parties = met(n10=0, n11=1)
    parties.check(10, [0], NOBODY, lambda: {10, 11})
    with pytest.raises(errors.UnknownClientError, match="belongs to node 11"):
        parties.check(12, [1], NOBODY, lambda: {10, 11, 12})
    parties.check(12, [1], NOBODY, lambda: {10, 12})
    parties.learn(12, 1)
    assert parties.node_of == {0: 10, 1: 12} and parties.client_of == {10: 0, 12: 1}


def test_a_node_takes_a_second_client_id_only_for_one_that_was_revoked():
    parties = met(n10=0)
    with pytest.raises(errors.UnknownClientError, match="but is known as client 0"):
        parties.check(10, [5], NOBODY, lambda: {10})
    with pytest.raises(errors.RevokedError):
        parties.check(10, [0], {0}, lambda: {10})
    parties.check(10, [5], {0}, lambda: {10})
    parties.learn(10, 5)
    assert parties.node_of == {5: 10} and parties.client_of == {10: 5}


def test_what_another_process_has_learnt_is_learnt_again():
    """From verified updates only, the last of them; of whom was left out nothing is known."""
    first, second = RoundRecord(1), RoundRecord(2)
    first.clients = [ClientRecord(10, 0, {}), ClientRecord(11, 1, {}), ClientRecord(12, 2, {}, "SignatureError: no")]
    second.evaluations = [ClientRecord(13, 1, {}), ClientRecord(14, None, {}, "no answer")]
    parties = NodeMap()
    parties.remember([first, second])
    assert parties.node_of == {0: 10, 1: 13} and parties.client_of == {10: 0, 13: 1}
    with pytest.raises(errors.UnknownClientError, match="belongs to node 13"):
        parties.check(15, [1], NOBODY, lambda: {10, 13, 15})
