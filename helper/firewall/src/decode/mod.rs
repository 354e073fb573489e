//! Netlink messages → [`Ruleset`]: every object of nf_tables, in the order the kernel gives them.
//!
//! Attribute numbers are those of linux/netfilter/nf_tables.h. A message that does not follow it is an error that
//! names the object; an expression that is not known is kept whole.

mod expr;

use crate::ir::{Chain, Data, Element, Family, Flowtable, Hook, Object, Rule, Ruleset, Set, Table, Verdict};
use crate::wire::{Attr, GENMSG, Message, WireError, attrs};
pub use expr::expressions;
use thiserror::Error;

/// `NFT_MSG_*` with the subsystem in the upper byte.
pub mod message {
    /// `NFNL_SUBSYS_NFTABLES`.
    pub const SUBSYSTEM: u8 = 10;

    /// The `nlmsg_type` of a message of nf_tables.
    pub const fn kind(n: u8) -> u16 {
        ((SUBSYSTEM as u16) << 8) | n as u16
    }

    /// Tables.
    pub const NEWTABLE: u16 = kind(0);
    /// Asks for tables.
    pub const GETTABLE: u16 = kind(1);
    /// Chains.
    pub const NEWCHAIN: u16 = kind(3);
    /// Asks for chains.
    pub const GETCHAIN: u16 = kind(4);
    /// Rules.
    pub const NEWRULE: u16 = kind(6);
    /// Asks for rules.
    pub const GETRULE: u16 = kind(7);
    /// Removes a rule.
    pub const DELRULE: u16 = kind(8);
    /// Sets.
    pub const NEWSET: u16 = kind(9);
    /// Asks for sets.
    pub const GETSET: u16 = kind(10);
    /// Elements of a set.
    pub const NEWSETELEM: u16 = kind(12);
    /// Asks for elements.
    pub const GETSETELEM: u16 = kind(13);
    /// A generation.
    pub const NEWGEN: u16 = kind(15);
    /// Asks for the generation.
    pub const GETGEN: u16 = kind(16);
    /// Objects.
    pub const NEWOBJ: u16 = kind(18);
    /// Asks for objects.
    pub const GETOBJ: u16 = kind(19);
    /// Flow tables.
    pub const NEWFLOWTABLE: u16 = kind(22);
    /// Asks for flow tables.
    pub const GETFLOWTABLE: u16 = kind(23);
}

/// Why a message is not understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes are not netlink.
    #[error("{object}: {source}")]
    Wire {
        /// What was being read.
        object: &'static str,
        /// Where and what.
        source: WireError,
    },
    /// An attribute that the object cannot be without.
    #[error("{object} without {attribute}")]
    Missing {
        /// What was being read.
        object: &'static str,
        /// What it lacks.
        attribute: &'static str,
    },
    /// Elements of a set that was not dumped before.
    #[error("elements of {0}, which is not there")]
    NoSuchSet(String),
    /// Expressions nested deeper than the kernel allows.
    #[error("expressions nested too deeply")]
    Depth,
}

/// A generation and who made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// Its number.
    pub id: u32,
    /// The process that committed it; 0 where it is not said.
    pub pid: u32,
    /// Its name (`comm`).
    pub process: String,
}

type Result<T> = std::result::Result<T, DecodeError>;

fn wire(object: &'static str) -> impl Fn(WireError) -> DecodeError + Copy {
    move |source| DecodeError::Wire { object, source }
}

/// Family and attributes of a message's body.
fn body<'a>(m: &Message<'a>, object: &'static str) -> Result<(Family, Vec<Attr<'a>>)> {
    let short = WireError { offset: 0, what: "a body shorter than its header" };
    let rest = m.body.get(GENMSG..).ok_or_else(|| wire(object)(short))?;
    Ok((Family(m.body[0]), attrs(rest).map_err(wire(object))?))
}

fn missing(object: &'static str, attribute: &'static str) -> DecodeError {
    DecodeError::Missing { object, attribute }
}

