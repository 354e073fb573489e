//! DESIGN §6.4: the found tables go to sleep and the mesh's own comes first, in one transaction, and back. Streams that
//! the found tables translate (DNAT, masquerade, both at once for a hairpin) keep flowing if, and only if, the mesh's
//! table has a NAT chain, an empty one, before the last found one of the family sleeps.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mesh_tests_vm::{Bed, Node, Vm};

use crate::Notes;

const ROUNDS: u32 = 3;

/// client — gateway (the firewall under test) — server, each a namespace of the machine. The client has no route to the
/// server's network: what is not translated does not arrive.
const WORLD: &str = "set -e
for n in client gateway server; do ip netns add $n; ip -n $n link set lo up; done
join() { # namespace, its link, gateway's link, v4 and v6 prefixes
  ip -n $1 link add eth0 type veth peer name $2 netns gateway
  ip -n $1 addr add $3.2/24 dev eth0; ip -n $1 addr add $4::2/64 dev eth0 nodad; ip -n $1 link set eth0 up
  ip -n gateway addr add $3.1/24 dev $2; ip -n gateway addr add $4::1/64 dev $2 nodad; ip -n gateway link set $2 up
}
join client out 192.0.2 2001:db8
join server in 10.0.0 fd00
ip -n server route add default via 10.0.0.1; ip -n server route add default via fd00::1
ip netns exec gateway sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
";

/// What the found filter and the mesh's have in common here.
const FILTER: &str = "
  chain input {
    type filter hook input priority PRIORITY; policy drop;
    ct state established,related accept
    icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-advert } accept
    counter drop
  }
  chain forward {
    type filter hook forward priority PRIORITY; policy drop;
    ct state established,related accept
    ct status dnat accept
    iifname in accept
    counter drop
  }
";

const NAT4: &str = "
  chain dnat4 {
    type nat hook prerouting priority dstnat; policy accept;
    ip daddr 192.0.2.1 meta l4proto { tcp, udp } th dport 8080 counter dnat FAMILY to 10.0.0.2:80
  }
  chain snat4 {
    type nat hook postrouting priority srcnat; policy accept;
    oifname out ip saddr 10.0.0.0/24 counter masquerade
    ip saddr 10.0.0.0/24 ip daddr 10.0.0.2 counter masquerade
  }
";

const NAT6: &str = "
  chain dnat6 {
    type nat hook prerouting priority dstnat; policy accept;
    ip6 daddr 2001:db8::1 meta l4proto { tcp, udp } th dport 8080 counter dnat FAMILY to [fd00::2]:80
  }
  chain snat6 {
    type nat hook postrouting priority srcnat; policy accept;
    oifname out ip6 saddr fd00::/64 counter masquerade
    ip6 saddr fd00::/64 ip6 daddr fd00::2 counter masquerade
  }
";

/// How the found firewall is laid out.
struct Layout {
    name: &'static str,
    ruleset: String,
    tables: &'static [&'static str],
}

fn layouts() -> [Layout; 2] {
    let filter = format!("table inet filter {{ {} }}\n", FILTER.replace("PRIORITY", "0"));
    [
        Layout {
            name: "NAT in ip and ip6",
            ruleset: format!(
                "{filter} table ip nat {{ {} }}\n table ip6 nat {{ {} }}\n",
                NAT4.replace("FAMILY", ""),
                NAT6.replace("FAMILY", "")
            ),
            tables: &["inet filter", "ip nat", "ip6 nat"],
        },
        Layout {
            name: "NAT in inet",
            ruleset: format!(
                "{filter} table inet nat {{ {} {} }}\n",
                NAT4.replace("FAMILY", "ip"),
                NAT6.replace("FAMILY", "ip6")
            ),
            tables: &["inet filter", "inet nat"],
        },
    ]
}

