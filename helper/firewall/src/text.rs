//! A rule in words, near to nft's own. For people only: nothing reads it back, and what has no short form is shown as
//! its name and bytes.

use crate::ir::{BitwiseOp, CmpOp, Data, Expr, Reg, Rule, Ruleset, Set, Verdict};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

/// How the bytes of a register are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Name,
    Address,
    /// Big-endian number.
    Number,
    /// Host-order number.
    Host,
    Protocol,
    State,
    Family,
    Bytes,
}

#[derive(Debug, Clone)]
struct Loaded {
    label: String,
    look: Look,
    /// Kept bits, where a mask was laid on it.
    mask: Option<Vec<u8>>,
}

struct Words<'a> {
    ruleset: &'a Ruleset,
    rule: &'a Rule,
    loaded: BTreeMap<usize, Loaded>,
    proto: Option<&'static str>,
    out: Vec<String>,
}

/// `rule` in words, without its handle; its comment stands at the end.
pub fn rule(ruleset: &Ruleset, rule: &Rule) -> String {
    let mut w = Words { ruleset, rule, loaded: BTreeMap::new(), proto: None, out: Vec::new() };
    for e in &rule.exprs {
        w.expr(e);
    }
    if let Some(c) = rule.comment() {
        w.out.push(format!("comment {c:?}"));
    }
    w.out.retain(|s| !s.is_empty());
    w.out.join(" ")
}

/// A verdict as nft writes it.
pub fn verdict(v: &Verdict) -> String {
    match v {
        Verdict::Accept => "accept".into(),
        Verdict::Drop => "drop".into(),
        Verdict::Queue(n) => format!("queue num {n}"),
        Verdict::Continue => "continue".into(),
        Verdict::Break => "break".into(),
        Verdict::Jump(c) => format!("jump {c}"),
        Verdict::Goto(c) => format!("goto {c}"),
        Verdict::Return => "return".into(),
        Verdict::Other(n) => format!("verdict {n}"),
    }
}

fn protocol(n: u8) -> Option<&'static str> {
    Some(match n {
        1 => "icmp",
        2 => "igmp",
        6 => "tcp",
        17 => "udp",
        47 => "gre",
        50 => "esp",
        51 => "ah",
        58 => "icmpv6",
        132 => "sctp",
        136 => "udplite",
        _ => return None,
    })
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!("0x{digits}")
}

fn number(bytes: &[u8]) -> Option<u128> {
    (bytes.len() <= 16).then(|| bytes.iter().fold(0, |n, b| n << 8 | u128::from(*b)))
}

fn show(look: Look, bytes: &[u8]) -> String {
    let host = || -> Vec<u8> {
        let mut v = bytes.to_vec();
        if cfg!(target_endian = "little") {
            v.reverse();
        }
        v
    };
    match look {
        Look::Name => {
            let end = bytes.iter().position(|b| *b == 0);
            let name = String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned();
            // Compared without its NUL, a name is a prefix.
            if end.is_none() && bytes.len() < 16 { format!("\"{name}*\"") } else { format!("{name:?}") }
        }
        Look::Address => match bytes.len() {
            4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).unwrap_or_default()).to_string(),
            16 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap_or_default()).to_string(),
            n => {
                // The leading bytes alone: a prefix.
                let mut all = bytes.to_vec();
                all.resize(if n < 4 { 4 } else { 16 }, 0);
                format!("{}/{}", show(Look::Address, &all), n * 8)
            }
        },
        Look::Number => number(bytes).map_or_else(|| hex(bytes), |n| n.to_string()),
        Look::Host => {
            number(&host()).map_or_else(|| hex(bytes), |n| if n > 9999 { format!("{n:#x}") } else { n.to_string() })
        }
        Look::Protocol => match bytes {
            [n, rest @ ..] if rest.iter().all(|b| *b == 0) => protocol(*n).map_or_else(|| n.to_string(), String::from),
            _ => hex(bytes),
        },
        Look::Family => match bytes.first() {
            Some(2) => "ipv4".into(),
            Some(10) => "ipv6".into(),
            _ => hex(bytes),
        },
        Look::State => match number(&host()) {
            Some(n) => state(n),
            None => hex(bytes),
        },
        Look::Bytes => hex(bytes),
    }
}

