"""Lists that are kept up to date, on a server that breaks off, forgets, or permits less."""

import functools
import threading
import time

import pytest
from logserver import served

from gpufabric._pause import WaitingEnded, stoppable
from gpufabric.backends.kubernetes._gangwatch import GangWatch
from gpufabric.backends.kubernetes._streams import Loop
from gpufabric.backends.kubernetes._watch import Watch
from gpufabric.errors import CredentialsError, TransientError

PODS = "/api/v1/namespaces/ml/pods"


@pytest.fixture
def serving(tmp_path):
    return functools.partial(served, tmp_path)


@pytest.fixture
def loop():
    made = Loop()
    yield made
    made.close()
    assert not [t for t in threading.enumerate() if t.name == "gpufabric-watch"]


def until(loop, true):
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        for _ in loop.step(0.05):
            pass


class Seen:
    """A watch of pods, and how often it told of a change."""

    def __init__(self, loop, api):
        self.count = 0
        self.watch = Watch(loop, api, PODS, changed=self._note)

    def _note(self):
        self.count += 1

    def phase(self):
        return [pod["status"]["phase"] for pod in self.watch.objects.values()]


def watches(server):
    return [query for path, query in server.seen if path == PODS and query.get("watch")]


def lists(server):
    return [query for path, query in server.seen if path == PODS and not query.get("watch")]


def test_a_change_is_told_and_one_list_is_enough(serving, loop):
    with serving(ends=False) as (api, server):
        seen = Seen(loop, api)
        until(loop, lambda: seen.watch.watching)
        assert seen.phase() == ["Running"]
        server.finish()
        until(loop, lambda: seen.phase() == ["Succeeded"])
        server.remove()
        until(loop, lambda: seen.phase() == [])
        assert len(lists(server)) == 1


@pytest.mark.parametrize("how", ["cut", "ended"])
def test_a_watch_that_breaks_goes_on_from_the_last_version(serving, loop, how):
    with serving(ends=False) as (api, server):
        seen = Seen(loop, api)
        until(loop, lambda: seen.watch.watching)
        before = watches(server)[-1]["resourceVersion"]
        server.finish()
        until(loop, lambda: seen.phase() == ["Succeeded"])
        server.hang_up(how)
        until(loop, lambda: len(watches(server)) > 1)
        assert int(watches(server)[-1]["resourceVersion"]) > int(before)
        assert watches(server)[-1]["allowWatchBookmarks"] == "true"
        assert len(lists(server)) == 1


@pytest.mark.parametrize("watch", [410, "ERROR"])
def test_a_version_that_is_forgotten_is_listed_anew(serving, loop, watch):
    with serving(ends=False, watch=watch) as (api, server):
        seen = Seen(loop, api)
        until(loop, lambda: seen.watch.watching and len(lists(server)) == 2)
        server.finish()
        until(loop, lambda: seen.phase() == ["Succeeded"])


def test_what_is_no_event_is_asked_for_again(serving, loop):
    with serving(ends=False, watch="noise") as (api, server):
        seen = Seen(loop, api)
        until(loop, lambda: seen.watch.trouble is not None)
        assert "no event" in str(seen.watch.trouble)
        until(loop, lambda: seen.watch.watching and len(watches(server)) == 2)
        assert (seen.watch.trouble, seen.watch.error) == (None, None)
        server.finish()
        until(loop, lambda: seen.phase() == ["Succeeded"])


def test_without_the_right_to_watch_changes_are_listed(serving, loop):
    with serving(ends=False, watch=403) as (api, server):
        seen = Seen(loop, api)
        until(loop, lambda: seen.watch.synced)
        server.finish()
        until(loop, lambda: seen.phase() == ["Succeeded"])
        assert not seen.watch.watching
        assert len(watches(server)) == 1


def test_a_server_that_is_started_again_is_found_again(serving, loop):
    with serving(ends=False) as (api, server):
        seen = Seen(loop, api)
        until(loop, lambda: seen.watch.watching)
        port = server.server_address[1]
    until(loop, lambda: seen.watch.trouble is not None)
    assert isinstance(seen.watch.trouble, TransientError)
    assert seen.phase() == ["Running"]
    with serving(ends=False, port=port) as (_, server):
        until(loop, lambda: seen.watch.watching)
        assert seen.watch.trouble is None
        server.finish()
        until(loop, lambda: seen.phase() == ["Succeeded"])
        loop.stop()


def test_credentials_that_are_not_accepted_end_it(serving, loop):
    with serving(ends=False) as (api, server):
        seen = Seen(loop, api)
        until(loop, lambda: seen.watch.watching)
        server.refuse(401)
        until(loop, lambda: seen.watch.error is not None)
        assert isinstance(seen.watch.error, CredentialsError)


def test_a_gang_is_known_by_its_owner_and_its_pods(serving, loop):
    with serving(ends=False) as (api, server):
        gang = GangWatch(loop, api, "ml", "j", jobsets=False, changed=lambda: None)
        until(loop, lambda: gang.synced)
        assert gang.found().kind == "Job"
        assert [pod["metadata"]["name"] for pod in gang.pods()] == ["p-0"]
        server.remove()
        until(loop, lambda: gang.found() is None and not gang.pods())


def test_who_waits_can_be_ended_by_another_thread(serving):
    with serving(ends=False) as (api, _):
        ended, stop, begun = threading.Event(), threading.Event(), threading.Event()

        def wait():
            loop = Loop()
            try:
                with stoppable(stop):
                    Seen(loop, api)
                    while True:
                        for _ in loop.step():
                            begun.set()
            except WaitingEnded:
                ended.set()
            finally:
                loop.close()

        thread = threading.Thread(target=wait)
        thread.start()
        assert begun.wait(10)
        stop.set()
        assert ended.wait(10)
        thread.join()
