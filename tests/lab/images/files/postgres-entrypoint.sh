#!/bin/sh
# Entry point of the PostgreSQL stand-in: same variables, paths and order of events as the hub's image.
set -eu

# setting NAME DEFAULT: NAME, or the content of the file that NAME_FILE names, or the default.
setting() {
  eval "value=\${$1-} file=\${$1_FILE-}"
  if [ -n "$value" ] && [ -n "$file" ]; then
    echo "error: both $1 and $1_FILE are set, but they exclude each other" >&2
    exit 1
  fi
  if [ -n "$file" ]; then value=$(cat "$file"); fi
  [ -n "$value" ] || value=$2
  eval "$1=\$value"
  unset "$1_FILE"
}

wants_help() {
  for word; do
    case $word in -'?' | --help | --describe-config | -V | --version) return 0 ;; esac
  done
  return 1
}

prepare_directories() {
  mkdir -p "$PGDATA"
  chmod 00700 "$PGDATA" || :
  mkdir -p /var/run/postgresql || :
  chmod 03775 /var/run/postgresql || :
  if [ "$(id -u)" = 0 ]; then
    find "$PGDATA" ! -user postgres -exec chown postgres '{}' +
    find /var/run/postgresql ! -user postgres -exec chown postgres '{}' + || :
  fi
}

read_settings() {
  setting POSTGRES_PASSWORD ''
  setting POSTGRES_USER postgres
  setting POSTGRES_DB "$POSTGRES_USER"
  setting POSTGRES_INITDB_ARGS ''
  : "${POSTGRES_HOST_AUTH_METHOD:=}"
}

refuse_without_password() {
  [ -z "$POSTGRES_PASSWORD" ] && [ "$POSTGRES_HOST_AUTH_METHOD" != trust ] || return 0
  cat >&2 <<MESSAGE
Error: Database is uninitialized and superuser password is not specified.
       Set POSTGRES_PASSWORD to a password that is not empty, or set
       POSTGRES_HOST_AUTH_METHOD=trust to let everybody in without one.
MESSAGE
  exit 1
}

initialize() {
  password_file=$(mktemp)
  printf '%s\n' "$POSTGRES_PASSWORD" >"$password_file"
  if [ -n "$POSTGRES_PASSWORD" ]; then with_password=--pwfile=$password_file; else with_password=; fi
  # POSTGRES_INITDB_ARGS holds several words by its definition.
  # shellcheck disable=SC2086
  initdb --username="$POSTGRES_USER" $with_password $POSTGRES_INITDB_ARGS
  rm -f "$password_file"
  method=${POSTGRES_HOST_AUTH_METHOD:-$(postgres -C password_encryption)}
  printf '\nhost all all all %s\n' "$method" >>"$PGDATA/pg_hba.conf"
}

query() {
  PGPASSWORD=$POSTGRES_PASSWORD psql -v ON_ERROR_STOP=1 --no-psqlrc --quiet --username="$POSTGRES_USER" --no-password "$@"
}

run_init_files() {
  for file in /docker-entrypoint-initdb.d/*; do
    case $file in
      *.sh) if [ -x "$file" ]; then echo "$0: running $file" && "$file"; else echo "$0: sourcing $file" && . "$file"; fi ;;
      *.sql) echo "$0: running $file" && query --dbname="$POSTGRES_DB" --file="$file" ;;
      *.sql.gz) echo "$0: running $file" && gunzip -c "$file" | query --dbname="$POSTGRES_DB" ;;
      */'*') ;;
      *) echo "$0: ignoring $file" ;;
    esac
  done
}

# A server on the socket only, so that nobody connects before the initial files have run.
fill() {
  pg_ctl -D "$PGDATA" -o "-c listen_addresses='' -p ${PGPORT:-5432}" -w start
  if [ "$POSTGRES_DB" != postgres ]; then
    echo 'CREATE DATABASE :"db"' | query --dbname=postgres --set=db="$POSTGRES_DB"
  fi
  run_init_files
  pg_ctl -D "$PGDATA" -m fast -w stop
  printf '\nPostgreSQL init process complete; ready for start up.\n\n'
}

case ${1-} in -*) set -- postgres "$@" ;; esac

if [ "${1-}" = postgres ] && ! wants_help "$@"; then
  prepare_directories
  if [ "$(id -u)" = 0 ]; then
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
  fi
  read_settings
  if [ -s "$PGDATA/PG_VERSION" ]; then
    printf '\nPostgreSQL Database directory appears to contain a database; Skipping initialization\n\n'
  else
    refuse_without_password
    initialize
    fill
  fi
  unset POSTGRES_PASSWORD
fi

exec "$@"
