#!/bin/sh
# Entry point of the Redis stand-in: options go to redis-server, which does not run as root.
set -e
case ${1-} in -* | *.conf) set -- redis-server "$@" ;; esac
if [ "$1" = redis-server ]; then
  if [ "$(id -u)" = 0 ]; then
    find . ! -user redis -exec chown redis '{}' +
    exec setpriv --reuid=redis --regid=redis --init-groups "$0" "$@"
  fi
  umask 0077
  # Outside a network namespace of its own this would be unwise; the hub's image does the same.
  set -- "$@" --protected-mode no
fi
exec "$@"