/// Reads a `NEWGEN` message.
pub fn generation(m: &Message<'_>) -> Result<Generation> {
    let (_, list) = body(m, "generation")?;
    let w = wire("generation");
    let (mut id, mut pid, mut process) = (None, 0, String::new());
    for a in list {
        match a.kind {
            1 => id = Some(a.be32().map_err(w)?),
            2 => pid = a.be32().map_err(w)?,
            3 => process = a.text(),
            _ => {}
        }
    }
    Ok(Generation { id: id.ok_or_else(|| missing("generation", "its id"))?, pid, process })
}

impl Ruleset {
    /// Takes one dumped message in; messages of other kinds are passed over. Elements must come after their set.
    pub fn take(&mut self, m: &Message<'_>) -> Result<()> {
        match m.kind {
            message::NEWTABLE => self.tables.push(table(m)?),
            message::NEWCHAIN => self.chains.push(chain(m)?),
            message::NEWRULE => self.rules.push(rule(m)?),
            message::NEWSET => self.sets.push(set(m)?),
            message::NEWSETELEM => {
                let (family, table, name, mut list) = elements(m)?;
                let set = self
                    .sets
                    .iter_mut()
                    .find(|s| s.family == family && s.table == table && s.name == name)
                    .ok_or_else(|| DecodeError::NoSuchSet(format!("{family} {table} {name}")))?;
                set.elements.append(&mut list);
            }
            message::NEWOBJ => self.objects.push(object(m)?),
            message::NEWFLOWTABLE => self.flowtables.push(flowtable(m)?),
            message::NEWGEN => self.generation = generation(m)?.id,
            _ => {}
        }
        Ok(())
    }
}

fn table(m: &Message<'_>) -> Result<Table> {
    let (family, list) = body(m, "table")?;
    let w = wire("table");
    let mut t = Table { family, name: String::new(), flags: 0, handle: 0, owner: None, userdata: Vec::new() };
    for a in list {
        match a.kind {
            1 => t.name = a.text(),
            2 => t.flags = a.be32().map_err(w)?,
            4 => t.handle = a.be64().map_err(w)?,
            6 => t.userdata = a.data.to_vec(),
            7 => t.owner = Some(a.be32().map_err(w)?),
            _ => {}
        }
    }
    if t.name.is_empty() { Err(missing("table", "its name")) } else { Ok(t) }
}

fn hook(a: &Attr<'_>, object: &'static str) -> Result<Hook> {
    let w = wire(object);
    let mut h = Hook { number: 0, priority: 0, devices: Vec::new() };
    for a in a.nested().map_err(w)? {
        match a.kind {
            1 => h.number = a.be32().map_err(w)?,
            2 => h.priority = a.be32().map_err(w)? as i32,
            3 if object == "chain" => h.devices.push(a.text()),
            // Chains: NFTA_HOOK_DEVS is 4; flow tables: NFTA_FLOWTABLE_HOOK_DEVS is 3. One device is given in both
            // NFTA_HOOK_DEV and the list.
            3 | 4 => h.devices = a.nested().map_err(w)?.iter().map(Attr::text).collect(),
            _ => {}
        }
    }
    Ok(h)
}

fn chain(m: &Message<'_>) -> Result<Chain> {
    let (family, list) = body(m, "chain")?;
    let w = wire("chain");
    let mut c = Chain {
        family,
        table: String::new(),
        name: String::new(),
        handle: 0,
        hook: None,
        kind: String::new(),
        policy_accepts: None,
        flags: 0,
        userdata: Vec::new(),
    };
    for a in list {
        match a.kind {
            1 => c.table = a.text(),
            2 => c.handle = a.be64().map_err(w)?,
            3 => c.name = a.text(),
            4 => c.hook = Some(hook(&a, "chain")?),
            5 => c.policy_accepts = Some(a.be32().map_err(w)? == 1),
            7 => c.kind = a.text(),
            10 => c.flags = a.be32().map_err(w)?,
            12 => c.userdata = a.data.to_vec(),
            _ => {}
        }
    }
    match (c.table.is_empty(), c.name.is_empty()) {
        (true, _) => Err(missing("chain", "its table")),
        (_, true) => Err(missing("chain", "its name")),
        _ => Ok(c),
    }
}

