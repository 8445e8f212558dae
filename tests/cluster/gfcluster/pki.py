"""A small certificate authority with openssl, and kubeconfigs made with it."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path

from . import layout
from .shell import run

_CURVE = "ec_paramgen_curve:prime256v1"
_NEW = f"openssl req -x509 -newkey ec -pkeyopt {_CURVE} -nodes -sha256 -days 365"
_CA = "[ext]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n"


def _config(common_name: str, groups: Sequence[str], extensions: str) -> str:
    subject = "".join(f"{number}.O={group}\n" for number, group in enumerate(groups))
    return (
        "[req]\nprompt=no\ndistinguished_name=dn\nx509_extensions=ext\nstring_mask=utf8only\n"
        f"[dn]\n{subject}CN={common_name}\n{extensions}"
    )


def _issue(name: str, config: str, *, ca: str | None) -> None:
    """Write NAME.crt and NAME.key, signed by a CA or by itself."""
    cnf = layout.pki(f"{name}.cnf")
    cnf.parent.mkdir(parents=True, exist_ok=True)
    cnf.write_text(config)
    signer: list[str | Path] = []
    if ca:
        signer = ["-CA", layout.pki(f"{ca}.crt"), "-CAkey", layout.pki(f"{ca}.key")]
    key, crt = layout.pki(f"{name}.key"), layout.pki(f"{name}.crt")
    run([*_NEW.split(), "-config", cnf, "-keyout", key, "-out", crt, *signer])
    key.chmod(0o600)


def authority(name: str) -> None:
    """A certificate authority."""
    _issue(name, _config(f"gpufabric-cluster-{name}", (), _CA), ca=None)


def client(name: str, user: str, groups: Sequence[str] = (), *, ca: str = "ca") -> None:
    """A certificate that says to the API server who one is."""
    _issue(name, _config(user, groups, "[ext]\nextendedKeyUsage=clientAuth\n"), ca=ca)


def server(name: str, hosts: Sequence[str], addresses: Sequence[str]) -> None:
    """A certificate for a server with these names and addresses."""
    subjects = ",".join([f"DNS:{host}" for host in hosts] + [f"IP:{ip}" for ip in addresses])
    extensions = f"[ext]\nextendedKeyUsage=serverAuth\nsubjectAltName={subjects}\n"
    _issue(name, _config(name, (), extensions), ca="ca")


def signing_key(name: str) -> None:
    """The key pair that service account tokens are signed with."""
    key, pub = layout.pki(f"{name}.key"), layout.pki(f"{name}.pub")
    run([*f"openssl genpkey -algorithm EC -pkeyopt {_CURVE}".split(), "-out", key])
    run(["openssl", "pkey", "-in", key, "-pubout", "-out", pub])
    key.chmod(0o600)


def text64(name: str) -> str:
    """A file of the authority, in base64, as Kubernetes' objects want it."""
    return base64.b64encode(layout.pki(name).read_bytes()).decode()


def write_kubeconfig(
    path: Path, certificate: str, *, user: str, namespace: str = "default"
) -> Path:
    """A kubeconfig that holds all it needs. JSON is YAML, so every client reads it."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "gpufabric-test",
                "cluster": {
                    "server": layout.SERVER,
                    "certificate-authority-data": text64("ca.crt"),
                },
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": text64(f"{certificate}.crt"),
                    "client-key-data": text64(f"{certificate}.key"),
                },
            }
        ],
        "contexts": [
            {
                "name": "gpufabric-test",
                "context": {"cluster": "gpufabric-test", "user": user, "namespace": namespace},
            }
        ],
        "current-context": "gpufabric-test",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))
    return path
