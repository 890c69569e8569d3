from agent.outbox import MAX_EVENTS, Outbox
from proto import node_pb2 as pb


def status(uid: str, generation: int) -> pb.AgentMessage:
    return pb.AgentMessage(status=pb.StatusReport(applications=[pb.ApplicationReport(uid=uid, generation=generation)]))


async def drained(outbox: Outbox) -> list[pb.AgentMessage]:
    outbox.put(pb.AgentMessage(event=pb.EventReport(reason="Last")))
    messages = []
    while (message := await outbox.take()).event.reason != "Last":
        messages.append(message)
    return messages


async def test_only_the_newest_status_of_an_application_waits() -> None:
    outbox = Outbox()
    for generation in range(1000):
        outbox.put(status("a", generation))
        outbox.put(status("b", generation))
    (message,) = await drained(outbox)
    assert {(r.uid, r.generation) for r in message.status.applications} == {("a", 999), ("b", 999)}


async def test_events_lose_their_oldest() -> None:
    outbox = Outbox()
    for number in range(MAX_EVENTS + 50):
        outbox.put(pb.AgentMessage(event=pb.EventReport(message=str(number))))
    messages = await drained(outbox)
    assert messages[0].event.message == "51"
    assert len(messages) == MAX_EVENTS - 1


async def test_acknowledgements_go_before_everything_else() -> None:
    outbox = Outbox()
    outbox.put(status("a", 1))
    outbox.put(pb.AgentMessage(acknowledgement=pb.Acknowledgement(removed=["x", "y"])))
    assert list((await outbox.take()).acknowledgement.removed) == ["x", "y"]


async def test_what_may_not_have_been_heard_is_said_again_after_a_break() -> None:
    outbox = Outbox()
    outbox.put(pb.AgentMessage(acknowledgement=pb.Acknowledgement(removed=["gone", "old"])))
    outbox.put(pb.AgentMessage(node=pb.NodeReport(node_json=b"1")))
    outbox.put(pb.AgentMessage(node=pb.NodeReport(volumes_json=b"2")))
    await drained(outbox)
    outbox.put(status("a", 1))
    outbox.reconnected(still_to_remove=["gone"])
    removed, node = await drained(outbox)
    assert list(removed.acknowledgement.removed) == ["gone"]
    assert (node.node.node_json, node.node.volumes_json) == (b"1", b"2")


async def test_after_a_bye_nothing_else_is_sent() -> None:
    outbox = Outbox()
    outbox.put(status("a", 1))
    outbox.put(pb.AgentMessage(bye=pb.Bye(reason="Shutdown")))
    assert (await outbox.take()).bye.reason == "Shutdown"
