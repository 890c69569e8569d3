"""What runs before each start of an application, without the agent: back-off, end of jobs, opening of secrets.

`horchestra-start@UID.service` is a oneshot that the application requires and waits for. systemd restarts an application
that ended at once and as often as it likes (no start limit, so it never gives up); this oneshot counts, decides whether
a job is finished, and sleeps. It cannot be an ExecStartPre= of the application: such a command runs among the
application's own mounts, and would be root's shell under a volume that the application owns.

How a start is told apart: NRestarts of the unit grows for an automatic restart only, and starts anew with a manual one.
All durations are monotonic, so a jump of the clock neither ends a back-off nor makes one.
"""

from dataclasses import dataclass
from pathlib import Path

from agent import durable, output
from agent.layout import Layout

FIRST_DELAY, LONGEST_DELAY, GOOD_RUN = 10, 300, 600
"""Seconds: second restart in a row, most, and how long a run must be to start counting anew."""
LOG_WAIT = 10
"""Seconds that a start waits for the log pump."""

_SCRIPT = r"""#!/bin/sh
# Made by the Horchestra agent; changes are overwritten.
# app-start start UID    run before each start of the application: count, wait, open its secrets
# app-start secrets UID  open its secrets only
set -eu
umask 077
state=@STATE@
run=@RUN@
app=$state/apps/$2
unit= policy=Always retries=-1 deadline=0 sealed= secrets=
. "$app/start.conf"

put() { # put FILE FORMAT VALUE...: what printf makes of them becomes FILE, whole or not at all
  file=$1
  shift
  printf "$@" >"$file.new"
  sync "$file.new" 2>/dev/null || sync
  mv -f "$file.new" "$file"
}

finish() { # finish PHASE REASON
  put "$app/finished" 'phase=%s\nreason=%s\ncode=%s\nstatus=%s\n' "$1" "$2" "$code" "$status"
  save
  echo "$unit: $1 ($2), not started again" >&2
  exit 1
}

save() {
  put "$app/starts" '%s\n' "total=$total" "streak=$streak" "failures=$failures" "active=$active" "last=$last" \
    "boot=$this_boot" "delay=$delay" "until=$until" "previous=$previous" "code=$code" "status=$status"
}

take_up() { # what save wrote; a damaged line counts as none
  while IFS='=' read -r name value; do
    case $name in
      total | streak | failures | active | last | delay | until | code | status)
        case $value in '' | *[!0-9]*) ;; *) eval "$name=\$value" ;; esac ;;
      boot | previous) eval "$name=\$value" ;;
    esac
  done
}

open_secrets() {
  [ -n "$sealed" ] || return 0
  mkdir -p "$run/secrets"
  case $(stat -f -c %T "$run/secrets") in
    tmpfs | ramfs) ;;
    *) echo "SecretMountUnsafe: $run is not in memory, secrets are not opened there" >&2; exit 70 ;;
  esac
  new=$run/secrets/.$2.$$
  rm -rf "$new"
  mkdir -p "$new"
  for piece in "$app/$secrets/"[0-9]*; do
    if [ "$sealed" = credential ]; then
      systemd-creds decrypt --name="horchestra-$2" "$piece" -
    else
      cat "$piece"
    fi
  done | tar -x -p -C "$new" -f -
  [ -e "$new/complete" ] || { echo "SecretsUnreadable: the sealed secrets in $app cannot be opened" >&2; exit 71; }
  target=$run/secrets/$2
  mkdir -p "$target"
  mv -f "$new/env" "$new/digest" "$target/"
  # Directories stay the same inode while mounted; their content changes by one rename, as readers of files expect.
  for source in "$new/files/"*; do
    [ -d "$source" ] || continue
    mount=$target/files/${source##*/}
    version=..$(cat /proc/sys/kernel/random/uuid)
    mkdir -p "$target/files" "$mount"
    chmod 755 "$mount"
    mv "$source" "$mount/$version"
    chmod 755 "$mount/$version"
    old=$(readlink "$mount/..data" || true)
    ln -s "$version" "$mount/..data.new"
    mv -fT "$mount/..data.new" "$mount/..data"
    for file in "$mount/$version/"* "$mount/$version/".[!.]* "$mount/$version/"..?*; do
      name=${file##*/}
      [ -e "$file" ] || continue
      [ -L "$mount/$name" ] || ln -sT "..data/$name" "$mount/$name"
    done
    for link in "$mount/"* "$mount/".[!.]* "$mount/"..?*; do
      name=${link##*/}
      case $name in ..data | "$version") continue ;; esac
      [ -L "$link" ] && [ ! -e "$link" ] && rm -f "$link"
    done
    [ -z "$old" ] || [ "$old" = "$version" ] || rm -rf "${mount:?}/$old"
  done
  rm -rf "$new"
}

# A directory of a volume is handed to systemd as a mount made here: systemd would follow a symlink that an application
# put in its place. The working directory cannot be swapped, and the kernel says where it really is.
bind_directories() {
  [ -s "$app/subpaths" ] || return 0
  while IFS=' ' read -r index volume directory; do
    target=$run/sub/$2/$index
    mkdir -p "$target"
    while mountpoint -q "$target"; do umount -l "$target"; done
    cd "$state/volumes/$volume"
    directory=${directory#./} directory=${directory%/.} # which keep `read` from eating spaces
    inside=$(pwd -P)/$directory
    cd -P "./$directory"
    [ "$(pwd -P)" = "$inside" ] || { echo "InvalidSubPath: $directory leads out of the volume" >&2; exit 72; }
    mount --no-canonicalize --bind . "$target" # by name it would be looked up again, and could be a symlink by then
    cd /
  done <"$app/subpaths"
}

# A FIFO for what this process will print. The pump opens it when it has read the last process's to its end; without a
# pump the application runs all the same, unheard.
open_log() {
  [ -d "$run/log" ] || mkdir -p "$run/log"
  if [ ! -s "$run/log/$2.unit" ]; then # the pump is told below: it reads no half of it
    name=${unit#horchestra-app-}
    printf '%s\n' "$unit" "${name%.service}" >"$run/log/$2.unit"
  fi
  [ ! -e "$run/log/$2" ] || rm -f "$run/log/$2"
  mkfifo -m 622 "$run/log/$2"
  [ -p "$run/log/.control" ] || mkfifo "$run/log/.control" 2>/dev/null || :
  echo "$2" 1<>"$run/log/.control"
  if ! timeout @LOG_WAIT@ sh -c ': >"$1"' sh "$run/log/$2"; then
    echo "LogsLost: @LOGS@ does not answer, what $unit prints is thrown away" >&2
    ln -sf /dev/null "$run/log/$2"
  fi
}

if [ "$1" = secrets ]; then
  open_secrets "$@"
  exit 0
fi

[ ! -e "$app/finished" ] || exit 0

total=0 streak=0 failures=0 active=0 last=0 boot= delay=0 until=0 previous= code=0 status=0
[ ! -f "$app/starts" ] || take_up <"$app/starts"
read -r this_boot </proc/sys/kernel/random/boot_id
restarts=0 result=success began=0 ended=0 invocation=

ask_systemd() { # about the process before this one
  while IFS='=' read -r name value; do
    case $name in
      NRestarts) restarts=$value ;;
      Result) result=$value ;;
      InvocationID) invocation=$value ;;
      ExecMainCode) last_code=$value ;;
      ExecMainStatus) last_status=$value ;;
      ExecMainStartTimestampMonotonic) began=$value ;;
      ExecMainExitTimestampMonotonic) ended=$value ;;
    esac
  done <<END
$(systemctl show "$unit" -p NRestarts -p Result -p InvocationID -p ExecMainCode -p ExecMainStatus \
  -p ExecMainStartTimestampMonotonic -p ExecMainExitTimestampMonotonic)
END
}

delay=0 until=0
[ "$boot" != "$this_boot" ] || ask_systemd
if [ "$boot" != "$this_boot" ]; then
  [ -z "$boot" ] || total=$((total + 1))
  streak=0 last=0
elif [ "$restarts" -gt 0 ] && [ "$restarts" -ne "$last" ]; then
  last=$restarts
  previous=$invocation code=$last_code status=$last_status
  ran=0
  [ "$ended" -le "$began" ] || ran=$(((ended - began) / 1000000))
  active=$((active + ran))
  if [ "$code" = 1 ] && [ "$status" = 0 ]; then
    [ "$policy" = Always ] || finish Succeeded Completed
  else
    failures=$((failures + 1))
    if [ "$deadline" -gt 0 ] && { [ "$active" -ge "$deadline" ] || [ "$result" = timeout ]; }; then
      finish Failed DeadlineExceeded
    fi
    [ "$retries" -lt 0 ] || [ "$failures" -le "$retries" ] || finish Failed @LIMIT@
  fi
  [ "$ran" -lt @GOOD@ ] || streak=0
  total=$((total + 1)) streak=$((streak + 1))
  if [ "$streak" -gt 1 ]; then
    delay=@FIRST@ doublings=$((streak - 2))
    while [ "$doublings" -gt 0 ] && [ "$delay" -lt @LONGEST@ ]; do
      delay=$((delay * 2)) doublings=$((doublings - 1))
    done
    [ "$delay" -le @LONGEST@ ] || delay=@LONGEST@
    read -r uptime rest </proc/uptime
    until=$((${uptime%%.*} + delay))
  fi
else
  [ -z "$invocation" ] || previous=$invocation
  last=0 streak=0
fi
save
[ "$delay" -eq 0 ] || sleep "$delay"
bind_directories "$@"
open_secrets "$@"
[ -z "$sealed" ] || cp "$run/secrets/$2/digest" "$run/secrets/$2/started"
open_log "$@"
"""

