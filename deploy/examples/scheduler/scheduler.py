#!/usr/bin/env python3
"""A scheduler over REST, with nothing but Python's standard library.

It binds each pod whose schedulerName is the first argument to the ready node without taints that has the fewest pods:

    eval "$(windlass env)"; python3 scheduler.py my-scheduler

Each binding names the revision that the decision is based on (allocationRevision). If another pod was bound to the node
since then, the cluster refuses the binding, and this scheduler reads again and decides again.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

URL = "https://" + os.environ["WINDLASS_SERVER"]
TLS = ssl.create_default_context(cafile=os.environ["WINDLASS_CACERT"])
TLS.load_cert_chain(os.environ["WINDLASS_CERT"], os.environ["WINDLASS_KEY"])


def call(method, path, body=None, timeout=30, **query):
    """Makes one request and returns the response, which the caller reads."""
    url = URL + path + ("?" + urllib.parse.urlencode(query) if query else "")
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"} if data else {}, method=method)
    return urllib.request.urlopen(request, timeout=timeout, context=TLS)


def ready(node):
    """Reports whether a node takes pods: it is Ready, not cordoned, and has no taint that keeps pods away."""
    spec = node.get("spec", {})
    if spec.get("unschedulable") or any(t["effect"] != "PreferNoSchedule" for t in spec.get("taints", [])):
        return False
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node.get("status", {}).get("conditions", []))


def candidates():
    """Returns the ready nodes, those with the fewest pods first, and the revision of the pods that were counted."""
    pods = json.load(call("GET", "/v1/pods"))
    counts = {n["metadata"]["name"]: 0 for n in json.load(call("GET", "/v1/nodes")).get("items", []) if ready(n)}
    for pod in pods.get("items", []):
        name = pod["spec"].get("nodeName")
        if name in counts:
            counts[name] += 1
    return sorted(counts, key=lambda name: (counts[name], name)), pods["metadata"]["resourceVersion"]


def place(pod):
    """Binds a pod, and returns its node; None if it fits on no node, or is bound or gone."""
    meta = pod["metadata"]
    path = f"/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
    unfit = set()
    while True:
        nodes, revision = candidates()
        node = next((n for n in nodes if n not in unfit), None)
        if node is None:
            return None
        try:
            call("POST", path + "/binding", {
                "nodeName": node, "allocationRevision": revision, "preconditions": {"uid": meta["uid"]}})
            return node
        except urllib.error.HTTPError as e:
            print(f"{meta['name']}: {json.load(e).get('message')}", flush=True)
            if e.code == 404:
                return None
            if e.code == 400:  # it does not fit
                unfit.add(node)
            elif e.code != 409 and e.code < 500:
                raise
            elif json.load(call("GET", path))["spec"].get("nodeName"):
                return None  # another scheduler was faster
            else:
                time.sleep(0.1)


def main(name):
    while True:
        try:
            selector = f"spec.schedulerName={name},spec.nodeName="
            for line in call("GET", "/v1/pods:watch", timeout=300, fieldSelector=selector):
                event = json.loads(line)
                if event.get("type") in ("ADDED", "MODIFIED") and (node := place(event["object"])):
                    print(f"{event['object']['metadata']['name']}: bound to {node}", flush=True)
        except (OSError, ValueError) as e:  # the stream ended: watch again
            print(f"watch: {e}", flush=True)
            time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1])
