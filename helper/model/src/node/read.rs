//! Reads `node.toml`: every check that needs no machine, every fault in one go.

use super::{
    ControlProcess, CronEntry, DeclaredOpening, Endpoint, FlipSettings, FoundFirewall, FoundationPort, Node, Overlay,
    Peer, Predecessor, Role,
};
use crate::diagnostic::Diagnostics;
use crate::document::{At, Document, Item, Table, Value, clip};
use crate::flow::{Flow, PortProtocol};
use crate::manifest::{FOUNDATION_MODULES, ModuleName, read_files};
use crate::unit::UnitName;
use crate::walk::{Placed, Section, Walk, Wrong, before, port, taken, twice};
use crate::words;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The keys of `node.toml`.
const ROOT: &[&str] =
    &["schema", "name", "role", "modules", "foundation", "overlay", "predecessor", "file", "opening", "flip"];
/// The keys of `[foundation]`: the modules, and `at` on a node.
const FOUNDATION: &[&str] = &["at", "store", "bus", "registry", "overlay"];

/// Validates a merged `node.toml`; the error holds every fault, in file order.
pub fn read(doc: &Document) -> Result<Node, Diagnostics> {
    let mut walk = Walk::new(doc);
    let node = root(&mut walk);
    walk.finish(node).map(|(node, origins)| Node { origins, ..node })
}

/// The assigned modules of a `node.toml` that may have faults: what of it can be read, unchecked.
pub fn assigned(doc: &Document) -> Vec<&str> {
    let Some(Value::Array(items)) = doc.root().get("modules").map(|e| &e.item.value) else { return Vec::new() };
    items
        .iter()
        .filter_map(|i| match &i.value {
            Value::String(s) => Some(s.as_str()),
            _ => None,
        })
        .collect()
}

fn root(walk: &mut Walk<'_>) -> Option<Node> {
    let root = walk.section(walk.doc.root(), walk.doc.beginning(), "", ROOT);
    root.schema(walk);
    let name = root
        .required(walk, "name", "\"NAME\", the node's name")
        .and_then(|(text, at)| taken(walk, at, words::node(text)));
    let role = root.required(walk, "role", "\"control\" or role = \"node\"").and_then(|(text, at)| match text {
        "control" => Some(Role::Control),
        "node" => Some(Role::Node),
        _ => {
            walk.fault(at, format!("{text:?} is not a role"), "it is \"control\" or \"node\"");
            None
        }
    });
    let modules = root.each(walk, "modules", |t| ModuleName::new(t).map_err(words::split));
    for (i, (_, at)) in modules.iter().enumerate() {
        walk.keep(format!("modules.{i}"), *at);
    }
    let modules: Vec<ModuleName> = modules.into_iter().map(|(m, _)| m).collect();
    let (foundation, foundation_at) = foundation(walk, &root, role);
    let overlay = root.table(walk, "overlay").and_then(|(t, at)| overlay(walk, t, at, name.as_deref()));
    let predecessor = root.table(walk, "predecessor").map(|(t, at)| predecessor(walk, t, at)).unwrap_or_default();
    let files = read_files(walk, &root);
    let openings = openings(walk, &root, &modules);
    let flip = flip(walk, &root, &modules);
    Some(Node {
        name: name?,
        role: role?,
        foundation,
        foundation_at,
        overlay,
        predecessor,
        files,
        openings,
        modules,
        flip,
        origins: Default::default(),
    })
}