_UNIT = """# Made by the Horchestra agent; changes are overwritten.
[Unit]
Description=Horchestra: before the start of application %i
RequiresMountsFor={state}
Wants={logs}
After={logs}

[Service]
Type=oneshot
ExecStart=/bin/sh {script} start %i
TimeoutStartSec=infinity
SyslogIdentifier=horchestra-start
Slice=horchestra.slice
UMask=0077
"""
TEMPLATE = "horchestra-start@.service"


def unit(uid: str) -> str:
    """The oneshot of one application."""
    return f"horchestra-start@{uid}.service"


def application_uid(unit_name: str) -> str | None:
    """The application behind one of these oneshots."""
    prefix, suffix = "horchestra-start@", ".service"
    if not unit_name.startswith(prefix) or not unit_name.endswith(suffix):
        return None
    return unit_name[len(prefix) : -len(suffix)] or None


def install(layout: Layout) -> bool:
    """Put script, template and log pump on the node. True when a unit changed (systemd must reload)."""
    script = _SCRIPT
    for name, value in (
        ("@STATE@", _shell(str(layout.state))),
        ("@RUN@", _shell(str(layout.run))),
        ("@LIMIT@", "BackoffLimitExceeded"),
        ("@GOOD@", str(GOOD_RUN)),
        ("@FIRST@", str(FIRST_DELAY)),
        ("@LONGEST@", str(LONGEST_DELAY)),
        ("@LOGS@", output.UNIT),
        ("@LOG_WAIT@", str(LOG_WAIT)),
    ):
        script = script.replace(name, value)
    durable.write_if_changed(layout.starter, script.encode(), 0o755)
    text = _UNIT.format(state=layout.state, script=layout.starter, logs=output.UNIT)
    changed = durable.write_if_changed(layout.units / TEMPLATE, text.encode(), 0o644)
    return output.install(layout) or changed


