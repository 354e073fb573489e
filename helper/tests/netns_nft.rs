//! Openings on the real kernel, in network namespaces of their own: rulesets are loaded with `nft`, flows are tried
//! with real connections from a second namespace. Needs root, `nft` and `ip`; says so where they are missing.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, in its helpers too")]

use mesh::adapters::lock::{Lock, Wait};
use mesh::adapters::nft;
use mesh::apply::openings;
use mesh::layout::Layout;
use mesh::record::audit::Recorder;
use mesh_firewall::eval::Facts;
use mesh_firewall::walk;
use mesh_model::failure::{Failure, Kind};
use mesh_model::opening::Opening;
use serde_json::Value;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// Long enough for a packet on a veth pair, short enough for many closed ports.
const PATIENCE: Duration = Duration::from_millis(300);
/// A program that another test's thread starts holds every descriptor until its exec, the lock too.
const LOCK: Wait = Wait::AtMost(Duration::from_secs(5));
const PORTS: [u16; 5] = [22, 9442, 9443, 9444, 9500];

fn run(program: &str, args: &[&str]) {
    let out = Command::new(program).args(args).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Loads a ruleset; a closing brace may stand on the line of what it closes.
fn nft_load(text: &str) {
    let text = text.replace('}', "}\n");
    let mut child = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
}

fn nft_text() -> String {
    let out = Command::new("nft").args(["-a", "list", "ruleset"]).output().unwrap();
    assert!(out.status.success());
    String::from_utf8(out.stdout).unwrap()
}

/// The lines of nft's text, without what its counters count.
fn uncounted(text: &str) -> Vec<String> {
    let number = |w: &str| w.bytes().all(|b| b.is_ascii_digit());
    let words = |l: &str| {
        let mut kept: Vec<&str> = Vec::new();
        for w in l.split(' ') {
            if !(number(w) && kept.last().is_some_and(|k| ["packets", "bytes"].contains(k))) {
                kept.push(w);
            }
        }
        kept.join(" ")
    };
    text.lines().map(words).collect()
}

/// nft's own JSON of the ruleset, without handles and counters.
fn nft_json() -> Value {
    fn strip(v: &mut Value) {
        match v {
            Value::Object(m) => {
                m.remove("handle");
                if let Some(c) = m.get_mut("counter").and_then(Value::as_object_mut) {
                    c.remove("packets");
                    c.remove("bytes");
                }
                m.values_mut().for_each(strip);
            }
            Value::Array(a) => a.iter_mut().for_each(strip),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let out = Command::new("nft").args(["-j", "list", "ruleset"]).output().unwrap();
    assert!(out.status.success());
    let mut v = serde_json::from_slice(&out.stdout).unwrap();
    strip(&mut v);
    v
}

type Try = (SocketAddr, Option<SocketAddr>, mpsc::Sender<bool>);

/// This thread's namespace, a second one to connect from, and a folder for the mesh's files.
struct World {
    client: mpsc::Sender<Try>,
    _listeners: Vec<TcpListener>,
    dir: tempfile::TempDir,
}

/// `None` where it cannot be tried here.
fn world() -> Option<World> {
    let has = |p: &str| Command::new(p).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !nix::unistd::geteuid().is_root() || !has("nft") || !has("ip") {
        println!("skipped: needs root, nft and ip");
        return None;
    }
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    let (client, tries) = mpsc::channel::<Try>();
    let (tell, tid) = mpsc::channel();
    let (ready, go) = mpsc::channel::<()>();
    thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        tell.send(nix::unistd::gettid()).unwrap();
        go.recv().unwrap();
        for args in [
            "link set lo up",
            "link set peer0 up",
            "addr add 192.0.2.2/24 dev peer0",
            "addr add 192.0.2.66/24 dev peer0",
            "addr add 2001:db8::2/64 dev peer0 nodad",
        ] {
            run("ip", &args.split(' ').collect::<Vec<_>>());
        }
        for (to, from, answer) in tries {
            answer.send(connects(to, from)).unwrap();
        }
    });
    let tid = tid.recv().unwrap().to_string();
    for args in [
        "link set lo up".to_string(),
        format!("link add host0 type veth peer name peer0 netns {tid}"),
        "link set host0 up".into(),
        "addr add 192.0.2.1/24 dev host0".into(),
        "addr add 2001:db8::1/64 dev host0 nodad".into(),
    ] {
        run("ip", &args.split(' ').collect::<Vec<_>>());
    }
    ready.send(()).unwrap();
    let listeners = PORTS.iter().map(|p| TcpListener::bind(("::", *p)).unwrap()).collect();
    let w = World { client, _listeners: listeners, dir: tempfile::tempdir().unwrap() };
    // Neighbours and links take a moment to come up; nothing is filtered yet.
    for _ in 0..50 {
        if w.reaches("192.0.2.1:22") && w.reaches("[2001:db8::1]:22") {
            return Some(w);
        }
    }
    panic!("the namespaces do not reach each other");
}

/// A connection from `from`, or from whatever address the kernel picks.
fn connects(to: SocketAddr, from: Option<SocketAddr>) -> bool {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
    use std::os::fd::AsRawFd;
    let Some(from) = from else { return TcpStream::connect_timeout(&to, PATIENCE).is_ok() };
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
    bind(fd.as_raw_fd(), &SockaddrStorage::from(from)).unwrap();
    // Non-blocking: EINPROGRESS now, writable once it is answered.
    connect(fd.as_raw_fd(), &SockaddrStorage::from(to)).ok();
    let stream = TcpStream::from(fd);
    thread::sleep(PATIENCE);
    stream.peer_addr().is_ok()
}

impl World {
    fn reaches(&self, to: &str) -> bool {
        self.reaches_from(to, None)
    }

    fn reaches_from(&self, to: &str, from: Option<&str>) -> bool {
        let (answer, result) = mpsc::channel();
        let from = from.map(|f| format!("{f}:0").parse().unwrap());
        self.client.send((to.parse().unwrap(), from, answer)).unwrap();
        result.recv().unwrap()
    }

    /// Which of the ports are open, over IPv4 and over IPv6.
    fn open(&self) -> (Vec<u16>, Vec<u16>) {
        let over = |host: &str| PORTS.into_iter().filter(|p| self.reaches(&format!("{host}:{p}"))).collect();
        (over("192.0.2.1"), over("[2001:db8::1]"))
    }

    fn layout(&self) -> Layout {
        Layout::new(self.dir.path())
    }

    fn establish(&self, flows: &[&str]) -> anyhow::Result<usize> {
        let layout = self.layout();
        let lock = Lock::take(&layout, "adopt", LOCK)?;
        let mut recorder = Recorder::new(&layout, &lock, "alpha")?;
        openings::establish(&layout, &mut recorder, &wanted(flows))
    }

    fn close_all(&self) -> anyhow::Result<usize> {
        let layout = self.layout();
        let lock = Lock::take(&layout, "release", LOCK)?;
        let mut recorder = Recorder::new(&layout, &lock, "alpha")?;
        openings::close_all(&layout, &mut recorder)
    }

    fn restore(&self) -> openings::Report {
        openings::restore(&self.layout(), &openings::read_file(&self.layout()).unwrap()).unwrap()
    }
}

fn wanted(flows: &[&str]) -> Vec<Opening> {
    flows.iter().map(|f| Opening { module: "operator".into(), flow: f.parse().unwrap() }).collect()
}

fn failure(r: anyhow::Result<usize>) -> Failure {
    r.unwrap_err().downcast::<Failure>().unwrap()
}

fn marked() -> usize {
    let r = nft::ruleset().unwrap();
    r.rules.iter().filter(|r| walk::mark(r).is_some()).count()
}

/// The shape of a found firewall: default deny, a ban list, one port open.
const FOUND: &str = r#"
table inet filter {
    set banned { type ipv4_addr; elements = { 192.0.2.66 } }
    chain input {
        type filter hook input priority 0; policy drop;
        iif "lo" accept
        meta l4proto ipv6-icmp accept
        ct state vmap { established : accept, related : accept, invalid : drop }
        ip saddr @banned counter drop
        tcp dport 22 accept comment "admin: ssh"
    }
    chain forward { type filter hook forward priority 0; policy drop; }
}
"#;

#[test]
fn exactly_the_asked_flow_opens_and_closes_again() {
    let Some(w) = world() else { return };
    nft_load(FOUND);
    assert_eq!(w.open(), (vec![22], vec![22]));
    let (text, json) = (nft_text(), nft_json());

    assert_eq!(w.establish(&["tcp/9443"]).unwrap(), 1);
    assert_eq!(w.open(), (vec![22, 9443], vec![22, 9443]));
    assert!(!w.reaches_from("192.0.2.1:9443", Some("192.0.2.66")), "the ban list still drops");
    assert!(!w.reaches_from("192.0.2.1:22", Some("192.0.2.66")));

    // What nft shows is what it showed before, and our line.
    let after = nft_text();
    let (before, after) = (uncounted(&text), uncounted(&after));
    let strange: Vec<&String> = after.iter().filter(|l| !before.contains(l)).collect();
    let mark = wanted(&["tcp/9443"])[0].mark();
    assert_eq!((strange.len(), after.len()), (1, before.len() + 1), "{strange:?}");
    let line = strange[0].trim();
    assert!(line.starts_with("tcp dport 9443 counter"), "{line}");
    assert!(line.contains(&format!("accept comment \"{mark}\"")), "{line}");

    // Twice is one rule.
    assert_eq!(w.establish(&["tcp/9443"]).unwrap(), 0);
    assert_eq!(marked(), 1);

    assert_eq!(w.close_all().unwrap(), 1);
    assert_eq!(nft_json(), json);
    assert_eq!(w.open(), (vec![22], vec![22]));
    assert!(!w.layout().openings().exists());
}

#[test]
fn sources_interfaces_families_and_ranges_are_kept_to() {
    let Some(w) = world() else { return };
    nft_load(FOUND);
    w.establish(&[
        "tcp/9443 from 192.0.2.2",
        "tcp/9444 from 192.0.2.64/27",
        "tcp/9500 on host0 to 2001:db8::1",
        "tcp/9441-9442 on nothere",
    ])
    .unwrap();
    assert_eq!(w.open(), (vec![22, 9443], vec![22, 9500]));
    assert!(!w.reaches_from("192.0.2.1:9443", Some("192.0.2.66")));
    nft_load("delete element inet filter banned { 192.0.2.66 }");
    assert!(w.reaches_from("192.0.2.1:9444", Some("192.0.2.66")));
    assert!(!w.reaches_from("192.0.2.1:9443", Some("192.0.2.66")));
    w.close_all().unwrap();
    w.establish(&["tcp/9442-9444 on host0"]).unwrap();
    assert_eq!(w.open(), (vec![22, 9442, 9443, 9444], vec![22, 9442, 9443, 9444]));
    assert_eq!(marked(), 1, "one rule for the range and both families");
}

#[test]
fn every_base_chain_that_drops_is_opened_and_none_that_sleeps() {
    let Some(w) = world() else { return };
    nft_load(FOUND);
    nft_load(
        "table ip second { chain in { type filter hook input priority 10; tcp dport 22 accept; ct state established accept; drop; } }
         table inet third { chain in { type filter hook input priority -5; policy accept; } }
         table inet asleep { flags dormant; chain in { type filter hook input priority 0; policy drop; } }",
    );
    let json = nft_json();
    assert_eq!(w.open(), (vec![22], vec![22]));
    w.establish(&["tcp/9443"]).unwrap();
    assert_eq!(w.open(), (vec![22, 9443], vec![22, 9443]));
    assert_eq!(marked(), 2);
    w.close_all().unwrap();
    assert_eq!(nft_json(), json);
}

#[test]
fn a_drop_in_a_jumped_to_chain_is_met_there() {
    let Some(w) = world() else { return };
    nft_load(
        r#"table inet f {
            chain wan { tcp dport 22 accept; ip saddr 192.0.2.66 drop; log prefix "no: " drop; }
            chain input { type filter hook input priority 0; policy accept;
                iif lo accept; meta l4proto ipv6-icmp accept; ct state established accept
                iifname vmap { "host0" : goto wan } }
        }"#,
    );
    let e = failure(w.establish(&["tcp/9443"]));
    assert_eq!(e.kind, Kind::Refused);
    assert!(e.remedy.unwrap().contains("on IFACE"), "without an interface it cannot be told");
    w.establish(&["tcp/9443 on host0"]).unwrap();
    assert_eq!(w.open(), (vec![22, 9443], vec![22, 9443]));
    assert!(!w.reaches_from("192.0.2.1:9443", Some("192.0.2.66")));
    assert!(w.reaches_from("192.0.2.1:22", Some("192.0.2.66")));
}