fn rule(m: &Message<'_>) -> Result<Rule> {
    let (family, list) = body(m, "rule")?;
    let w = wire("rule");
    let mut r = Rule {
        family,
        table: String::new(),
        chain: String::new(),
        handle: 0,
        exprs: Vec::new(),
        userdata: Vec::new(),
        compat: None,
    };
    for a in list {
        match a.kind {
            1 => r.table = a.text(),
            2 => r.chain = a.text(),
            3 => r.handle = a.be64().map_err(w)?,
            4 => r.exprs = expressions(a.data)?,
            5 => r.compat = Some(a.data.to_vec()),
            7 => r.userdata = a.data.to_vec(),
            _ => {}
        }
    }
    match (r.table.is_empty(), r.chain.is_empty()) {
        (true, _) => Err(missing("rule", "its table")),
        (_, true) => Err(missing("rule", "its chain")),
        _ => Ok(r),
    }
}

fn set(m: &Message<'_>) -> Result<Set> {
    let (family, list) = body(m, "set")?;
    let w = wire("set");
    let mut s = Set {
        family,
        table: String::new(),
        name: String::new(),
        handle: 0,
        flags: 0,
        key_type: 0,
        key_len: 0,
        data_type: 0,
        data_len: 0,
        object_type: 0,
        fields: Vec::new(),
        size: None,
        timeout: None,
        exprs: Vec::new(),
        userdata: Vec::new(),
        elements: Vec::new(),
    };
    for a in list {
        match a.kind {
            1 => s.table = a.text(),
            2 => s.name = a.text(),
            3 => s.flags = a.be32().map_err(w)?,
            4 => s.key_type = a.be32().map_err(w)?,
            5 => s.key_len = a.be32().map_err(w)?,
            6 => s.data_type = a.be32().map_err(w)?,
            7 => s.data_len = a.be32().map_err(w)?,
            9 => {
                for d in a.nested().map_err(w)? {
                    match d.kind {
                        1 => s.size = Some(d.be32().map_err(w)?),
                        2 => {
                            for field in d.nested().map_err(w)? {
                                for len in field.nested().map_err(w)?.iter().filter(|l| l.kind == 1) {
                                    s.fields.push(len.be32().map_err(w)?);
                                }
                            }
                        }
                        _ => {}
                    }
                }
            }
            11 => s.timeout = Some(a.be64().map_err(w)?),
            13 => s.userdata = a.data.to_vec(),
            15 => s.object_type = a.be32().map_err(w)?,
            16 => s.handle = a.be64().map_err(w)?,
            17 => s.exprs.push(expr::expression(a.data, 0)?),
            18 => s.exprs = expressions(a.data)?,
            _ => {}
        }
    }
    match (s.table.is_empty(), s.name.is_empty()) {
        (true, _) => Err(missing("set", "its table")),
        (_, true) => Err(missing("set", "its name")),
        _ => Ok(s),
    }
}

type Elements = (Family, String, String, Vec<Element>);

fn elements(m: &Message<'_>) -> Result<Elements> {
    let (family, list) = body(m, "set elements")?;
    let w = wire("set elements");
    let (mut table, mut set, mut out) = (String::new(), String::new(), Vec::new());
    for a in list {
        match a.kind {
            1 => table = a.text(),
            2 => set = a.text(),
            3 => {
                for e in a.nested().map_err(w)? {
                    out.push(element(&e)?);
                }
            }
            _ => {}
        }
    }
    Ok((family, table, set, out))
}

fn element(a: &Attr<'_>) -> Result<Element> {
    let w = wire("set element");
    let mut e = Element {
        key: None,
        key_end: None,
        interval_end: false,
        data: None,
        object: None,
        timeout: None,
        expiration: None,
        exprs: Vec::new(),
        userdata: Vec::new(),
    };
    for a in a.nested().map_err(w)? {
        match a.kind {
            1 => e.key = value(&a, "set element")?,
            2 => e.data = data(&a, "set element")?,
            3 => e.interval_end = a.be32().map_err(w)? & 1 != 0,
            4 => e.timeout = Some(a.be64().map_err(w)?),
            5 => e.expiration = Some(a.be64().map_err(w)?),
            6 => e.userdata = a.data.to_vec(),
            7 => e.exprs.push(expr::expression(a.data, 0)?),
            9 => e.object = Some(a.text()),
            10 => e.key_end = value(&a, "set element")?,
            11 => e.exprs = expressions(a.data)?,
            _ => {}
        }
    }
    Ok(e)
}