@dataclass(frozen=True, slots=True)
class StartRules:
    """What the script must know of an application. retries: -1 for ever; deadline: seconds, 0 none."""

    unit: str
    policy: str
    retries: int
    deadline: int
    sealed: str = ""
    """How the secrets are kept: credential (systemd-creds) | plain (0600 files); empty: there are none."""
    secrets: str = ""
    """Name of the directory that holds them."""

    def text(self) -> bytes:
        return (
            f"unit={_shell(self.unit)}\npolicy={self.policy}\nretries={self.retries}\n"
            f"deadline={self.deadline}\nsealed={self.sealed}\nsecrets={self.secrets}\n"
        ).encode()


@dataclass(frozen=True, slots=True)
class Starts:
    """What the script has counted. `until`: uptime in seconds when the present back-off ends."""

    total: int = 0
    streak: int = 0
    failures: int = 0
    active: int = 0
    delay: int = 0
    until: int = 0
    boot: str = ""
    previous: str = ""
    """InvocationID of the last process that ended."""
    code: int = 0
    status: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """A job's end, kept on disk: Succeeded | Failed, and why."""

    phase: str
    reason: str
    code: int = 0
    status: int = 0


def read_starts(directory: Path) -> Starts:
    values = _read(directory / "starts")
    numbers = {k: _number(values.get(k, "")) for k in ("total", "streak", "failures", "active", "delay", "until")}
    return Starts(
        **numbers,
        boot=values.get("boot", ""),
        previous=values.get("previous", ""),
        code=_number(values.get("code", "")),
        status=_number(values.get("status", "")),
    )


def read_finished(directory: Path) -> Finished | None:
    values = _read(directory / "finished")
    if not values:
        return None
    return Finished(
        values.get("phase", "Failed"), values.get("reason", ""), _number(values.get("code", "")),
        _number(values.get("status", "")),
    )  # fmt: skip


def write_finished(directory: Path, finished: Finished) -> None:
    """The agent's own verdict, in the script's form."""
    text = f"phase={finished.phase}\nreason={finished.reason}\ncode={finished.code}\nstatus={finished.status}\n"
    durable.write(directory / "finished", text.encode())


def forget_backoff(directory: Path, *, job_too: bool) -> None:
    """Start the next process at once; with `job_too` also forget that the job is finished and its failures."""
    values = _read(directory / "starts")
    if values:
        values.update(streak="0", delay="0", until="0")
        if job_too:
            values.update(failures="0", active="0")
        durable.write(directory / "starts", "".join(f"{k}={v}\n" for k, v in values.items()).encode())
    if job_too:
        durable.remove(directory / "finished")


def _read(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    return {name: value for name, equals, value in (line.partition("=") for line in lines) if equals}


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.lstrip("-").isdigit() else 0


def _shell(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
