//! Reads `catalogue/NAME.toml`: every check that needs neither the machine nor another manifest.

use super::{
    FOUNDATION_MODULES, FileContent, FileDeclaration, Health, Manifest, ModuleName, PortDeclaration, PortNumber,
    PortScope, Replaces, Run,
};
use crate::diagnostic::Diagnostics;
use crate::document::{At, Item, Source, Table, Value, clip, merge};
use crate::flow::PortProtocol;
use crate::nearest::nearest;
use crate::node::FoundationPort;
use crate::walk::{Placed, Section, Walk, Wrong, before, port, taken, twice};
use crate::words;
use ipnet::IpNet;
use std::collections::BTreeMap;

/// The keys of a manifest.
const ROOT: &[&str] =
    &["schema", "summary", "foundation", "packages", "depends", "data", "port", "file", "run", "replaces", "health"];

/// Validates one manifest; the error holds every fault, in file order.
pub fn read(name: ModuleName, source: Source) -> Result<Manifest, Diagnostics> {
    let doc = merge(vec![source])?;
    let mut walk = Walk::new(&doc);
    let manifest = root(&mut walk, name);
    walk.keep("file", doc.beginning());
    walk.finish(manifest).map(|(manifest, origins)| Manifest { origins, ..manifest })
}

fn root(walk: &mut Walk<'_>, name: ModuleName) -> Option<Manifest> {
    let root = walk.section(walk.doc.root(), walk.doc.beginning(), "", ROOT);
    root.schema(walk);
    let summary = root.required(walk, "summary", "\"…\", one line for people").and_then(|(text, at)| {
        if text.trim().is_empty() || text.contains('\n') {
            walk.fault(at, "the summary is empty or more than one line", "write one line for people");
            return None;
        }
        Some(text.to_string())
    });
    let said = root.boolean(walk, "foundation").unwrap_or(false);
    let by_name = FOUNDATION_MODULES.contains(&name.as_str());
    if said && !by_name {
        walk.fault_as(
            root.key_at("foundation"),
            "foundation = true",
            format!("module {name} is not of the foundation"),
            format!("remove foundation; the foundation is {}", FOUNDATION_MODULES.join(", ")),
        );
    } else if by_name && !said {
        root.missing(walk, "foundation", format!("add foundation = true; a control-node raises {name} first"));
    }
    let packages = root.each(walk, "packages", package).into_iter().map(|(p, _)| p).collect();
    let depends = root.each(walk, "depends", |t| {
        let module = ModuleName::new(t).map_err(words::split)?;
        if module == name { Err((format!("{name} depends on itself"), "remove it".into())) } else { Ok(module) }
    });
    for (i, (_, at)) in depends.iter().enumerate() {
        walk.keep(format!("depends.{i}"), *at);
    }
    let data = root.each(walk, "data", words::path).into_iter().map(|(p, _)| p).collect();
    let ports = ports(walk, &root, said || by_name, &name);
    let files = read_files(walk, &root);
    let run = root.table(walk, "run").and_then(|(t, at)| run(walk, t, at));
    let replaces = root.table(walk, "replaces").map(|(t, at)| replaces(walk, t, at)).unwrap_or_default();
    let health = root.table(walk, "health").and_then(|(t, at)| health(walk, t, at, &ports));
    if root.has("health") && !root.has("run") {
        walk.fault_as(
            root.key_at("health"),
            "health",
            "health of a module that runs nothing",
            "add [run], or remove [health]",
        );
    }
    Some(Manifest {
        name,
        summary: summary?,
        foundation: said,
        ports,
        files,
        run,
        packages,
        replaces,
        health,
        data,
        depends: depends.into_iter().map(|(m, _)| m).collect(),
        origins: Default::default(),
    })
}

/// A Debian package name (Debian policy 5.6.1).
fn package(text: &str) -> Result<String, Wrong> {
    let good = text.len() >= 2
        && text.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.".contains(&b));
    if good {
        Ok(text.into())
    } else {
        Err((format!("{text:?} is not a package name"), "two or more of a-z, 0-9, +, - and .".into()))
    }
}

fn port_name(text: &str) -> Result<String, Wrong> {
    let good = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
        && text.len() <= 32
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_');
    if good {
        Ok(text.into())
    } else {
        Err((format!("{text:?} is not a port's name"), "a lower-case letter and up to 31 of a-z, 0-9, -, _".into()))
    }
}

