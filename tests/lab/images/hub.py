"""Recipes of the images that are shaped like the hub's postgres, nginx and redis.

Same user ids, paths, variables, volumes, ports and signals as there; the programs are Debian's. Like the hub's nginx,
ours has log files that are links to /dev/stdout and /dev/stderr, and writes to /var/cache/nginx and /run.
"""

import tarfile
from collections.abc import Callable
from pathlib import Path

from tests.lab.images.debian import architecture, base_layer, layer_over_base
from tests.lab.oci import Image, add_directory, add_file, add_symlink, image, layer

_FILES = Path(__file__).with_name("files")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The user of the hub's alpine image is 70; Debian's package keeps an account that exists.
_POSTGRES = """
groupadd --system --gid 70 postgres
useradd --system --uid 70 --gid postgres --home-dir /var/lib/postgresql --shell /bin/sh postgres
mkdir -p /etc/postgresql-common
echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf
apt-get update -qq
apt-get install -qq --yes --no-install-recommends postgresql-15 >/dev/null
rm -rf /var/lib/postgresql
install --directory --owner postgres --group postgres --mode 1777 /var/lib/postgresql
install --directory --owner postgres --group postgres --mode 3777 /run/postgresql
mkdir /docker-entrypoint-initdb.d
sed -i "s/^#listen_addresses = 'localhost'/listen_addresses = '*'/" /usr/share/postgresql/15/postgresql.conf.sample
"""
# Just-in-time compilation is optional and its library larger than all the rest together.
_POSTGRES_LEFT_OUT = ("libLLVM", "llvmjit", "/bitcode/", "libz3.so")

_NGINX = """
groupadd --system --gid 101 nginx
useradd --system --uid 101 --gid nginx --home-dir /nonexistent --no-create-home --shell /bin/false nginx
apt-get update -qq
apt-get install -qq --yes --no-install-recommends nginx-light >/dev/null
rm -rf /etc/nginx/sites-* /etc/nginx/modules-* /var/www /etc/nginx/conf.d
mkdir -p /etc/nginx/conf.d /docker-entrypoint.d
printf '<!DOCTYPE html>\\n<title>Welcome to nginx!</title>\\n' > /usr/share/nginx/html/index.html
"""

_REDIS = """
groupadd --system --gid 999 redis
useradd --system --uid 999 --gid redis --home-dir /nonexistent --no-create-home redis
apt-get update -qq
apt-get install -qq --yes --no-install-recommends redis-server >/dev/null
install --directory --owner redis --group redis /data
"""


def postgres() -> Image:
    """`library/postgres`: starts as root, owns PGDATA, drops to postgres, initialises, serves on 5432."""
    packages = layer_over_base(_POSTGRES, lambda name: not any(part in name for part in _POSTGRES_LEFT_OUT))
    top = layer(_entrypoint("postgres-entrypoint.sh", lambda tar: None))
    config = {
        "Env": [
            f"PATH=/usr/lib/postgresql/15/bin:{_PATH}",
            "LANG=C.UTF-8",
            "PG_MAJOR=15",
            "PGDATA=/var/lib/postgresql/15/docker",
        ],
        "Entrypoint": ["docker-entrypoint.sh"],
        "Cmd": ["postgres"],
        "ExposedPorts": {"5432/tcp": {}},
        "Volumes": {"/var/lib/postgresql": {}},
        "StopSignal": "SIGINT",
    }
    return image([base_layer(), packages, top], config, architecture=architecture())


def nginx() -> Image:
    """`library/nginx`: the master stays root, workers are uid 101, port 80."""

    def configure(tar: tarfile.TarFile) -> None:
        add_file(tar, "etc/nginx/nginx.conf", (_FILES / "nginx.conf").read_bytes())
        add_file(tar, "etc/nginx/conf.d/default.conf", (_FILES / "nginx-default.conf").read_bytes())
        add_directory(tar, "var/log/nginx")
        add_symlink(tar, "var/log/nginx/access.log", "/dev/stdout")
        add_symlink(tar, "var/log/nginx/error.log", "/dev/stderr")
        add_directory(tar, "var/cache/nginx")

    top = layer(_entrypoint("nginx-entrypoint.sh", configure, directory=""))
    config = {
        "Env": [f"PATH={_PATH}"],
        "Entrypoint": ["/docker-entrypoint.sh"],
        "Cmd": ["nginx", "-g", "daemon off;"],
        "ExposedPorts": {"80/tcp": {}},
        "StopSignal": "SIGQUIT",
    }
    return image([base_layer(), layer_over_base(_NGINX), top], config, architecture=architecture())


def redis() -> Image:
    """`library/redis`: starts as root in /data, drops to uid 999, port 6379."""
    top = layer(_entrypoint("redis-entrypoint.sh", lambda tar: None))
    config = {
        "Env": [f"PATH={_PATH}"],
        "Entrypoint": ["docker-entrypoint.sh"],
        "Cmd": ["redis-server"],
        "WorkingDir": "/data",
        "ExposedPorts": {"6379/tcp": {}},
        "Volumes": {"/data": {}},
    }
    return image([base_layer(), layer_over_base(_REDIS), top], config, architecture=architecture())


def _entrypoint(
    file: str, more: Callable[[tarfile.TarFile], None], directory: str = "usr/local/bin/"
) -> Callable[[tarfile.TarFile], None]:
    def write(tar: tarfile.TarFile) -> None:
        add_file(tar, f"{directory}docker-entrypoint.sh", (_FILES / file).read_bytes(), 0o755)
        more(tar)

    return write