fn foundation(
    walk: &mut Walk<'_>,
    root: &Section<'_>,
    role: Option<Role>,
) -> (BTreeMap<FoundationPort, Endpoint>, Option<String>) {
    let mut given: BTreeMap<FoundationPort, (Endpoint, At)> = BTreeMap::new();
    let mut control_at = None;
    match root.table(walk, "foundation") {
        None => {
            if role == Some(Role::Node) && !root.has("foundation") {
                root.missing(walk, "foundation", "add [foundation] with at = \"NAME-or-address\" of the control-node");
            }
        }
        Some((table, at)) => {
            let section = walk.section(table, at, "[foundation]", FOUNDATION);
            for module in &FOUNDATION[1..] {
                let Some((ports, at)) = section.table(walk, module) else { continue };
                foundation_module(walk, module, ports, at, role, &mut given);
            }
            let found = section.parsed(walk, "at", host);
            match role {
                Some(Role::Control) if section.has("at") => walk.fault_as(
                    section.key_at("at"),
                    "at",
                    "[foundation] at on a control-node, which has the foundation itself",
                    "remove it, or write role = \"node\"",
                ),
                Some(Role::Node) if !section.has("at") => {
                    section.missing(walk, "at", "add at = \"NAME-or-address\" of the control-node");
                }
                _ => control_at = found,
            }
        }
    }
    let mut claimed: BTreeMap<(PortProtocol, u16), (FoundationPort, Endpoint)> = BTreeMap::new();
    let mut all = BTreeMap::new();
    // What is given comes first, so that a clash with a standard port points at the line that can be changed.
    let order = given.keys().copied().chain(FoundationPort::ALL.into_iter().filter(|p| !given.contains_key(p)));
    for which in order.collect::<Vec<_>>() {
        let place = given.get(&which).map(|(_, at)| *at);
        let endpoint =
            given.get(&which).map_or(Endpoint { port: which.standard(), address: None }, |(endpoint, _)| *endpoint);
        all.insert(which, endpoint);
        let Some((other, theirs)) = claimed.insert((which.protocol(), endpoint.port), (which, endpoint)) else {
            continue;
        };
        let apart = matches!((endpoint.address, theirs.address), (Some(a), Some(b)) if a != b);
        let at = place.or_else(|| given.get(&other).map(|(_, at)| *at));
        if let (false, Some(at), Some(Role::Control)) = (apart, at, role) {
            walk.fault(
                at,
                format!("{} and {} both have port {}", other.key(), which.key(), endpoint.port),
                "give each foundation port a number of its own",
            );
        }
    }
    for (which, (_, at)) in given {
        walk.keep(format!("foundation.{}", which.key()), at);
    }
    (all, control_at)
}

fn foundation_module(
    walk: &mut Walk<'_>,
    module: &str,
    ports: &Table,
    at: At,
    role: Option<Role>,
    given: &mut BTreeMap<FoundationPort, (Endpoint, At)>,
) {
    let known: &'static [&'static str] = match module {
        "store" => &["sql"],
        "bus" => &["amqp", "management", "epmd", "dist"],
        "registry" => &["http"],
        _ => &["wg"],
    };
    let section = walk.section(ports, at, &format!("[foundation] {module}"), known);
    for name in known {
        let key = format!("{module}.{name}");
        let (Some(item), Some(which)) = (section.item(name), FoundationPort::from_key(&key)) else { continue };
        if role == Some(Role::Node) {
            walk.fault_as(
                section.key_at(name),
                *name,
                format!("{key} on a node: the foundation's ports are the control-node's to give"),
                "remove it, or write role = \"control\"",
            );
            continue;
        }
        if let Some(endpoint) = endpoint(walk, &key, item) {
            given.insert(which, (endpoint, item.at));
        }
    }
}

fn endpoint(walk: &mut Walk<'_>, key: &str, item: &Item) -> Option<Endpoint> {
    let Value::Table(table) = &item.value else {
        return port(walk, key, item).map(|port| Endpoint { port, address: None });
    };
    let s = walk.section(table, item.at, key, &["port", "address"]);
    let number = match s.item("port") {
        Some(item) => port(walk, &format!("{key} port"), item),
        None => {
            s.missing(walk, "port", "add port = NUMBER, or write the number alone");
            None
        }
    };
    let address = s.parsed(walk, "address", |text| {
        text.parse::<IpAddr>().map_err(|_| {
            (format!("{text:?} is not an address"), "write one IPv4 or IPv6 address, such as \"127.0.0.1\"".into())
        })
    });
    Some(Endpoint { port: number?, address })
}

fn host(text: &str) -> Result<String, Wrong> {
    if text.parse::<IpAddr>().is_ok() || words::node(text).is_ok() {
        return Ok(text.to_string());
    }
    Err((
        format!("{text:?} is neither a node's name nor an address"),
        "write such as \"alpha\" or \"10.88.0.1\"".into(),
    ))
}