fn ports(walk: &mut Walk<'_>, root: &Section<'_>, foundation: bool, module: &ModuleName) -> Vec<PortDeclaration> {
    let mut out: Vec<PortDeclaration> = Vec::new();
    let mut names: BTreeMap<String, At> = BTreeMap::new();
    let mut numbers: BTreeMap<(PortProtocol, String), At> = BTreeMap::new();
    let example = "write [[port]] with name, protocol, port and scope";
    for (table, at) in root.tables(walk, "port", example) {
        let s = walk.section(table, at, "[[port]]", &["name", "protocol", "port", "scope"]);
        let name = s.required(walk, "name", "\"http\"").and_then(|(text, at)| {
            let name = taken(walk, at, port_name(text))?;
            if let Some(first) = before(&mut names, name.clone(), at) {
                twice(walk, at, &format!("port {name}"), first);
            }
            Some(name)
        });
        let protocol = s.required(walk, "protocol", "\"tcp\"").and_then(|(text, at)| {
            let p = PortProtocol::from_word(text);
            if p.is_none() {
                walk.fault(at, format!("{text:?} is not a protocol with ports"), "it is tcp, udp or sctp");
            }
            p
        });
        let number = match s.item("port") {
            None => {
                let example = if foundation { "port = \"{{ foundation.KEY.port }}\"" } else { "port = NUMBER" };
                s.missing(walk, "port", format!("add {example}"));
                None
            }
            Some(item) => number(walk, item, foundation, module).map(|n| (n, item.at)),
        };
        let scope =
            s.required(walk, "scope", "\"loopback\", \"overlay\", \"any\" or a prefix").and_then(|(text, at)| {
                let parsed = match text {
                    "loopback" => Ok(PortScope::Loopback),
                    "overlay" => Ok(PortScope::Overlay),
                    "any" => Ok(PortScope::Any),
                    other => other.parse::<IpNet>().map(|n| PortScope::Prefix(n.trunc())).map_err(|_| {
                        let remedy = match nearest(other, ["loopback", "overlay", "any"]) {
                            Some(near) => format!("did you mean {near}?"),
                            None => "it is loopback, overlay, any, or a prefix such as 10.0.0.0/8".into(),
                        };
                        (format!("{other:?} is not a scope"), remedy)
                    }),
                };
                taken(walk, at, parsed)
            });
        let (Some(name), Some(protocol), Some((number, at)), Some(scope)) = (name, protocol, number, scope) else {
            continue;
        };
        if let PortNumber::Foundation(which) = number {
            if which.protocol() != protocol {
                walk.fault(
                    s.item("protocol").map_or(at, |i| i.at),
                    format!("{} is not {}", which.key(), protocol.word()),
                    format!("write protocol = \"{}\"", which.protocol().word()),
                );
            }
        }
        let (key, shown) = match number {
            PortNumber::Default(n) => (n.to_string(), n.to_string()),
            PortNumber::Foundation(f) => (f.key().to_string(), format!("foundation.{}", f.key())),
        };
        if let Some(first) = before(&mut numbers, (protocol, key), at) {
            twice(walk, at, &format!("port {}/{shown}", protocol.word()), first);
        }
        walk.keep(format!("port.{}", out.len()), at);
        out.push(PortDeclaration { name, protocol, number, scope });
    }
    out
}

fn number(walk: &mut Walk<'_>, item: &Item, foundation: bool, module: &ModuleName) -> Option<PortNumber> {
    let own: Vec<&str> =
        FoundationPort::ALL.into_iter().filter(|p| p.module() == module.as_str()).map(FoundationPort::key).collect();
    let template = |key: &str| format!("write port = \"{{{{ foundation.{key}.port }}}}\"");
    if let Value::String(text) = &item.value {
        if text.contains("{{") || text.contains("foundation") {
            return match reference(text, &own) {
                Ok(which) => Some(PortNumber::Foundation(which)),
                Err((what, remedy)) => {
                    walk.fault(item.at, what, remedy);
                    None
                }
            };
        }
    }
    let literal = match &item.value {
        Value::Integer(_) => true,
        Value::String(s) => s.trim().parse::<u64>().is_ok(),
        _ => false,
    };
    if foundation && literal {
        // The key whose standard port this is, else the module's first.
        let written = walk.doc.text(item.at);
        let standard = FoundationPort::ALL
            .into_iter()
            .find(|p| own.contains(&p.key()) && p.standard().to_string() == written.trim_matches('"'));
        let key = standard.map_or_else(|| own.first().copied().unwrap_or("KEY"), FoundationPort::key);
        walk.fault(item.at, "a foundation port is the node's to give, never a manifest's", template(key));
        return None;
    }
    port(walk, "port", item).map(PortNumber::Default)
}

