#!/usr/bin/env python3
"""A custom admission controller of Windlass that dedicates nodes to a group of users.

It needs Python's standard library only. Taint the nodes, then run it on another host than the control plane:

    windlass adm taint nodes node1 dedicated=groupName:NoSchedule
    python3 admission.py --listen 192.0.2.7:8443 --certificate tls.crt --key tls.key --group groupName

/mutate gives pods the toleration for these nodes, and a node selector that keeps them there. /validate refuses pods
that tolerate the taint. webhooks.yaml has the configuration: which namespaces are the group's, and which are not.
"""

import argparse
import base64
import http.server
import json
import ssl

KEY = "dedicated"


def mutate(pod, group):
    """Returns the JSON patch (RFC 6902) that puts a pod on the nodes of a group."""
    spec, patch = pod["spec"], []
    if not any(tolerates(t, group) for t in spec.get("tolerations", [])):
        toleration = {"key": KEY, "operator": "Equal", "value": group, "effect": "NoSchedule"}
        if "tolerations" in spec:
            patch.append({"op": "add", "path": "/spec/tolerations/-", "value": toleration})
        else:
            patch.append({"op": "add", "path": "/spec/tolerations", "value": [toleration]})
    if spec.get("nodeSelector", {}).get(KEY) != group:
        selector = dict(spec.get("nodeSelector", {}), **{KEY: group})
        patch.append({"op": "add", "path": "/spec/nodeSelector", "value": selector})
    return patch


def tolerates(toleration, group):
    """Reports whether a toleration tolerates the taint of a group's nodes."""
    if toleration.get("effect") not in (None, "", "NoSchedule") or toleration.get("key", "") not in ("", KEY):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value") == group


def review(path, request, group):
    """Returns the response to the request of an AdmissionReview."""
    response = {"uid": request["uid"], "allowed": True}
    if path == "/mutate":
        patch = mutate(request["object"], group)
        if patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
    elif any(tolerates(t, group) for t in request["object"]["spec"].get("tolerations", [])):
        response["allowed"] = False
        response["status"] = {"message": f"the nodes of {group} are for its own namespaces"}
    return response


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers POST with an AdmissionReview of admission.k8s.io/v1."""

    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds without a request

    def do_POST(self):
        if self.path not in ("/mutate", "/validate"):
            self.send_error(404)
            return
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps(
            {
                "apiVersion": asked["apiVersion"],
                "kind": asked["kind"],
                "response": review(self.path, asked["request"], self.server.group),
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


class Server(http.server.ThreadingHTTPServer):
    """Does the TLS handshake of each connection in its own thread, so that a slow client holds up no other."""

    def __init__(self, address, context, group):
        super().__init__(address, Handler)
        self.context, self.group = context, group

    def finish_request(self, request, client_address):
        request.settimeout(10)
        with self.context.wrap_socket(request, server_side=True) as connection:
            super().finish_request(connection, client_address)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--listen", required=True, help="host:port")
    args.add_argument("--certificate", required=True, help="file with the server's certificate in PEM")
    args.add_argument("--key", required=True, help="file with its key in PEM")
    args.add_argument("--group", required=True, help="value of the taint dedicated=VALUE:NoSchedule")
    args = args.parse_args()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(args.certificate, args.key)
    host, _, port = args.listen.rpartition(":")
    server = Server((host.strip("[]"), int(port)), context, args.group)
    print(f"listening at {server.server_address[0]}:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