fn overlay(walk: &mut Walk<'_>, table: &Table, at: At, me: Option<&str>) -> Option<Overlay> {
    let section = walk.section(table, at, "[overlay]", &["address", "interface", "peers"]);
    let address = section.required(walk, "address", "\"10.88.0.1/16\"").and_then(|(text, at)| {
        let parsed = match text.parse::<IpNet>() {
            Ok(net) if net.addr() == net.network() && net.prefix_len() < net.max_prefix_len() - 1 => Err((
                format!("{text:?} is a network, not this node's address in it"),
                format!(
                    "write this node's address with the network's length, such as \"{}/{}\"",
                    following(net),
                    net.prefix_len()
                ),
            )),
            Ok(net) => Ok(net),
            Err(_) if text.parse::<IpAddr>().is_ok() => Err((
                format!("{text:?} has no prefix length"),
                format!("write \"{text}/16\" with the network's length"),
            )),
            Err(_) => Err((
                format!("{text:?} is not an address with a prefix length"),
                "write such as \"10.88.0.1/16\"".into(),
            )),
        };
        taken(walk, at, parsed)
    });
    let interface = section.parsed(walk, "interface", words::interface).unwrap_or_else(|| "mesh0".into());
    let mut peers = Vec::new();
    let mut names: BTreeMap<String, At> = BTreeMap::new();
    let mut keys: BTreeMap<String, At> = BTreeMap::new();
    for (table, at) in
        section.tables(walk, "peers", "write peers = [{ name = \"…\", public_key = \"…\", allowed = [\"…\"] }]")
    {
        let peer = walk.section(table, at, "peers", &["name", "public_key", "endpoint", "allowed"]);
        let name = peer.required(walk, "name", "\"NAME\" of the other node").and_then(|(text, at)| {
            let name = taken(walk, at, words::node(text))?;
            if me == Some(name.as_str()) {
                walk.fault(at, format!("peer {name} is this node"), "list only the other nodes");
            } else if let Some(first) = before(&mut names, name.clone(), at) {
                twice(walk, at, &format!("peer {name}"), first);
            }
            Some(name)
        });
        let public_key = peer.required(walk, "public_key", "\"KEY\", from wg pubkey").and_then(|(text, at)| {
            let key = taken(walk, at, public_key(text))?;
            if let Some(first) = before(&mut keys, key.clone(), at) {
                twice(walk, at, "one public key", first);
            }
            Some(key)
        });
        let endpoint = peer.parsed(walk, "endpoint", endpoint_text);
        let allowed = peer.each(walk, "allowed", prefix).into_iter().map(|(p, _)| p).collect();
        if !peer.has("allowed") {
            peer.missing(walk, "allowed", "add allowed = [\"10.88.0.2/32\"], what is routed to this peer");
        }
        if let (Some(name), Some(public_key)) = (name, public_key) {
            peers.push(Peer { name, public_key, endpoint, allowed });
        }
    }
    Some(Overlay { interface, address: address?, peers })
}

/// The first address after a network's own, for an example.
fn following(net: IpNet) -> IpAddr {
    net.hosts().next().unwrap_or(net.addr())
}

fn prefix(text: &str) -> Result<IpNet, Wrong> {
    text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).map(|net| net.trunc()).map_err(|_| {
        (format!("{text:?} is not a prefix"), "write an address or a prefix such as \"10.88.0.2/32\"".into())
    })
}

/// A WireGuard public key: 32 bytes in base64, 43 characters and one `=`.
fn public_key(text: &str) -> Result<String, Wrong> {
    let body = text.strip_suffix('=').unwrap_or("");
    let good = body.len() == 43
        && body.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/')
        // The last character carries four bits of the key and two that are zero.
        && body.ends_with(|c| "AEIMQUYcgkosw048".contains(c));
    if good {
        Ok(text.to_string())
    } else {
        Err(("this is not a WireGuard public key".into(), "write the 44 characters that wg pubkey prints".into()))
    }
}

fn endpoint_text(text: &str) -> Result<String, Wrong> {
    let bad = || {
        (
            format!("{text:?} is not ADDRESS:PORT"),
            "write such as \"192.0.2.7:51820\" or \"[2001:db8::7]:51820\"".to_string(),
        )
    };
    let (host_part, port_part) = text.rsplit_once(':').ok_or_else(bad)?;
    let port_good = port_part.bytes().all(|b| b.is_ascii_digit()) && port_part.parse::<u16>().is_ok_and(|p| p > 0);
    let host_good = match host_part.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(six) => six.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host_part.parse::<std::net::Ipv4Addr>().is_ok() || words::node(host_part).is_ok(),
    };
    if port_good && host_good { Ok(text.to_string()) } else { Err(bad()) }
}

