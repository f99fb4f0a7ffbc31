import itertools

import pytest
from site_of_tests import Daemon, Redis

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def redis():
    server = Redis()
    yield server
    server.close()


@pytest.fixture(scope="session")
def daemon(redis):
    one = Daemon(redis)
    yield one
    one.close()


@pytest.fixture
def app():
    """An app that no other test has."""
    return f"py{next(NUMBERS)}"
