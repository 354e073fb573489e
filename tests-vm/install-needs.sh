#!/bin/bash
# Installs what building Mesh and booting its test machines need on a fresh Debian 12 or 13. As root; does nothing
# where all of it is there already.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
packages=(gcc libc6-dev make iproute2 nftables python3-minimal mmdebstrap systemd-container e2fsprogs xz-utils zstd
  qemu-system-x86 qemu-utils util-linux)
# The toolchain that is there, if it is new enough; else the distribution's.
new_enough() {
  local version
  version=$(rustc --version 2>/dev/null) || return 1
  command -v cargo >/dev/null && version=${version#rustc } && version=${version%% *} &&
    [ "$(printf '%s\n' 1.85 "$version" | sort -V | head -1)" = 1.85 ]
}
if ! new_enough; then
  . /etc/os-release
  if [ "${VERSION_ID:-}" = 12 ]; then packages+=(rustc-web cargo-web); else packages+=(rustc cargo); fi
fi
missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
apt-get -qq update
# All of them are named, so that none is removed for another.
if ! apt-get -qq install -y --no-install-recommends "${packages[@]}"; then
  # A tool of qemu installed from elsewhere holds the system emulator back: all of qemu goes to the version that apt
  # would take for the emulator.
  version=$(LC_ALL=C apt-cache policy qemu-system-x86 | sed -n 's/^ *Candidate: //p')
  pinned=()
  others=()
  for package in "${packages[@]}"; do [[ $package == qemu-* ]] || others+=("$package"); done
  for package in $(dpkg-query -W -f '${binary:Package} ${db:Status-Status}\n' 'qemu-*' 2>/dev/null |
    sed -n 's/ installed$//p') qemu-system-x86 qemu-utils; do
    LC_ALL=C apt-cache madison "$package" | grep -F " $version " >/dev/null && pinned+=("$package=$version")
  done
  apt-get -qq install -y --no-install-recommends --allow-downgrades "${pinned[@]}" "${others[@]}"
fi