#[test]
fn an_identical_rule_of_the_admin_s_stays() {
    let Some(w) = world() else { return };
    nft_load(FOUND);
    w.establish(&["tcp/9443"]).unwrap();
    nft_load(
        "add rule inet filter input tcp dport 9443 counter accept
         add rule inet filter input tcp dport 9443 counter accept comment \"mesh:v1:0123456789abcdef0\"",
    );
    assert_eq!(w.close_all().unwrap(), 1);
    assert_eq!(nft_text().matches("tcp dport 9443").count(), 2);
    assert_eq!(w.open().0, [22, 9443], "it is the admin's now");
    // What is open already gets no rule.
    assert_eq!(w.establish(&["tcp/9443"]).unwrap(), 0);
    assert_eq!(marked(), 0);
}

#[test]
fn a_reload_of_the_found_firewall_is_answered() {
    let Some(w) = world() else { return };
    nft_load(FOUND);
    w.establish(&["tcp/9443", "tcp/9444 from 192.0.2.0/24"]).unwrap();
    nft_load(&format!("flush ruleset\n{FOUND}"));
    assert_eq!(w.open().0, [22]);
    let report = w.restore();
    assert_eq!(report.added.len(), 2);
    assert_eq!(w.open(), (vec![22, 9443, 9444], vec![22, 9443]));
    assert!(w.restore().added.is_empty(), "nothing is missing: nothing is done");
    // A drop that was put before our rule: the rule moves.
    nft_load("insert rule inet filter input tcp dport 9443 drop");
    assert_eq!(w.restore().removed.len(), 1);
    assert_eq!(w.open().0, [22, 9443, 9444]);
}

