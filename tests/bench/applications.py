"""The applications that the benches store: about 1.5 kB each, spread over nodes, with ports that do not collide."""

from __future__ import annotations

from typing import Any

NODES = 500
TIERS = 10
"""Every tenth application carries the label `tier: t0`; every second `half: h0`."""
COLLECTION = "/apis/orch.ks-tool.dev/v1/namespaces/default/applications"


def name(number: int) -> str:
    return f"service-{number:05}"


def application(number: int) -> dict[str, Any]:
    """What a client would send; with what the server adds it is about 1.5 kB of JSON."""
    return {
        "apiVersion": "orch.ks-tool.dev/v1",
        "kind": "Application",
        "metadata": {
            "name": name(number),
            "namespace": "default",
            "labels": {"app": name(number), "tier": f"t{number % TIERS}", "half": f"h{number % 2}"},
            "annotations": {"description": "One of many services that were made to measure how lists grow."},
        },
        "spec": {
            "image": f"registry.example.org/team-{number % 17}/service:{1 + number % 7}.4.2",
            "nodeName": f"node-{number % NODES:03}",
            "command": ["/usr/local/bin/service", "--config", "/etc/service/config.yaml"],
            "env": {f"SETTING_{index:02}": f"value-{index}-of-service-{number:05}" for index in range(12)},
            "ports": [{"name": "http", "port": 10000 + number // NODES}],
            "resources": {
                "requests": {"cpu": "50m", "memory": "64Mi"},
                "limits": {"cpu": "500m", "memory": "256Mi"},
            },
            "volumeMounts": [{"path": "/tmp", "tmpfs": {"size": "16Mi"}}],
        },
    }
