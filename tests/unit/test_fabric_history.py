"""What a handle and an error tell of all that was tried on the way."""

import pytest

import gpufabric as gf
from gpufabric.errors import PlacementError, TransientError
from gpufabric.testing import FakeBackend, FakeCloud, pool

SETTINGS = gf.Settings(discover_timeout_s=5.0, poll_s=0.01, trust_env=False)


class Half(FakeBackend):
    """Leaves something at the first try, and knows nothing of it at the next."""

    tries = 0

    def apply(self, plan):  # noqa: ARG002  # the protocol's
        self.tries += 1
        left = ("half/made",) if self.tries == 1 else ()
        raise TransientError("no answer", backend="half", operation="launch", leftovers=left)


class Dead(FakeBackend):
    def discover(self):
        raise TransientError("refuses connections", backend="dead", operation="discover")


def made(kind, name):
    return kind(name, cloud=FakeCloud([pool("H100:8", gbps=100, backend=name)]))


TASK = gf.Task(run="true", name="gang", resources=gf.Resources(accelerators="H100:8"))


def test_what_one_try_left_is_told_also_when_the_last_did_not_know_of_it():
    half = made(Half, "half")
    with pytest.raises(PlacementError) as caught:
        gf.Fabric(half, settings=SETTINGS).launch(TASK)
    [attempt] = caught.value.attempts
    assert half.tries == 3
    assert attempt.leftovers == ("half/made",)


def test_a_handle_tells_what_could_not_be_tried():
    fabric = gf.Fabric(made(Dead, "dead"), made(FakeBackend, "good"), settings=SETTINGS)
    job = fabric.launch(TASK)
    assert [(one.backend, "refuses connections" in one.reason) for one in job.rejections] == [
        ("dead", True)
    ]