fn value(a: &Attr<'_>, object: &'static str) -> Result<Option<Vec<u8>>> {
    Ok(match data(a, object)? {
        Some(Data::Value(v)) => Some(v),
        Some(Data::Verdict(_)) | None => None,
    })
}

/// `NFTA_DATA_*`: a value or a verdict.
fn data(a: &Attr<'_>, object: &'static str) -> Result<Option<Data>> {
    let w = wire(object);
    for d in a.nested().map_err(w)? {
        match d.kind {
            1 => return Ok(Some(Data::Value(d.data.to_vec()))),
            2 => {
                let (mut code, mut chain) = (None, String::new());
                for v in d.nested().map_err(w)? {
                    match v.kind {
                        1 => code = Some(v.be32().map_err(w)? as i32),
                        2 => chain = v.text(),
                        _ => {}
                    }
                }
                let code = code.ok_or_else(|| missing(object, "the code of its verdict"))?;
                return Ok(Some(Data::Verdict(verdict(code, chain))));
            }
            _ => {}
        }
    }
    Ok(None)
}

fn verdict(code: i32, chain: String) -> Verdict {
    match code {
        -1 => Verdict::Continue,
        -2 => Verdict::Break,
        -3 => Verdict::Jump(chain),
        -4 => Verdict::Goto(chain),
        -5 => Verdict::Return,
        0 => Verdict::Drop,
        1 => Verdict::Accept,
        // NF_QUEUE with the queue's number in the upper half.
        n if n > 0 && n & 0xff == 3 => Verdict::Queue(n as u32 >> 16),
        n => Verdict::Other(n),
    }
}

fn object(m: &Message<'_>) -> Result<Object> {
    let (family, list) = body(m, "object")?;
    let w = wire("object");
    let mut o = Object { family, table: String::new(), name: String::new(), handle: 0, kind: 0, data: Vec::new() };
    for a in list {
        match a.kind {
            1 => o.table = a.text(),
            2 => o.name = a.text(),
            3 => o.kind = a.be32().map_err(w)?,
            4 => o.data = a.data.to_vec(),
            6 => o.handle = a.be64().map_err(w)?,
            _ => {}
        }
    }
    if o.name.is_empty() { Err(missing("object", "its name")) } else { Ok(o) }
}

fn flowtable(m: &Message<'_>) -> Result<Flowtable> {
    let (family, list) = body(m, "flowtable")?;
    let w = wire("flowtable");
    let mut t = Flowtable { family, table: String::new(), name: String::new(), handle: 0, hook: None, flags: 0 };
    for a in list {
        match a.kind {
            1 => t.table = a.text(),
            2 => t.name = a.text(),
            3 => t.hook = Some(hook(&a, "flowtable")?),
            5 => t.handle = a.be64().map_err(w)?,
            7 => t.flags = a.be32().map_err(w)?,
            _ => {}
        }
    }
    if t.name.is_empty() { Err(missing("flowtable", "its name")) } else { Ok(t) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::messages;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(kind in 0u8..26, body in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut r = Ruleset::default();
            r.take(&Message { kind: message::kind(kind), flags: 0, seq: 0, body: &body }).ok();
            messages(&body).ok();
            expressions(&body).ok();
        }

        /// Well-formed attributes with random types and payloads get further in than random bytes.
        #[test]
        fn no_attributes_make_it_panic(kind in 0u8..26, list in proptest::collection::vec(
            (0u16..20, proptest::collection::vec((0u16..14, proptest::collection::vec(any::<u8>(), 0..24)), 0..6)), 0..8)) {
            let mut body = vec![1, 0, 0, 0];
            for (k, inner) in &list {
                let mut nested = Vec::new();
                for (k, data) in inner {
                    crate::wire::put(&mut nested, *k, data);
                }
                crate::wire::put(&mut body, *k, &nested);
            }
            let mut r = Ruleset::default();
            r.take(&Message { kind: message::kind(kind), flags: 0, seq: 0, body: &body }).ok();
        }
    }
}
