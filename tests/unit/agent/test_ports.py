"""Who holds a port, from /proc."""

import os
import socket

from agent.ports import listeners


def test_a_listener_is_found_with_its_process_and_a_free_port_is_not() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(("127.0.0.1", 0))
        tcp, udp = server.getsockname()[1], datagrams.getsockname()[1]
        found = {
            (entry.port, entry.protocol): entry.pid for entry in listeners([(tcp, "TCP"), (udp, "UDP"), (1, "TCP")])
        }
    assert found == {(tcp, "TCP"): os.getpid(), (udp, "UDP"): os.getpid()}
    assert listeners([(tcp, "TCP")]) == []