#[test]
fn a_saved_ruleset_loaded_on_top_leaves_no_doubles() {
    let Some(w) = world() else { return };
    nft_load(FOUND);
    w.establish(&["tcp/9443", "tcp/9444 from 192.0.2.0/24"]).unwrap();
    let saved = nft_text();
    nft_load(&saved);
    assert_eq!(marked(), 4);
    let in_force = || openings::in_force(&w.layout(), &openings::read_file(&w.layout()).unwrap()).unwrap();
    assert_eq!(in_force(), 2, "they pass, twice over");
    let report = w.restore();
    assert_eq!((report.added.len(), report.removed.len(), marked()), (0, 2, 2));
    assert_eq!(w.open(), (vec![22, 9443, 9444], vec![22, 9443]));
    assert!(w.restore().removed.is_empty());
    // An opening that the found firewall lets pass anyway is in force without a rule of ours.
    nft_load("flush ruleset");
    assert_eq!(in_force(), 2);
}

#[test]
fn rules_are_closed_whatever_became_of_the_list() {
    let Some(w) = world() else { return };
    for broken in ["garbage", "{\"schema\": 2, \"openings\": []}", ""] {
        nft_load(&format!("flush ruleset\n{FOUND}"));
        w.establish(&["tcp/9443"]).unwrap();
        std::fs::write(w.layout().openings(), broken).unwrap();
        assert_eq!(w.close_all().unwrap(), 1, "{broken}");
        assert_eq!((marked(), w.layout().openings().exists()), (0, false), "{broken}");
    }
}