fn predecessor(walk: &mut Walk<'_>, table: &Table, at: At) -> Predecessor {
    let known: &[&str] = &["units", "user", "files", "keep-dependents", "cron", "processes", "firewall"];
    let section = walk.section(table, at, "[predecessor]", known);
    let units = control_units(walk, &section);
    let mut users = BTreeMap::new();
    if let Some((table, _)) = section.table(walk, "user") {
        for (name, entry) in table {
            let Value::Table(user) = &entry.item.value else {
                walk.fault(
                    entry.item.at,
                    format!("user.{} must be a table, not {}", clip(name), entry.item.value.kind()),
                    format!("write [predecessor.user.{}] with units = [\"…\"]", clip(name)),
                );
                continue;
            };
            if taken_as(walk, entry.key_at, name, words::account(name)).is_none() {
                continue;
            }
            let user = walk.section(user, entry.item.at, &format!("[predecessor.user.{name}]"), &["units"]);
            if !user.has("units") {
                user.missing(walk, "units", "add units = [\"NAME.service\"], this user's control units");
            }
            let units = control_units(walk, &user);
            users.insert(name.clone(), units);
        }
    }
    let files = section.each(walk, "files", words::path);
    for (i, (_, at)) in files.iter().enumerate() {
        walk.keep(format!("predecessor.files.{i}"), *at);
    }
    let keep_dependents = section.boolean(walk, "keep-dependents").unwrap_or(false);
    let cron = cron(walk, &section);
    let mut processes = Vec::new();
    for (table, at) in section.tables(walk, "processes", "write processes = [{ executable = \"/…\" }]") {
        let s = walk.section(table, at, "processes", &["executable", "user"]);
        let executable =
            s.required(walk, "executable", "\"/…\"").and_then(|(text, at)| taken(walk, at, words::path(text)));
        let user = s.parsed(walk, "user", words::account);
        let Some(executable) = executable else { continue };
        let process = ControlProcess { executable, user };
        match processes.iter().find(|(p, _)| *p == process) {
            Some((_, first)) => twice(walk, at, "one process", *first),
            None => processes.push((process, at)),
        }
    }
    let mut firewall = FoundFirewall::default();
    if let Some((table, at)) = section.table(walk, "firewall") {
        let s = walk.section(table, at, "[predecessor.firewall]", &["tables", "loader"]);
        firewall.tables = s.each(walk, "tables", firewall_table).into_iter().map(|(t, _)| t).collect();
        firewall.loader = s.parsed(walk, "loader", words::unit);
    }
    Predecessor {
        units,
        users,
        cron,
        processes: processes.into_iter().map(|(p, _)| p).collect(),
        firewall,
        files: files.into_iter().map(|(f, _)| f).collect(),
        keep_dependents,
    }
}

fn taken_as<T>(walk: &mut Walk<'_>, at: At, value: &str, result: Result<T, Wrong>) -> Option<T> {
    result.map_err(|(what, remedy)| walk.fault_as(at, clip(value), what, remedy)).ok()
}

/// The types of units that write configuration, or start what does.
const CONTROL_TYPES: [&str; 5] = ["service", "socket", "timer", "path", "target"];

/// Whether a unit of this name may be listed as control.
pub(crate) fn can_be_control(unit: &UnitName) -> bool {
    CONTROL_TYPES.contains(&unit.kind()) && !unit.is_template()
}

fn control_units(walk: &mut Walk<'_>, section: &Section<'_>) -> Vec<UnitName> {
    let units = section.each(walk, "units", |text| {
        let unit = words::unit(text)?;
        if can_be_control(&unit) {
            Ok(unit)
        } else {
            Err((format!("a {} cannot be control", unit.kind()), format!("name one of {}", CONTROL_TYPES.join(", "))))
        }
    });
    units.into_iter().map(|(u, _)| u).collect()
}

fn cron(walk: &mut Walk<'_>, section: &Section<'_>) -> Vec<CronEntry> {
    let mut out: Vec<CronEntry> = Vec::new();
    let mut seen: BTreeMap<(String, Option<String>), At> = BTreeMap::new();
    for (table, at) in section.tables(walk, "cron", "write cron = [{ file = \"/etc/cron.d/…\" }]") {
        let s = walk.section(table, at, "cron", &["file", "lines_with"]);
        let file =
            s.required(walk, "file", "\"/etc/cron.d/NAME\"").and_then(|(text, at)| taken(walk, at, words::path(text)));
        let lines_with = s.parsed(walk, "lines_with", |text| {
            if text.trim().is_empty() || text.contains('\n') {
                return Err((
                    "lines_with is empty or more than one line".into(),
                    "write a text that stands in each control line, or leave lines_with out for the whole file".into(),
                ));
            }
            Ok(text.to_string())
        });
        let Some(file) = file else { continue };
        match before(&mut seen, (file.clone(), lines_with.clone()), at) {
            Some(first) => twice(walk, at, &format!("cron entry {file}"), first),
            None => out.push(CronEntry { file, lines_with }),
        }
    }
    out
}

