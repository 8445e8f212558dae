"""What a cluster is, read through the backend."""


def test_a_cluster_is_read_and_its_check_is_whole(backend, namespace):
    assert backend.check().ok, str(backend.check())
    site = backend.discover()
    assert site.facts["namespace"] == namespace
    assert site.unseen == ()
    assert sum(pool.nodes_total for pool in site.pools) >= 2