/// `{{ foundation.KEY.port }}`.
fn reference(text: &str, own: &[&str]) -> Result<FoundationPort, Wrong> {
    let example = own.first().copied().unwrap_or("store.sql");
    let whole = format!("write \"{{{{ foundation.{example}.port }}}}\", and nothing else");
    let inner = text.trim().strip_prefix("{{").and_then(|t| t.strip_suffix("}}")).map(str::trim);
    let Some(key) = inner.and_then(|t| t.strip_prefix("foundation.")).and_then(|t| t.strip_suffix(".port")) else {
        return Err((format!("{text:?} is not a reference to a foundation port"), whole));
    };
    FoundationPort::from_key(key).ok_or_else(|| {
        let known = FoundationPort::ALL.map(FoundationPort::key);
        let remedy = match nearest(key, known) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("known: {}", known.join(", ")),
        };
        (format!("{key:?} is not a foundation port"), remedy)
    })
}

/// The keys of `[[file]]`.
const FILE: &[&str] = &["path", "content", "template", "owner", "group", "mode", "validator", "secret"];

/// Reads `[[file]]` of a manifest or of `node.toml`.
pub(crate) fn read_files(walk: &mut Walk<'_>, root: &Section<'_>) -> Vec<FileDeclaration> {
    let mut out = Vec::new();
    let mut paths: BTreeMap<String, At> = BTreeMap::new();
    for (table, at) in root.tables(walk, "file", "write [[file]] with path and content or template") {
        let s = walk.section(table, at, "[[file]]", FILE);
        let path = s.required(walk, "path", "\"/…\"").and_then(|(text, at)| {
            let path = taken(walk, at, words::path(text))?;
            match before(&mut paths, path.clone(), at) {
                Some(first) => {
                    twice(walk, at, &format!("file {path}"), first);
                    None
                }
                None => Some((path, at)),
            }
        });
        let literal = s.string(walk, "content").map(|(text, _)| FileContent::Literal(text.to_string()));
        let template = s.parsed(walk, "template", words::relative).map(FileContent::Template);
        let content = match (s.has("content"), s.has("template")) {
            (true, true) => {
                let what = "both content and template in one [[file]]";
                walk.fault_as(s.key_at("template"), "template", what, "keep one of the two");
                None
            }
            (false, false) => {
                s.missing(walk, "content", "add content = \"…\" or template = \"NAME\"");
                None
            }
            _ => literal.or(template),
        };
        let root_account = || "root".to_string();
        let owner = s.parsed(walk, "owner", words::account).unwrap_or_else(root_account);
        let group = s.parsed(walk, "group", words::account).unwrap_or_else(root_account);
        let mode = file_mode(walk, &s);
        let validator = validator(walk, &s);
        let secret = s.boolean(walk, "secret").unwrap_or(false);
        let (Some((path, at)), Some(content)) = (path, content) else { continue };
        if secret && mode & 0o004 != 0 {
            let place = if s.has("mode") { s.item("mode").map_or(at, |i| i.at) } else { s.key_at("secret") };
            let what = format!("file {path} is secret, but mode {mode:04o} lets everybody read it");
            walk.fault(place, what, "write mode = \"0600\" or \"0640\"");
        }
        walk.keep(format!("file.{}.path", out.len()), at);
        out.push(FileDeclaration { path, content, owner, group, mode, validator, secret });
    }
    out
}

fn file_mode(walk: &mut Walk<'_>, s: &Section<'_>) -> u32 {
    const DEFAULT: u32 = 0o644;
    if let Some(Item { value: Value::Integer(n), at }) = s.item("mode") {
        walk.fault(*at, "mode must be a text, not a whole number", format!("write mode = \"{n:04}\", octal in quotes"));
        return DEFAULT;
    }
    s.parsed(walk, "mode", words::mode).unwrap_or(DEFAULT)
}

fn validator(walk: &mut Walk<'_>, s: &Section<'_>) -> Option<Vec<String>> {
    let item = s.item("validator")?;
    let vector: Vec<String> = s.strings(walk, "validator").into_iter().map(|(t, _)| t.to_string()).collect();
    if !matches!(item.value, Value::Array(_)) {
        return None;
    }
    if !vector.iter().skip(1).any(|word| word.contains("{}")) {
        walk.fault(
            item.at,
            "the validator never names the file that it is to check",
            "put {} where the path of the staged copy goes, as in [\"sshd\", \"-t\", \"-f\", \"{}\"]",
        );
        return None;
    }
    Some(vector)
}

