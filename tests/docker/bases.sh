#!/usr/bin/env bash
# Base images for a machine that cannot pull any: Debian packages, brought in by debootstrap.
#
#   tests/docker/bases.sh        as root; does nothing for a base that is there
#
# Tags: noetl-chain-base/python, …/postgres, …/prometheus.  They stand in for the images that
# the compose file names, with the parts of their behaviour that it uses.
set -euo pipefail
cd "$(dirname "$0")"

suite=bookworm
mirror=$(awk '/^URIs:/ { print $2; exit } /^deb / { print $2; exit }' /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

there() { docker image inspect "noetl-chain-base/$1" >/dev/null 2>&1; }

root() { # root PACKAGES: one rootfs for all bases, made once
    if [ ! -d "$work/root" ]; then
        debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
            "$suite" "$work/root" "$mirror" >"$work/log" 2>&1 || { tail -5 "$work/log" >&2; exit 1; }
        ln -sf python3 "$work/root/usr/bin/python"
        cp /etc/apt/sources.list "$work/root/etc/apt/" 2>/dev/null || true
        cp -r /etc/apt/sources.list.d /etc/apt/apt.conf.d /etc/apt/trusted.gpg.d "$work/root/etc/apt/" 2>/dev/null || true
        cp -r /usr/share/keyrings "$work/root/usr/share/" 2>/dev/null || true
        cp /etc/resolv.conf "$work/root/etc/" 2>/dev/null || true
    fi
}

with() { # with NAME PACKAGES…: a copy with more packages
    local name=$1
    shift
    cp -a "$work/root" "$work/$name"
    printf '#!/bin/sh\nexit 101\n' >"$work/$name/usr/sbin/policy-rc.d" # start nothing
    chmod +x "$work/$name/usr/sbin/policy-rc.d"
    chroot "$work/$name" sh -c "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $*" >"$work/log" 2>&1 ||
        { tail -5 "$work/log" >&2; exit 1; }
}

import() { # import FOLDER TAG CHANGES…
    local folder=$1 tag=$2 change
    shift 2
    local changes=()
    for change in "$@"; do changes+=(--change "$change"); done
    tar -C "$folder" --exclude=./proc/* --exclude=./sys/* --exclude=./dev/* --exclude=./var/cache/apt/* \
        --exclude=./var/lib/apt/lists/* -c . | docker import "${changes[@]}" - "noetl-chain-base/$tag" >/dev/null
    echo "made noetl-chain-base/$tag"
}

if ! there python; then
    root
    import "$work/root" python
fi
if ! there postgres; then
    root
    with postgres postgresql
    install -m 0755 postgres-entrypoint "$work/postgres/usr/local/bin/"
    install -d -o 0 -g 0 "$work/postgres/var/lib/postgresql/data"
    import "$work/postgres" postgres 'ENTRYPOINT ["postgres-entrypoint"]' \
        "ENV PATH=$(cd "$work/postgres" && ls -d usr/lib/postgresql/*/bin | sed 's|^|/|'):/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
fi
if ! there prometheus; then
    root
    with prometheus prometheus
    install -d -o 65534 -g 65534 "$work/prometheus/prometheus"
    import "$work/prometheus" prometheus 'ENTRYPOINT ["/usr/bin/prometheus"]' 'USER 65534:65534'
fi