#[test]
fn what_cannot_be_opened_is_refused_by_name() {
    let Some(w) = world() else { return };
    let cases: [(&str, &[&str]); 5] = [
        (
            "table inet firewalld { chain filter_INPUT { type filter hook input priority 10; ct state established accept; reject; } }",
            &["firewalld"],
        ),
        (
            "table ip filter { chain INPUT { type filter hook input priority 0; policy drop; tcp dport 22 counter accept; } }",
            &["iptables-nft", "ip filter INPUT"],
        ),
        (
            "table ip filter { chain ufw-user-input { }; chain INPUT { type filter hook input priority 0; policy drop; jump ufw-user-input; } }",
            &["ufw", "ip filter INPUT"],
        ),
        (
            "table inet pre { chain c { type filter hook prerouting priority -300; policy drop; ct state established accept; } }",
            &["inet pre c"],
        ),
        (
            "table ip n { chain c { type nat hook prerouting priority -100; tcp dport 9443 redirect to :22; } }",
            &["redirect to :22"],
        ),
    ];
    for (ruleset, words) in cases {
        nft_load(&format!("flush ruleset\n{ruleset}"));
        let json = nft_json();
        let e = failure(w.establish(&["tcp/9443"]));
        assert_eq!(e.kind, Kind::Refused, "{ruleset}");
        for word in words {
            assert!(e.to_string().contains(word), "{e}");
        }
        assert_eq!(nft_json(), json);
        assert!(!w.layout().openings().exists());
        // The same tables stand in no other flow's way.
        if ruleset.contains("9443") {
            assert_eq!(w.establish(&["tcp/9444"]).unwrap(), 0);
            w.close_all().unwrap();
        }
    }
    nft_load("flush ruleset");
    assert!(failure(w.establish(&["tcp/80 via forward"])).what.contains("forward"));
}