fn run(walk: &mut Walk<'_>, table: &Table, at: At) -> Option<Run> {
    const KINDS: [&str; 3] = ["exec", "unit", "image"];
    let known: &[&str] = &["exec", "unit", "image", "user", "type", "state_directory", "environment", "volumes"];
    let s = walk.section(table, at, "[run]", known);
    let kinds: Vec<&str> = KINDS.into_iter().filter(|k| s.has(k)).collect();
    let [kind] = kinds.as_slice() else {
        match kinds.get(1) {
            Some(second) => walk.fault_as(
                s.key_at(second),
                *second,
                format!("[run] has {}", kinds.join(" and ")),
                "keep exactly one of exec, unit, image",
            ),
            None => s.missing(walk, "exec", "add exactly one of exec = [\"/…\"], unit = \"…\" or image = \"…\""),
        }
        return None;
    };
    let allowed: &[&str] = match *kind {
        "exec" => &["exec", "user", "type", "state_directory", "environment"],
        "unit" => &["unit"],
        _ => &["image", "volumes", "environment"],
    };
    for key in known.iter().filter(|k| s.has(k) && !allowed.contains(k)) {
        walk.fault_as(s.key_at(key), *key, format!("{key} has no meaning beside {kind}"), "remove it");
    }
    let environment = environment(walk, &s);
    match *kind {
        "exec" => {
            let exec = argv(walk, &s, "exec");
            let user = s.parsed(walk, "user", words::account);
            let service_type = s.parsed(walk, "type", |t| {
                const TYPES: [&str; 4] = ["exec", "notify", "forking", "oneshot"];
                if TYPES.contains(&t) {
                    Ok(t.to_string())
                } else {
                    Err((
                        format!("{t:?} is not a type that a module can have"),
                        format!("it is one of {}", TYPES.join(", ")),
                    ))
                }
            });
            let state_directory = s.parsed(walk, "state_directory", |t| {
                words::relative(t).map_err(|_| {
                    (format!("{t:?} is not a folder below /var/lib"), "write a relative path, without . and ..".into())
                })
            });
            Some(Run::Command {
                exec: exec?,
                user,
                service_type: service_type.unwrap_or_else(|| "exec".into()),
                environment,
                state_directory,
            })
        }
        "unit" => s.parsed(walk, "unit", words::unit).map(Run::Unit),
        _ => {
            let image = s.parsed(walk, "image", |t| {
                if t.is_empty() || t.starts_with('-') || t.chars().any(|c| c.is_whitespace() || c.is_control()) {
                    return Err((
                        format!("{t:?} is not an image"),
                        "write a reference such as \"localhost/app:1\"".into(),
                    ));
                }
                Ok(t.to_string())
            });
            let volumes = s.each(walk, "volumes", volume).into_iter().map(|(v, _)| v).collect();
            Some(Run::Container { image: image?, volumes, environment })
        }
    }
}

/// An argument vector whose first is an absolute path.
fn argv(walk: &mut Walk<'_>, s: &Section<'_>, key: &str) -> Option<Vec<String>> {
    let item = s.item(key)?;
    let vector: Vec<Placed<&str>> = s.strings(walk, key);
    let Some((program, at)) = vector.first() else {
        if matches!(&item.value, Value::Array(a) if a.is_empty()) {
            walk.fault(item.at, format!("{key} is empty"), "write the program's path and its arguments");
        }
        return None;
    };
    taken(walk, *at, words::path(program))?;
    if let Some((_, at)) = vector.iter().find(|(w, _)| w.contains(['\n', '\0'])) {
        walk.fault(*at, format!("an argument of {key} holds a line end or NUL"), "write it without");
        return None;
    }
    Some(vector.into_iter().map(|(w, _)| w.to_string()).collect())
}

fn environment(walk: &mut Walk<'_>, s: &Section<'_>) -> Vec<(String, String)> {
    let mut out = Vec::new();
    let Some((table, _)) = s.table(walk, "environment") else { return out };
    for (key, entry) in table {
        let good = key.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
            && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !good {
            let what = format!("{:?} is not a variable's name", clip(key));
            walk.fault_as(entry.key_at, clip(key), what, "letters, digits and _, not beginning with a digit");
        }
        // Values of an environment are not repeated: passwords stand in them more often than they should.
        match &entry.item.value {
            Value::String(v) if !v.contains(['\n', '\0']) => out.push((key.clone(), v.clone())),
            Value::String(_) => walk.fault_as(
                entry.item.at,
                clip(key),
                format!("the value of {} holds a line end or NUL", clip(key)),
                "put it into a file",
            ),
            other => walk.fault_as(
                entry.item.at,
                clip(key),
                format!("the value of {} must be a text, not {}", clip(key), other.kind()),
                format!("write {} = \"…\"", clip(key)),
            ),
        }
    }
    out
}

