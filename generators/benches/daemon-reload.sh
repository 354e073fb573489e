#!/bin/bash
# What a daemon-reload costs with 1,000 modules catalogued and none of them assigned, beside the same without them, in turns.
# To be run as root in a booted throw-away machine where the mesh is installed and adopted. Prints medians; fails on no time.
set -euo pipefail
runs=${1:-20}
modules=${2:-1000}
folder=/etc/mesh/catalogue
[ "$(cat /etc/mesh/mode 2>/dev/null)" = adopted ] || { echo "this machine is not adopted: nothing to measure" >&2; exit 1; }

kept=$(mktemp -d /etc/mesh/.catalogue.XXXXXX)
trap 'rm -rf "$kept"; for n in $(seq "$modules"); do rm -f "$folder/bench$n.toml"; done' EXIT
for n in $(seq "$modules"); do
  printf 'schema = 1\nsummary = "Number %d"\n\n[[port]]\nname = "http"\nprotocol = "tcp"\nport = %d\nscope = "any"\n\n[run]\nexec = ["/usr/bin/bench%d"]\n' \
    "$n" $((20000 + n)) "$n" >"$kept/bench$n.toml"
done
mkdir -p "$folder"

reload() { # one reload, in microseconds
  local begin=${EPOCHREALTIME/[.,]/}
  systemctl daemon-reload
  echo $((${EPOCHREALTIME/[.,]/} - begin))
}
median() { sort -n | awk '{ a[NR] = $1 } END { printf "%.1f", a[int((NR + 1) / 2)] / 1000 }'; }

reload >/dev/null
for _ in $(seq "$runs"); do
  reload >>"$kept/without"
  find "$kept" -name '*.toml' -exec mv -t "$folder" {} +
  reload >>"$kept/with"
  find "$folder" -name 'bench*.toml' -exec mv -t "$kept" {} +
done
echo "daemon-reload, median of $runs, in turns: $(median <"$kept/without") ms without, $(median <"$kept/with") ms with $modules modules catalogued"
