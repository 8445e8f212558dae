"""What all tests share."""

import pytest

pytest.register_assert_rewrite("gpufabric.testing")  # before any test imports a part of it