#[test]
fn a_table_with_an_owner_is_refused_by_name() {
    let Some(w) = world() else { return };
    let mut owner = Command::new("nft").arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut stdin = owner.stdin.take().unwrap();
    writeln!(stdin, "add table inet theirs {{ flags owner; }}").unwrap();
    writeln!(stdin, "add chain inet theirs input {{ type filter hook input priority 0; policy drop; }}").unwrap();
    stdin.flush().unwrap();
    let there = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(20));
        nft::ruleset().unwrap().chains.len() == 1
    });
    let e = there.then(|| failure(w.establish(&["tcp/9443"])));
    drop(stdin);
    owner.wait().unwrap();
    let e = e.expect("nft -i keeps the table");
    assert_eq!(e.kind, Kind::Refused);
    assert!(e.what.contains("inet theirs input") && e.what.contains("owner"), "{e}");
}

#[test]
fn others_changes_at_the_same_time_lose_nothing() {
    let Some(w) = world() else { return };
    nft_load(FOUND);
    let json = nft_json();
    let stop = Arc::new(AtomicBool::new(false));
    let churn = {
        let stop = stop.clone();
        // A thread begins in the namespace of the thread that made it.
        thread::spawn(move || {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                nft_load("add rule inet filter input tcp dport 1 counter accept comment \"churn\"");
                nft_load("add table inet churn; delete table inet churn");
                nft_load(&format!("add table inet churn{n}; add chain inet churn{n} c; delete table inet churn{n}"));
            }
            n
        })
    };
    for _ in 0..20 {
        w.establish(&["tcp/9443", "tcp/9444"]).unwrap();
        assert_eq!(marked(), 2);
        w.close_all().unwrap();
        assert_eq!(marked(), 0);
    }
    stop.store(true, Ordering::Relaxed);
    let rounds = churn.join().unwrap();
    let added = nft_text().matches("comment \"churn\"").count();
    assert_eq!(added, rounds, "each of the other's rules is there");
    nft_load(&format!("flush ruleset\n{FOUND}"));
    assert_eq!(nft_json(), json);
}

#[test]
fn a_stale_plan_is_refused_whole_by_the_kernel() {
    let Some(_w) = world() else { return };
    nft_load(FOUND);
    let mut socket = nft::Nft::open().unwrap();
    let plan = mesh_firewall::open::plan(&socket.read().unwrap(), &Facts::default(), &wanted(&["tcp/9443"]));
    assert_eq!(plan.steps.len(), 1);
    nft_load("add table inet moved");
    assert_eq!(socket.send_plan(&plan).unwrap(), nft::Sent::Moved);
    assert_eq!(marked(), 0);
}

/// A socket as `ListenNetlink=netfilter 64` makes it, for this namespace.
fn watch_socket() -> std::os::fd::OwnedFd {
    use nix::sys::socket::{AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket};
    use std::os::fd::AsRawFd;
    let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_NONBLOCK, SockProtocol::NetlinkNetFilter);
    let fd = fd.unwrap();
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 64)).unwrap();
    fd
}

