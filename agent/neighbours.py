"""What an application shares with others on the node without having asked for it: a user id, the name of kept data."""

from agent import users
from agent.errors import AgentError
from agent.launch import Launch
from agent.units import Identity
from agent.workshop import Workshop


def refuse(shop: Workshop, identity: Identity, launch: Launch) -> None:
    """`sandbox` does not start beside another process of its uid. Raises AgentError SharedUid."""
    shared = _shared_with(shop, identity, launch)
    if launch.profile == "sandbox" and shared:
        raise AgentError("SharedUid", f"profile sandbox refuses to share uid {launch.account.uid} with {shared}")


def notes(shop: Workshop, identity: Identity, launch: Launch) -> dict[str, tuple[str, str]]:
    """Conditions SharedUid and PreviousData where they hold: type to (reason, message)."""
    found = {}
    if shared := _shared_with(shop, identity, launch):
        text = (
            f"uid {launch.account.uid} is also {shared}: processes of one uid can signal, and mostly read, each other; "
            "set securityContext.runAsUser to a uid of its own"
        )
        found["SharedUid"] = ("SameUid", text)
    if any(mount.kind == "pv" for mount in launch.mounts) and (kept := _kept_data(shop, launch)):
        found["PreviousData"] = ("KeptDataFound", kept)
    return found


def _shared_with(shop: Workshop, identity: Identity, launch: Launch) -> str:
    """Who else has the uid; nobody who matters when each application has a PID namespace of its own."""
    if shop.abilities.own_processes:
        return ""
    uid = launch.account.uid
    others = [f"application {name}" for name in shop.sharing(identity.uid, uid)]
    account = users.host_account(uid)
    if account:
        others.append(f"host account {account}")
    return ", ".join(others)


def _kept_data(shop: Workshop, launch: Launch) -> str:
    volumes = shop.volumes.all()
    for mount in launch.mounts:
        volume = volumes.get(mount.source) if mount.kind == "pv" else None
        kept = shop.volumes.previous(volume.name, volume.uid) if volume else None
        if volume and kept:
            return f'volume "{volume.name}" is new and empty; data of its name is kept: set spec.adopt: {kept}'
    return ""