/// `HOST:CONTAINER[:OPTIONS]`, HOST an absolute path or a volume's name.
fn volume(text: &str) -> Result<String, Wrong> {
    let parts: Vec<&str> = text.split(':').collect();
    let named = |h: &str| {
        !h.is_empty()
            && h.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
            && !h.starts_with(['.', '-'])
    };
    match parts.as_slice() {
        [host, container] | [host, container, _] => {
            if host.starts_with('/') {
                words::path(host)?;
            } else if !named(host) {
                return Err((
                    format!("{host:?} is neither an absolute path nor a volume's name"),
                    "write /HOST:/CONTAINER".into(),
                ));
            }
            words::path(container)?;
            Ok(text.to_string())
        }
        _ => Err((format!("{text:?} is not HOST:CONTAINER[:OPTIONS]"), "write such as \"/srv/app:/data:ro\"".into())),
    }
}

fn replaces(walk: &mut Walk<'_>, table: &Table, at: At) -> Replaces {
    let s = walk.section(table, at, "[replaces]", &["container", "unit", "data"]);
    let container = s.parsed(walk, "container", |t| {
        let good = t.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
            && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
        if good {
            Ok(t.to_string())
        } else {
            Err((format!("{t:?} is not a container's name"), "letters, digits, _, . and -".into()))
        }
    });
    let unit = s.parsed(walk, "unit", words::unit);
    let data = s.each(walk, "data", words::path).into_iter().map(|(p, _)| p).collect();
    if !s.has("container") && !s.has("unit") {
        s.missing(walk, "container", "add container = \"NAME\" or unit = \"NAME.service\"");
    }
    Replaces { container, unit, data }
}

fn health(walk: &mut Walk<'_>, table: &Table, at: At, ports: &[PortDeclaration]) -> Option<Health> {
    let known: &[&str] = &["tcp", "http", "exec"];
    let s = walk.section(table, at, "[health]", known);
    let given: Vec<&&str> = known.iter().filter(|k| s.has(k)).collect();
    match given.as_slice() {
        [_] => {}
        [] => {
            s.missing(
                walk,
                "tcp",
                "add exactly one of tcp = \"PORT\", http = { port = \"…\", path = \"/\" } or exec = [\"/…\"]",
            );
            return None;
        }
        [_, second, ..] => {
            walk.fault_as(
                s.key_at(second),
                **second,
                "[health] has more than one check",
                "keep exactly one of tcp, http, exec",
            );
            return None;
        }
    }
    let check = |text: &str| match ports.iter().find(|p| p.name == text) {
        Some(p) if p.protocol == PortProtocol::Tcp => Ok(text.to_string()),
        Some(p) => Err((format!("port {text} is {}, and only tcp can be asked", p.protocol.word()), "use exec".into())),
        None => {
            let names: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
            let remedy = match nearest(text, names.iter().copied()) {
                Some(near) => format!("did you mean {near}?"),
                None if names.is_empty() => "declare it in [[port]]".into(),
                None => format!("the ports of this module are {}", names.join(", ")),
            };
            Err((format!("{text:?} is no port of this module"), remedy))
        }
    };
    if s.has("tcp") {
        return s.parsed(walk, "tcp", check).map(Health::Tcp);
    }
    if s.has("exec") {
        return argv(walk, &s, "exec").map(Health::Exec);
    }
    let (table, at) = s.table(walk, "http")?;
    let h = walk.section(table, at, "[health] http", &["port", "path"]);
    let port = h.required(walk, "port", "\"NAME\" of a port").and_then(|(t, at)| taken(walk, at, check(t)));
    let path = h.parsed(walk, "path", |t| {
        if t.starts_with('/') && t.bytes().all(|b| b.is_ascii_graphic()) {
            Ok(t.to_string())
        } else {
            Err((format!("{t:?} is not the path of a URL"), "write such as \"/health\"".into()))
        }
    });
    Some(Health::Http(port?, path.unwrap_or_else(|| "/".into())))
}
