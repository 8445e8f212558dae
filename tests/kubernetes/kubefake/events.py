"""Events, counted where they repeat."""

import uuid

from .errors import Json
from .objects import now
from .store import Store


def reference(obj: Json) -> Json:
    """What an event is about."""
    meta = obj["metadata"]
    made = {
        "kind": obj["kind"], "apiVersion": obj["apiVersion"], "name": meta["name"],
        "uid": meta["uid"], "resourceVersion": meta["resourceVersion"],
    }  # fmt: skip
    if meta.get("namespace"):
        made["namespace"] = meta["namespace"]
    return made


class Events:
    """Writes events."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, ...], str] = {}

    def tell(  # the parts of an event
        self,
        about: Json,
        reason: str,
        message: str,
        *,
        warning: bool = False,
        component: str,
        host: str = "",
    ) -> None:
        """Tells something of an object; the same again is counted."""
        namespace = about.get("namespace") or "default"
        space = self._store.find("namespaces", "", namespace)
        if space is None or space.obj["metadata"].get("deletionTimestamp"):
            return
        key = (about["uid"], reason, message, about.get("fieldPath", ""))
        name = self._known.get(key, "")
        before = self._store.find("events", namespace, name) if name else None
        if before is not None:
            made = before.copy()
            made["count"] += 1
            made["lastTimestamp"] = now()
            self._store.put("events", made)
            return
        name = f"{about['name']}.{uuid.uuid4().hex[:16]}"
        self._known[key] = name
        moment = now()
        self._store.put("events", {
            "kind": "Event", "apiVersion": "v1",
            "metadata": {
                "name": name, "namespace": namespace, "uid": str(uuid.uuid4()),
                "creationTimestamp": moment,
            },
            "involvedObject": about, "reason": reason, "message": message,
            "source": {"component": component, **({"host": host} if host else {})},
            "firstTimestamp": moment, "lastTimestamp": moment, "count": 1,
            "type": "Warning" if warning else "Normal", "eventTime": None,
            "reportingComponent": component, "reportingInstance": host,
        })  # fmt: skip