/// The families of nf_tables, as nft(8) names them.
const FAMILIES: [&str; 6] = ["ip", "ip6", "inet", "arp", "bridge", "netdev"];

/// Whether a text is `FAMILY NAME` of a table.
pub(crate) fn is_firewall_table(text: &str) -> bool {
    firewall_table(text).is_ok()
}

fn firewall_table(text: &str) -> Result<String, Wrong> {
    match text.split_once(' ') {
        Some((family, name))
            if FAMILIES.contains(&family) && !name.is_empty() && !name.contains(char::is_whitespace) =>
        {
            Ok(text.to_string())
        }
        _ => Err((
            format!("{text:?} is not FAMILY NAME of a table"),
            format!("write such as \"inet filter\"; a family is one of {}", FAMILIES.join(", ")),
        )),
    }
}

fn flow(text: &str) -> Result<Flow, Wrong> {
    text.parse::<Flow>().map_err(|e| (format!("{} in flow {:?}", e.what, e.text), e.remedy))
}

fn openings(walk: &mut Walk<'_>, root: &Section<'_>, modules: &[ModuleName]) -> Vec<DeclaredOpening> {
    let mut out: Vec<DeclaredOpening> = Vec::new();
    let mut seen: BTreeMap<(String, Flow), At> = BTreeMap::new();
    for (i, (table, at)) in
        root.tables(walk, "opening", "write [[opening]] with flow = \"tcp/443\"").into_iter().enumerate()
    {
        let s = walk.section(table, at, "[[opening]]", &["flow", "module"]);
        let flow = s
            .required(walk, "flow", "\"tcp/443 from 10.0.0.0/8\"")
            .and_then(|(t, at)| Some((taken(walk, at, flow(t))?, at)));
        let module = s.string(walk, "module").map_or_else(
            || if s.has("module") { None } else { Some("operator".to_string()) },
            |(text, at)| {
                if text == "operator" {
                    return Some(text.into());
                }
                let module = taken(walk, at, ModuleName::new(text).map_err(words::split))?;
                if !modules.contains(&module) && !FOUNDATION_MODULES.contains(&text) {
                    let near = crate::nearest::nearest(text, modules.iter().map(ModuleName::as_str));
                    let remedy =
                        near.map_or("add it to modules, or leave module out".into(), |n| format!("did you mean {n}?"));
                    walk.fault(at, format!("an opening for module {text}, which is not assigned"), remedy);
                }
                Some(text.into())
            },
        );
        let (Some((flow, at)), Some(module)) = (flow, module) else { continue };
        match before(&mut seen, (module.clone(), flow.clone()), at) {
            Some(first) => twice(walk, at, &format!("opening {flow} for {module}"), first),
            None => out.push(DeclaredOpening { flow, module }),
        }
        walk.keep(format!("opening.{i}"), at);
    }
    out
}

fn flip(walk: &mut Walk<'_>, root: &Section<'_>, modules: &[ModuleName]) -> FlipSettings {
    let mut settings = FlipSettings {
        drop: Vec::new(),
        unmigrated: Vec::new(),
        confirm_within: Duration::from_secs(5 * 60),
        preview_max_age: Duration::from_secs(15 * 60),
    };
    let Some((table, at)) = root.table(walk, "flip") else { return settings };
    let s = walk.section(table, at, "[flip]", &["drop", "unmigrated", "confirm_within", "preview_max_age"]);
    settings.drop = s.each(walk, "drop", flow).into_iter().map(|(f, _)| f).collect();
    let unmigrated: Vec<Placed<ModuleName>> = s.each(walk, "unmigrated", |t| ModuleName::new(t).map_err(words::split));
    for (module, at) in unmigrated {
        if modules.contains(&module) {
            settings.unmigrated.push(module);
        } else {
            let near = crate::nearest::nearest(module.as_str(), modules.iter().map(ModuleName::as_str));
            let remedy = near.map_or("remove it, or add it to modules".into(), |n| format!("did you mean {n}?"));
            walk.fault(at, format!("module {module} is not assigned, so it cannot be unmigrated"), remedy);
        }
    }
    if let Some(d) = s.parsed(walk, "confirm_within", words::duration) {
        settings.confirm_within = d;
    }
    if let Some(d) = s.parsed(walk, "preview_max_age", words::duration) {
        settings.preview_max_age = d;
    }
    settings
}
