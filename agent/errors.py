"""The agent's one error type: what becomes a condition and an Event on the object it concerns."""


class AgentError(Exception):
    """A failure with a CamelCase `reason` (stable, for machines) and a `message` that says what to do (for people).

    `retry_after` is the number of seconds after which a retry makes sense; None leaves it to the caller's back-off.
    """

    def __init__(self, reason: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
