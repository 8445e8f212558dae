"""The small client of tests/cluster, against the fake: a token instead of a certificate."""

import json
import urllib.request
from pathlib import Path

from gfcluster.api import Api


class Client(Api):
    """Reads a kubeconfig of the fake."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        self._server = config["clusters"][0]["cluster"]["server"]
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        token = config["users"][0]["user"]["token"]
        self._opener.addheaders = [("Authorization", f"Bearer {token}")]
        self._plurals = {}