/// The flip: the mesh's table first, then the found ones to sleep.
fn flip(layout: &Layout, with_nat: bool) -> String {
    let nat = if with_nat { "chain nat { type nat hook prerouting priority dstnat + 1; policy accept; }" } else { "" };
    let mesh = format!("table inet mesh {{ {nat} {} }}\n", FILTER.replace("PRIORITY", "-10"));
    layout.tables.iter().fold(mesh, |batch, table| batch + &format!("table {table} {{ flags dormant; }}\n"))
}

/// Its inverse: the found ones wake, then the mesh's goes.
fn back(layout: &Layout) -> String {
    let wake: String = layout.tables.iter().map(|table| format!("add table {table}\n")).collect();
    wake + "delete table inet mesh\n"
}

/// The whole spike.
pub fn spike(_: &Bed, vm: &mut Vm, notes: &mut Notes) -> Result<()> {
    vm.run(WORLD)?;
    for layout in layouts() {
        for with_nat in [true, false] {
            let batches = [
                ("/run/found.nft", format!("flush ruleset\n{}", layout.ruleset)),
                ("/run/flip.nft", flip(&layout, with_nat)),
                ("/run/back.nft", back(&layout)),
            ];
            for (place, text) in batches {
                vm.run(&format!("cat >{place} <<'END'\n{text}END"))?;
            }
            vm.run("ip netns exec gateway nft -f /run/found.nft")?;
            start_streams(vm)?;
            if with_nat {
                flows(vm, &layout, notes)?
            } else {
                stops(vm, &layout, notes)?
            }
            stop_streams(vm)?;
        }
    }
    Ok(())
}

fn start_streams(vm: &mut Vm) -> Result<()> {
    let stream = |kind: &str, v4: &str, v6: &str| {
        ["tcp", "udp"].map(|p| format!("{kind}-{p}-v4={p}/{v4} {kind}-{p}-v6={p}/{v6}")).join(" ")
    };
    let run = "setsid -f ip netns exec";
    vm.run(&format!(
        "set -e; rm -rf /run/streams; mkdir /run/streams; ip netns exec gateway conntrack -F 2>/dev/null
        {run} server mesh-test-stream serve 10.0.0.2:80 '[fd00::2]:80' >/run/serve.log 2>&1
        {run} client mesh-test-stream serve 192.0.2.2:9000 '[2001:db8::2]:9000' >/run/serve.log 2>&1
        sleep 0.5
        {run} client mesh-test-stream send /run/streams {dnat} >/run/send.log 2>&1
        {run} server mesh-test-stream send /run/streams {masquerade} {hairpin} >/run/send.log 2>&1",
        dnat = stream("dnat", "192.0.2.1:8080", "[2001:db8::1]:8080"),
        masquerade = stream("masquerade", "192.0.2.2:9000", "[2001:db8::2]:9000"),
        hairpin = stream("hairpin", "192.0.2.1:8080", "[2001:db8::1]:8080"),
    ))?;
    let all = "[ $(grep -l 'echoed=[1-9]' /run/streams/* | wc -l) = 12 ]";
    vm.wait_for(&format!("{all} || {{ head /run/streams/* /run/s*.log; false; }}"), Duration::from_secs(30))?;
    // Each is really translated: the server and the client know the gateway's addresses only.
    let translated = vm.run("ip netns exec gateway conntrack -L 2>/dev/null | grep -c . ; ip netns exec gateway conntrack -L -f ipv6 2>/dev/null | grep -c .")?;
    ensure!(translated.split_whitespace().all(|n| n != "0"), "the gateway tracks nothing: {translated}");
    Ok(())
}