fn state(n: u128) -> String {
    let names: Vec<&str> = [(1, "invalid"), (2, "established"), (4, "related"), (8, "new"), (64, "untracked")]
        .into_iter()
        .filter(|(bit, _)| n & bit != 0)
        .map(|(_, name)| name)
        .collect();
    if names.is_empty() { n.to_string() } else { names.join(",") }
}

fn meta(key: u32) -> (&'static str, Look) {
    match key {
        1 => ("meta protocol", Look::Bytes),
        2 => ("meta priority", Look::Host),
        3 => ("meta mark", Look::Host),
        4 => ("iif", Look::Host),
        5 => ("oif", Look::Host),
        6 => ("iifname", Look::Name),
        7 => ("oifname", Look::Name),
        10 => ("meta skuid", Look::Host),
        11 => ("meta skgid", Look::Host),
        15 => ("meta nfproto", Look::Family),
        16 => ("meta l4proto", Look::Protocol),
        19 => ("meta pkttype", Look::Host),
        21 => ("iifgroup", Look::Host),
        22 => ("oifgroup", Look::Host),
        _ => ("meta", Look::Bytes),
    }
}

impl Words<'_> {
    fn say(&mut self, s: impl Into<String>) {
        let s = s.into();
        // A field of a protocol says by itself what the comparison before it made sure of.
        let implied = match s.split_once(' ') {
            Some(("ip", _)) => "meta nfproto ipv4".to_string(),
            Some(("ip6", _)) => "meta nfproto ipv6".to_string(),
            Some((word, _)) => format!("meta l4proto {word}"),
            None => String::new(),
        };
        if self.out.last() == Some(&implied) {
            self.out.pop();
        }
        self.out.push(s);
    }

    fn load(&mut self, reg: Reg, label: String, look: Look) {
        if let Some(at) = reg.byte() {
            self.loaded.insert(at, Loaded { label, look, mask: None });
        }
    }

    fn loaded(&self, reg: Reg) -> Loaded {
        reg.byte().and_then(|at| self.loaded.get(&at).cloned()).unwrap_or(Loaded {
            label: format!("register {}", reg.0),
            look: Look::Bytes,
            mask: None,
        })
    }

    fn payload(&self, base: u32, offset: u32, len: u32) -> (String, Look) {
        let v6 = self.rule.family.0 == 10 || (base == 1 && (len == 16 || offset >= 20));
        let name = |s: &str| s.to_string();
        match (base, offset, len) {
            (1, 12, 1..=4) if !v6 => (name("ip saddr"), Look::Address),
            (1, 16, 1..=4) if !v6 => (name("ip daddr"), Look::Address),
            (1, 9, 1) if !v6 => (name("ip protocol"), Look::Protocol),
            (1, 8, 5..=16) => (name("ip6 saddr"), Look::Address),
            (1, 24, 5..=16) => (name("ip6 daddr"), Look::Address),
            (1, 8, 1..=4) if v6 => (name("ip6 saddr"), Look::Bytes),
            (1, 24, 1..=4) if v6 => (name("ip6 daddr"), Look::Bytes),
            (1, 6, 1) if v6 => (name("ip6 nexthdr"), Look::Protocol),
            (2, 0, 1) => (format!("{} type", self.proto.unwrap_or("icmp")), Look::Number),
            (2, 0, 2) => (format!("{} sport", self.proto.unwrap_or("th")), Look::Number),
            (2, 2, 2) => (format!("{} dport", self.proto.unwrap_or("th")), Look::Number),
            (0, 6, 6) => (name("ether saddr"), Look::Bytes),
            _ => {
                let base = ["ll", "nh", "th", "ih"].get(base as usize).copied().unwrap_or("?");
                (format!("@{base},{},{}", offset.saturating_mul(8), len.saturating_mul(8)), Look::Bytes)
            }
        }
    }

    fn cmp(&mut self, sreg: Reg, op: CmpOp, data: &[u8]) {
        let l = self.loaded(sreg);
        // A payload of the transport header is said with the protocol that a comparison before it fixed.
        if l.look == Look::Protocol && op == CmpOp::Eq {
            self.proto = data.first().and_then(|n| protocol(*n));
        }
        let sign = match op {
            CmpOp::Eq => "",
            CmpOp::Ne => "!= ",
            CmpOp::Lt => "< ",
            CmpOp::Le => "<= ",
            CmpOp::Gt => "> ",
            CmpOp::Ge => ">= ",
        };
        let words = match &l.mask {
            Some(mask) if l.look == Look::State && data.iter().all(|b| *b == 0) => {
                // `ct state a,b` is a mask and "not 0".
                let not = if op == CmpOp::Ne { "" } else { "!= " };
                format!("{} {not}{}", l.label, show(Look::State, mask))
            }
            Some(mask) => match prefix(mask).filter(|_| l.look == Look::Address) {
                Some(bits) => format!("{} {sign}{}/{bits}", l.label, show(l.look, data)),
                None => format!("{} & {} {sign}{}", l.label, show(l.look, mask), show(l.look, data)),
            },
            None => format!("{} {sign}{}", l.label, show(l.look, data)),
        };
        self.say(words);
    }

    fn set(&self, name: &str, look: Look) -> String {
        match self.ruleset.set(self.rule.family, &self.rule.table, name) {
            Some(s) if s.anonymous() => elements(s, look),
            _ => format!("@{name}"),
        }
    }

    #[allow(clippy::too_many_lines, reason = "one arm an expression: a table")]
    fn expr(&mut self, e: &Expr) {
        match e {
            Expr::Meta { key, dreg: Some(d), .. } => {
                let (name, look) = meta(*key);
                let label = if name == "meta" { format!("meta {key}") } else { name.to_string() };
                self.load(*d, label, look);
            }
            Expr::Meta { key, sreg, .. } => {
                let from = sreg.map(|r| self.loaded(r).label).unwrap_or_default();
                let (name, _) = meta(*key);
                self.say(format!("{name} set {from}"));
            }
            Expr::Payload { base, offset, len, dreg } => {
                let (label, look) = self.payload(*base, *offset, *len);
                self.load(*dreg, label, look);
            }
            Expr::PayloadSet { base, offset, len, sreg, .. } => {
                let (label, _) = self.payload(*base, *offset, *len);
                let from = self.loaded(*sreg).label;
                self.say(format!("{label} set {from}"));
            }
            Expr::Cmp { sreg, op, data } => self.cmp(*sreg, *op, data),
            Expr::Range { sreg, inverted, from, to } => {
                let l = self.loaded(*sreg);
                let sign = if *inverted { "!= " } else { "" };
                self.say(format!("{} {sign}{}-{}", l.label, show(l.look, from), show(l.look, to)));
            }
            Expr::Bitwise { sreg, dreg, op, .. } => {
                let mut l = self.loaded(*sreg);
                match op {
                    BitwiseOp::MaskXor { mask, xor } if xor.iter().all(|b| *b == 0) => l.mask = Some(mask.clone()),
                    BitwiseOp::MaskXor { mask, xor } => {
                        l.label = format!("{} & {} ^ {}", l.label, show(l.look, mask), show(l.look, xor));
                    }
                    BitwiseOp::Left(n) => l.label = format!("{} << {}", l.label, show(Look::Host, n)),
                    BitwiseOp::Right(n) => l.label = format!("{} >> {}", l.label, show(Look::Host, n)),
                    BitwiseOp::Registers { op, .. } => l.label = format!("{} bitwise {op}", l.label),
                }
                if let Some(at) = dreg.byte() {
                    self.loaded.insert(at, l);
                }
            }
            Expr::Byteorder { sreg, dreg, .. } => {
                let mut l = self.loaded(*sreg);
                l.look = match l.look {
                    Look::Host => Look::Number,
                    other => other,
                };
                if let Some(at) = dreg.byte() {
                    self.loaded.insert(at, l);
                }
            }
            Expr::Immediate { data: Data::Verdict(v), .. } => self.say(verdict(v)),
            Expr::Immediate { dreg, data: Data::Value(v) } => {
                let label = match v.len() {
                    4 | 16 => show(Look::Address, v),
                    2 => show(Look::Number, v),
                    _ => hex(v),
                };
                self.load(*dreg, label, Look::Bytes);
            }
            Expr::Lookup { set, sreg, dreg, inverted } => {
                let l = self.loaded(*sreg);
                let s = self.set(set, l.look);
                let sign = if *inverted { "!= " } else { "" };
                match dreg {
                    Some(Reg::VERDICT) => self.say(format!("{} vmap {s}", l.label)),
                    Some(d) => self.load(*d, format!("{} map {s}", l.label), Look::Bytes),
                    None => self.say(format!("{} {sign}{s}", l.label)),
                }
            }
            Expr::Ct { key, direction, dreg: Some(d), .. } => {
                let way = match direction {
                    Some(0) => "original ",
                    Some(_) => "reply ",
                    None => "",
                };
                let (name, look) = match key {
                    0 => ("state", Look::State),
                    1 => ("direction", Look::Host),
                    2 => ("status", Look::Host),
                    3 => ("mark", Look::Host),
                    8 => ("saddr", Look::Address),
                    9 => ("daddr", Look::Address),
                    10 => ("protocol", Look::Protocol),
                    11 => ("proto-src", Look::Number),
                    12 => ("proto-dst", Look::Number),
                    _ => ("", Look::Bytes),
                };
                let name = if name.is_empty() { format!("key {key}") } else { name.to_string() };
                self.load(*d, format!("ct {way}{name}"), look);
            }
            Expr::Ct { key, .. } => self.say(format!("ct key {key} set")),
            Expr::Counter { .. } => self.say("counter"),
            Expr::Limit { rate, unit, bytes, over, .. } => {
                let unit = match unit {
                    1 => "second".to_string(),
                    60 => "minute".into(),
                    3600 => "hour".into(),
                    86400 => "day".into(),
                    n => format!("{n}s"),
                };
                let over = if *over { "over " } else { "" };
                let what = if *bytes { " bytes" } else { "" };
                self.say(format!("limit rate {over}{rate}{what}/{unit}"));
            }
            Expr::Quota { bytes, flags, .. } => {
                self.say(format!("quota {}{bytes} bytes", if flags & 1 != 0 { "over " } else { "" }));
            }
            Expr::Connlimit { count, over } => {
                self.say(format!("ct count {}{count}", if *over { "over " } else { "" }));
            }
            Expr::Log { prefix, .. } => match prefix {
                Some(p) => self.say(format!("log prefix {p:?}")),
                None => self.say("log"),
            },
            Expr::Reject { kind: 1, .. } => self.say("reject with tcp reset"),
            Expr::Reject { .. } => self.say("reject"),
            Expr::Nat { dnat, addr, proto, .. } => {
                let mut s = String::from(if *dnat { "dnat to" } else { "snat to" });
                if let Some(r) = addr.0 {
                    s += &format!(" {}", self.loaded(r).label);
                }
                if let Some(r) = proto.0 {
                    s += &format!(" :{}", self.loaded(r).label);
                }
                self.say(s);
            }
            Expr::Masq { .. } => self.say("masquerade"),
            Expr::Redir { proto, .. } => match proto.0 {
                Some(r) => {
                    let port = self.loaded(r).label;
                    self.say(format!("redirect to :{port}"));
                }
                None => self.say("redirect"),
            },
            Expr::Tproxy { .. } => self.say("tproxy"),
            Expr::Notrack => self.say("notrack"),
            Expr::Fib { dreg, result, flags } => {
                let mut parts = Vec::new();
                for (bit, n) in [(1, "saddr"), (2, "daddr"), (4, "mark"), (8, "iif"), (16, "oif")] {
                    if flags & bit != 0 {
                        parts.push(n);
                    }
                }
                let what = ["", "oif", "oifname", "type"].get(*result as usize).copied().unwrap_or("?");
                let label = format!("fib {} {what}", parts.join(" . "));
                match dreg {
                    Some(d) => self.load(*d, label, Look::Host),
                    None => self.say(label),
                }
            }
            Expr::Dynset { set, op, key, exprs, .. } => {
                let op = ["add", "update", "delete"].get(*op as usize).copied().unwrap_or("set");
                let key = self.loaded(*key).label;
                let inner = Rule { exprs: exprs.clone(), userdata: Vec::new(), ..self.rule.clone() };
                let inner = rule(self.ruleset, &inner);
                self.say(format!("{op} @{set} {{ {key} {inner} }}"));
            }
            Expr::Objref { kind, name, set } => {
                let what = match kind {
                    1 => "counter",
                    2 => "quota",
                    3 => "ct helper set",
                    4 => "limit",
                    7 => "ct timeout set",
                    8 => "secmark",
                    9 => "ct expectation set",
                    10 => "synproxy",
                    _ => "object",
                };
                match (name, set) {
                    (Some(n), _) => self.say(format!("{what} name {n:?}")),
                    (None, Some((s, r))) => {
                        let key = self.loaded(*r).label;
                        self.say(format!("{what} name {key} map @{s}"));
                    }
                    (None, None) => self.say(what),
                }
            }
            Expr::Exthdr { kind, dreg, .. } => match dreg {
                Some(d) => self.load(*d, format!("option {kind}"), Look::Bytes),
                None => self.say(format!("option {kind}")),
            },
            Expr::Rt { key, dreg } => self.load(*dreg, format!("rt {key}"), Look::Bytes),
            Expr::Socket { key, dreg, .. } => {
                let what = ["transparent", "mark", "wildcard", "cgroupv2"].get(*key as usize).copied().unwrap_or("?");
                self.load(*dreg, format!("socket {what}"), Look::Host);
            }
            Expr::Numgen { dreg, modulus, .. } => self.load(*dreg, format!("numgen mod {modulus}"), Look::Host),
            Expr::Queue { number, .. } => self.say(format!("queue num {number}")),
            Expr::Flow { table } => self.say(format!("flow add @{table}")),
            Expr::Last { .. } => self.say("last"),
            Expr::Match(m) if m.name == "comment" => {}
            Expr::Match(m) => self.say(format!("xt match {} {}", m.name, hex(&m.info))),
            Expr::Target(t) => self.say(format!("xt target {} {}", t.name, hex(&t.info))),
            Expr::Unknown { name, bytes } => self.say(format!("{name} {}", hex(bytes))),
        }
    }
}

