#!/bin/sh
# nspawn-loop.sh BRANCH GROUP ARGV...: run systemd-nspawn (ARGV) in a control group of its own, again after each reboot.
#
# BRANCH cgroup: PID 1 of this machine is not systemd (hierarchies of cgroup v1 below /sys/fs/cgroup): the group GROUP is
#   made in every hierarchy; without it all nodes would share one and collide.
# BRANCH scope: PID 1 is systemd with cgroup v2: a transient scope with Delegate=yes hands the subtree to nspawn, which
#   makes `supervisor` and `payload` below it. One scope per boot, for a group with processes in it cannot be split again.
branch=$1 group=$2
shift 2

enter_and_run() (
  for hierarchy in /sys/fs/cgroup/*/; do
    own=$hierarchy$group
    mkdir -p "$own"
    if [ -e "$own/cpuset.cpus" ]; then
      cat "${hierarchy}cpuset.cpus" >"$own/cpuset.cpus"
      cat "${hierarchy}cpuset.mems" >"$own/cpuset.mems"
    fi
    # $$ would be the loop's; a child's parent field names this subshell.
    sh -c 'echo $PPID' >"$own/cgroup.procs"
  done
  exec "$@"
)

while :; do
  case $branch in
    cgroup) enter_and_run "$@" ;;
    scope) systemd-run --quiet --scope --collect --property=Delegate=yes --description="$group" -- "$@" ;;
  esac
  code=$?
  # With --keep-unit nspawn ends with 133 when the node asked for a reboot.
  [ "$code" = 133 ] || exit "$code"
done
