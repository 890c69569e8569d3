"""The user of a process, by the image's accounts and the spec."""

from pathlib import Path
from typing import Any

import pytest

from agent.errors import AgentError
from agent.images.view import ImageView
from agent.layout import Layout
from agent.users import OWN_RANGE, Account, Identities, resolve
from horchestra.kinds.application import SecurityContext

ACCOUNTS = "root:x:0:0:r:/root:/bin/sh\n\nbroken\napp:x:42:43::/home/app:/bin/sh\n:x:1:1::/:\nbig:x:99999999999:1::/:\n"
GROUPS = "root:x:0:\napp:x:43:\nextra:x:77:other,app\n"


@pytest.fixture
def view(tmp_path: Path) -> ImageView:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(ACCOUNTS)
    (tmp_path / "etc/group").write_text(GROUPS)
    return ImageView([tmp_path])


def who(view: ImageView, user: str, **context: Any) -> Account:
    return resolve(view, user, SecurityContext.model_validate(context), lambda: 5000)


@pytest.mark.parametrize(
    ("user", "context", "account"),
    [
        ("", {}, Account(0, 0, (), "root", "/root")),
        ("app", {}, Account(42, 43, (77,), "app", "/home/app")),
        ("42", {}, Account(42, 43, (77,), "app", "/home/app")),
        ("app:0", {}, Account(42, 0, (), "app", "/home/app")),
        ("app:extra", {}, Account(42, 77, (), "app", "/home/app")),
        ("65532", {}, Account(65532, 0)),
        ("65532:65532", {}, Account(65532, 65532)),
        ("app", {"runAsUser": 7}, Account(7, 0)),
        ("app", {"runAsGroup": 9, "fsGroup": 11}, Account(42, 9, (11, 77), "app", "/home/app")),
        ("", {"runAsNonRoot": True}, Account(5000, 5000)),
        ("", {"profile": "sandbox"}, Account(5000, 5000)),
    ],
)
def test_who_it_runs_as(view: ImageView, user: str, context: dict[str, Any], account: Account) -> None:
    assert who(view, user, **context) == account


@pytest.mark.parametrize(
    ("user", "context", "reason"),
    [
        ("nobody-here", {}, "UnknownUser"),
        ("app:nobody-here", {}, "UnknownGroup"),
        ("4294967295", {}, "UnknownUser"),
        ("root", {"runAsNonRoot": True}, "RunAsRootRefused"),
        ("0", {"profile": "sandbox"}, "RunAsRootRefused"),
    ],
)
def test_who_it_cannot_run_as(view: ImageView, user: str, context: dict[str, Any], reason: str) -> None:
    with pytest.raises(AgentError) as caught:
        who(view, user, **context)
    assert caught.value.reason == reason


def test_an_image_without_accounts_runs_as_what_it_says(tmp_path: Path) -> None:
    assert who(ImageView([tmp_path]), "") == Account(0, 0, (), "root", "/")


def test_a_uid_of_its_own_stays_with_the_name(tmp_path: Path) -> None:
    layout = Layout(state=tmp_path)
    first = Identities(layout).uid("default", "a")
    other = Identities(layout).uid("default", "b")
    assert first in OWN_RANGE
    assert first != other
    assert Identities(layout).uid("default", "a") == first