/// Starts the program as systemd starts mesh-watch.service, and returns whether it did well. The verb works on the
/// running machine only, so in a mount namespace of its own this world's folders take the machine's place.
fn activated(w: &World, fd: &std::os::fd::OwnedFd) -> bool {
    for folder in ["etc", "run", "var"] {
        std::fs::create_dir_all(w.dir.path().join(folder)).unwrap();
    }
    // Only a shell can put a descriptor at 3 and its own pid into the environment before the exec.
    let line = "mount -t overlay -o \"lowerdir=$1/etc:/etc\" none /etc && mount --bind \"$1/var\" /var && \
                mount --bind \"$1/run\" /run && LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" openings --assert 3<&0 </dev/null";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", line, env!("CARGO_BIN_EXE_mesh")]).arg(w.dir.path());
    command.stdin(fd.try_clone().unwrap());
    command.status().unwrap().success()
}

fn queued(fd: &std::os::fd::OwnedFd) -> bool {
    use nix::sys::socket::{MsgFlags, recv};
    use std::os::fd::AsRawFd;
    let mut buffer = [0; 64];
    recv(fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT).is_ok()
}

#[test]
fn the_watcher_puts_back_what_a_reload_took_and_names_who_did_it() {
    let Some(w) = world() else { return };
    nft_load(FOUND);
    w.establish(&["tcp/9443"]).unwrap();
    let layout = w.layout();
    let mode = |text: &str| std::fs::write(layout.mode(), text).unwrap();
    let ledger = || std::fs::read_to_string(layout.ledger()).unwrap();
    mode("adopted\n");
    let socket = watch_socket();
    nft_load(&format!("flush ruleset\n{FOUND}"));
    assert!(queued(&socket));
    assert!(activated(&w, &socket));
    assert_eq!(w.open().0, [22, 9443]);
    let last = ledger().lines().last().unwrap().to_string();
    assert!(last.contains("opening-restored") && last.contains("\"committer\":\"nft\""), "{last}");

    // Its own change wakes it once more; then there is nothing to do, to write, or to wake for.
    let before = (ledger(), nft_text());
    assert!(queued(&socket));
    assert!(activated(&w, &socket));
    assert!(!queued(&socket));
    assert_eq!((ledger(), uncounted(&nft_text())), (before.0, uncounted(&before.1)));

    // Unmanaged it does nothing, and still takes the message.
    mode("unmanaged\n");
    nft_load(&format!("flush ruleset\n{FOUND}"));
    assert!(activated(&w, &socket));
    assert_eq!(marked(), 0);
    assert!(!queued(&socket));
}

/// Every ruleset of the folder `MESH_RULESETS` that this kernel and nft can load is read without an error, and what of
/// it is not understood is listed.
#[test]
fn real_rulesets_are_read() {
    let Some(folder) = std::env::var_os("MESH_RULESETS") else {
        println!("skipped: MESH_RULESETS names no folder of .nft files");
        return;
    };
    if world().is_none() {
        return;
    }
    let mut read = 0;
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    for path in files.iter().filter(|p| p.extension().is_some_and(|e| e == "nft")) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        run("nft", &["flush", "ruleset"]);
        let out = Command::new("nft").arg("-f").arg(path).output().unwrap();
        if !out.status.success() {
            let why = String::from_utf8_lossy(&out.stderr);
            println!("{name}: not loaded here: {}", why.lines().next().unwrap_or(""));
            continue;
        }
        let r = nft::ruleset().unwrap();
        let unknown: std::collections::BTreeSet<String> = r
            .rules
            .iter()
            .flat_map(|r| &r.exprs)
            .filter_map(|e| match e {
                mesh_firewall::ir::Expr::Unknown { name, .. } => Some(name.clone()),
                _ => None,
            })
            .collect();
        let elements: usize = r.sets.iter().map(|s| s.elements.len()).sum();
        println!("{name}: {} rules, {} sets, {elements} elements, unknown: {unknown:?}", r.rules.len(), r.sets.len());
        for rule in &r.rules {
            assert!(!mesh_firewall::text::rule(&r, rule).is_empty(), "a rule of {name} has no words: {rule:?}");
        }
        mesh_firewall::open::plan(&r, &Facts::default(), &wanted(&["tcp/9443", "udp/53-5353", "icmp", "esp"]));
        read += 1;
    }
    assert!(read > 0, "nothing could be loaded");
}