fn stop_streams(vm: &mut Vm) -> Result<()> {
    vm.run("pkill -x mesh-test-strea; for i in $(seq 50); do pgrep -x mesh-test-strea >/dev/null || exit 0; sleep 0.1; done; exit 1")
        .map(drop)
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Stream {
    echoed: u64,
    lost: u64,
    worst_ms: u64,
    error: Option<String>,
}

fn streams(vm: &mut Vm) -> Result<BTreeMap<String, Stream>> {
    let text = vm.run("cd /run/streams; grep -H . *")?;
    text.lines()
        .map(|line| {
            let (name, state) = line.split_once(':').context("no stream")?;
            let (numbers, error) = match state.split_once(" error=") {
                Some((numbers, error)) => (numbers, Some(error.to_owned())),
                None => (state, None),
            };
            let numbers: Vec<u64> =
                numbers.split(' ').filter_map(|word| word.split_once('=')?.1.parse().ok()).collect();
            let [echoed, lost, worst_ms] = numbers[..] else { anyhow::bail!("no state of a stream: {line}") };
            Ok((name.to_owned(), Stream { echoed, lost, worst_ms, error }))
        })
        .collect()
}

/// Which streams got an echo within the next two seconds, and which did not.
fn moving(vm: &mut Vm) -> Result<(Vec<String>, Vec<String>)> {
    let before = streams(vm)?;
    std::thread::sleep(Duration::from_secs(2));
    let (moving, still): (Vec<_>, Vec<_>) = streams(vm)?
        .into_iter()
        .partition(|(name, stream)| before.get(name).is_some_and(|was| stream.echoed > was.echoed));
    let names = |streams: Vec<(String, Stream)>| streams.into_iter().map(|(name, _)| name).collect();
    Ok((names(moving), names(still)))
}

/// The ruleset with handles, without what packets change.
const RULESET: &str = "ip netns exec gateway nft -a list ruleset | sed -E 's/packets [0-9]+ bytes [0-9]+//'";

fn flows(vm: &mut Vm, layout: &Layout, notes: &mut Notes) -> Result<()> {
    let found = vm.run(RULESET)?;
    for round in 1..=ROUNDS {
        for batch in ["flip", "back"] {
            vm.run(&format!("ip netns exec gateway nft -f /run/{batch}.nft"))?;
            let (_, still) = moving(vm)?;
            ensure!(still.is_empty(), "{}, round {round}, after {batch}: {still:?} stand still", layout.name);
        }
        let now = vm.run(RULESET)?;
        ensure!(now == found, "{}, round {round}: the ruleset differs\n{found}\n{now}", layout.name);
    }
    let all = streams(vm)?;
    let broken: Vec<_> = all.iter().filter(|(_, s)| s.lost > 0 || s.error.is_some()).collect();
    ensure!(broken.is_empty(), "{}: {broken:?}", layout.name);
    let echoed: u64 = all.values().map(|s| s.echoed).sum();
    let worst = all.values().map(|s| s.worst_ms).max().unwrap_or(0);
    notes.saw(format!(
        "{}, with an empty NAT chain: {ROUNDS} times forth and back, {} streams, {echoed} packets, 0 lost, none broken, \
         longest wait {worst} ms, ruleset and handles as before each time",
        layout.name,
        all.len()
    ));
    Ok(())
}

/// The control: the same without the NAT chain.
fn stops(vm: &mut Vm, layout: &Layout, notes: &mut Notes) -> Result<()> {
    vm.run("ip netns exec gateway nft -f /run/flip.nft")?;
    let (moving_on, still) = moving(vm)?;
    notes.saw(format!(
        "{}, control without one: asleep, {} stand still, flowing: {moving_on:?}",
        layout.name,
        still.len()
    ));
    ensure!(moving_on.is_empty(), "{}: they flow without a NAT chain: {moving_on:?}", layout.name);
    vm.run("ip netns exec gateway nft -f /run/back.nft")?;
    let (again, never) = moving(vm)?;
    let errors: Vec<_> =
        streams(vm)?.into_iter().filter_map(|(name, s)| Some(format!("{name}: {}", s.error?))).collect();
    notes.saw(format!(
        "{}, control, awake again: flowing {again:?}, standing {never:?}, errors {errors:?}",
        layout.name
    ));
    Ok(())
}