fn prefix(mask: &[u8]) -> Option<u32> {
    let n = number(mask)? << (128 - mask.len() as u32 * 8);
    let bits = n.leading_ones();
    (n.checked_shl(bits).unwrap_or(0) == 0).then_some(bits)
}

/// At most so many elements of a set are shown in a rule.
const SHOWN: usize = 12;

fn elements(s: &Set, look: Look) -> String {
    let mut sorted: Vec<_> = s.elements.iter().collect();
    sorted.sort_by(|a, b| (&a.key, !a.interval_end).cmp(&(&b.key, !b.interval_end)));
    let mut parts = Vec::new();
    let key = |k: &[u8]| if s.fields.len() > 1 { hex(k) } else { show(look, k) };
    for (i, e) in sorted.iter().enumerate() {
        if e.interval_end {
            continue;
        }
        let mut t = match &e.key {
            None => "*".into(),
            Some(k) => key(k),
        };
        let end = match sorted.get(i + 1) {
            Some(n) if n.interval_end && look == Look::Number => {
                n.key.as_deref().and_then(number).map(|n| (n - 1).to_string())
            }
            Some(n) if n.interval_end => n.key.as_deref().map(|k| format!("before {}", key(k))),
            _ => e.key_end.as_deref().map(key),
        };
        if let Some(end) = end.filter(|x| *x != t) {
            t = format!("{t}-{end}");
        }
        if let Some(Data::Verdict(v)) = &e.data {
            t += &format!(" : {}", verdict(v));
        } else if let Some(Data::Value(v)) = &e.data {
            t += &format!(" : {}", hex(v));
        }
        parts.push(t);
    }
    let more = parts.len().saturating_sub(SHOWN);
    parts.truncate(SHOWN);
    if more > 0 {
        parts.push(format!("{more} more"));
    }
    format!("{{ {} }}", parts.join(", "))
}
