#!/bin/sh
# Entry point of the nginx stand-in: runs what is in /docker-entrypoint.d, then the command.
set -e
if [ "$1" = nginx ]; then
  for script in /docker-entrypoint.d/*.sh; do
    [ -x "$script" ] || continue
    echo "$0: Launching $script"
    "$script"
  done
  echo "$0: Configuration complete; ready for start up"
fi
exec "$@"
