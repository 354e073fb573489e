//! A ruleset as the kernel has it: tables, chains, rules, sets, with each expression's registers exactly.
//!
//! Nothing is simplified: registers, offsets and data bytes are the kernel's, so that other readers of the same value
//! (an evaluator, a renderer, a comparison) need no second look at the machine.

use std::fmt;

/// Everything that one generation of the kernel's ruleset holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ruleset {
    /// The generation it was read at.
    pub generation: u32,
    /// In the kernel's order.
    pub tables: Vec<Table>,
    /// In the kernel's order.
    pub chains: Vec<Chain>,
    /// In the kernel's order: for each chain, the order of evaluation.
    pub rules: Vec<Rule>,
    /// Named and anonymous ones.
    pub sets: Vec<Set>,
    /// Named counters, quotas, limits and the like.
    pub objects: Vec<Object>,
    /// Flow tables.
    pub flowtables: Vec<Flowtable>,
}

/// `nfgenmsg.nfgen_family` (linux/netfilter.h, `NFPROTO_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Family(pub u8);

impl Family {
    /// IPv4 and IPv6.
    pub const INET: Family = Family(1);
    /// IPv4.
    pub const IP: Family = Family(2);
    /// ARP.
    pub const ARP: Family = Family(3);
    /// One device, any protocol.
    pub const NETDEV: Family = Family(5);
    /// Bridged frames.
    pub const BRIDGE: Family = Family(7);
    /// IPv6.
    pub const IP6: Family = Family(10);

    /// As nft writes it.
    pub fn word(self) -> &'static str {
        match self.0 {
            1 => "inet",
            2 => "ip",
            3 => "arp",
            5 => "netdev",
            7 => "bridge",
            10 => "ip6",
            _ => "unknown",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: String,
    /// `NFT_TABLE_F_*`.
    pub flags: u32,
    /// Its handle.
    pub handle: u64,
    /// The netlink port of the process that owns it.
    pub owner: Option<u32>,
    /// Comment and what else user space keeps there, whole.
    pub userdata: Vec<u8>,
}

impl Table {
    /// Its chains are not hooked.
    pub fn dormant(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Only its owner may change it.
    pub fn owned(&self) -> bool {
        self.flags & 2 != 0
    }

    /// It outlives its owner.
    pub fn persist(&self) -> bool {
        self.flags & 4 != 0
    }
}

/// Where a base chain is hooked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// `NF_INET_*`, `NF_NETDEV_*` by family.
    pub number: u32,
    /// Lower runs first.
    pub priority: i32,
    /// Device names (netdev family, inet ingress).
    pub devices: Vec<String>,
}

/// Hooks of the families ip, ip6 and inet (linux/netfilter.h).
pub mod hook {
    /// Before routing.
    pub const PREROUTING: u32 = 0;
    /// To this host.
    pub const INPUT: u32 = 1;
    /// Through this host.
    pub const FORWARD: u32 = 2;
    /// From this host.
    pub const OUTPUT: u32 = 3;
    /// After routing.
    pub const POSTROUTING: u32 = 4;
    /// Of one device, inet family.
    pub const INGRESS: u32 = 5;
}

/// A chain; a base chain if it has a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Of its table.
    pub family: Family,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// Its handle.
    pub handle: u64,
    /// Where it is hooked.
    pub hook: Option<Hook>,
    /// `filter`, `nat` or `route` for a base chain.
    pub kind: String,
    /// The base chain's policy: `Some(true)` accepts.
    pub policy_accepts: Option<bool>,
    /// `NFT_CHAIN_*`.
    pub flags: u32,
    /// Comment, whole.
    pub userdata: Vec<u8>,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Of its table.
    pub family: Family,
    /// Its table.
    pub table: String,
    /// Its chain.
    pub chain: String,
    /// Unique in the table, never used again.
    pub handle: u64,
    /// What it does, in order.
    pub exprs: Vec<Expr>,
    /// Comment and what else user space keeps there, whole.
    pub userdata: Vec<u8>,
    /// iptables-nft's compat attribute, whole.
    pub compat: Option<Vec<u8>>,
}

impl Rule {
    /// The comment: user data of nft's TLV kind 0, else an xt `comment` match.
    pub fn comment(&self) -> Option<String> {
        userdata_comment(&self.userdata).or_else(|| {
            self.exprs.iter().find_map(|e| match e {
                Expr::Match(m) if m.name == "comment" => Some(crate::xt::text(&m.info)),
                _ => None,
            })
        })
    }
}

/// nft's user data is a list of (kind u8, length u8, bytes); kind 0 of a rule is its comment with a NUL.
pub fn userdata_comment(mut data: &[u8]) -> Option<String> {
    while let [kind, len, rest @ ..] = data {
        let value = rest.get(..usize::from(*len))?;
        if *kind == 0 {
            let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
            return String::from_utf8(value[..end].to_vec()).ok();
        }
        data = &rest[usize::from(*len)..];
    }
    None
}

/// A register as the kernel names it: 1 to 4 of 16 bytes, or 8 to 23 of 4 bytes; 0 is the verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reg(pub u32);

impl Reg {
    /// The verdict register.
    pub const VERDICT: Reg = Reg(0);

    /// Offset of its first byte in the 64-byte register file; `None` for the verdict and for what does not exist.
    pub fn byte(self) -> Option<usize> {
        match self.0 {
            1..=4 => Some((self.0 as usize - 1) * 16),
            8..=23 => Some((self.0 as usize - 8) * 4),
            _ => None,
        }
    }
}

/// What a verdict register or map element holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Final in this base chain.
    Accept,
    /// Final.
    Drop,
    /// To user space.
    Queue(u32),
    /// On to the next rule.
    Continue,
    /// This rule does not match.
    Break,
    /// Into a chain, and back.
    Jump(String),
    /// Into a chain, and back to whoever jumped here.
    Goto(String),
    /// Back.
    Return,
    /// Another code.
    Other(i32),
}

/// Data of an immediate, a comparison or a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// Bytes.
    Value(Vec<u8>),
    /// A verdict.
    Verdict(Verdict),
}

/// `NFT_CMP_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmpOp {
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

/// `NFT_BITWISE_*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BitwiseOp {
    /// `(reg & mask) ^ xor`
    MaskXor {
        /// Kept bits.
        mask: Vec<u8>,
        /// Flipped bits.
        xor: Vec<u8>,
    },
    /// `reg << n`
    Left(Vec<u8>),
    /// `reg >> n`
    Right(Vec<u8>),
    /// `and`, `or`, `xor` with a second register (kernels from 6.13 on), by its number.
    Registers {
        /// `NFT_BITWISE_*`.
        op: u32,
        /// The second register.
        with: Option<Reg>,
    },
}

/// An extension of xtables, as iptables-nft puts it into a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xt {
    /// Its name.
    pub name: String,
    /// Its revision.
    pub revision: u32,
    /// Its private structure, host layout.
    pub info: Vec<u8>,
}

/// One expression. Field names are those of linux/netfilter/nf_tables.h.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the kernel header names each field; repeating it here would say nothing")]
pub enum Expr {
    Meta {
        key: u32,
        dreg: Option<Reg>,
        sreg: Option<Reg>,
    },
    Payload {
        base: u32,
        offset: u32,
        len: u32,
        dreg: Reg,
    },
    PayloadSet {
        base: u32,
        offset: u32,
        len: u32,
        sreg: Reg,
        csum_type: u32,
        csum_offset: u32,
        csum_flags: u32,
    },
    Cmp {
        sreg: Reg,
        op: CmpOp,
        data: Vec<u8>,
    },
    Range {
        sreg: Reg,
        inverted: bool,
        from: Vec<u8>,
        to: Vec<u8>,
    },
    Bitwise {
        sreg: Reg,
        dreg: Reg,
        len: u32,
        op: BitwiseOp,
    },
    Byteorder {
        sreg: Reg,
        dreg: Reg,
        op: u32,
        len: u32,
        size: u32,
    },
    Immediate {
        dreg: Reg,
        data: Data,
    },
    Lookup {
        set: String,
        sreg: Reg,
        dreg: Option<Reg>,
        inverted: bool,
    },
    Ct {
        key: u32,
        direction: Option<u8>,
        dreg: Option<Reg>,
        sreg: Option<Reg>,
    },
    Counter {
        packets: u64,
        bytes: u64,
    },
    Limit {
        rate: u64,
        unit: u64,
        burst: u32,
        bytes: bool,
        over: bool,
    },
    Quota {
        bytes: u64,
        flags: u32,
        consumed: u64,
    },
    Connlimit {
        count: u32,
        over: bool,
    },
    Log {
        prefix: Option<String>,
        group: Option<u16>,
        level: Option<u32>,
        flags: u32,
        snaplen: Option<u32>,
        threshold: Option<u16>,
    },
    Reject {
        kind: u32,
        code: u8,
    },
    Nat {
        dnat: bool,
        family: u32,
        addr: (Option<Reg>, Option<Reg>),
        proto: (Option<Reg>, Option<Reg>),
        flags: u32,
    },
    Masq {
        flags: u32,
        proto: (Option<Reg>, Option<Reg>),
    },
    Redir {
        flags: u32,
        proto: (Option<Reg>, Option<Reg>),
    },
    Tproxy {
        family: u32,
        addr: Option<Reg>,
        port: Option<Reg>,
    },
    Notrack,
    Fib {
        dreg: Option<Reg>,
        result: u32,
        flags: u32,
    },
    Dynset {
        set: String,
        op: u32,
        key: Reg,
        data: Option<Reg>,
        timeout: u64,
        inverted: bool,
        exprs: Vec<Expr>,
    },
    Objref {
        kind: u32,
        name: Option<String>,
        set: Option<(String, Reg)>,
    },
    Exthdr {
        kind: u8,
        offset: u32,
        len: u32,
        flags: u32,
        op: u32,
        dreg: Option<Reg>,
        sreg: Option<Reg>,
    },
    Rt {
        key: u32,
        dreg: Reg,
    },
    Socket {
        key: u32,
        level: Option<u32>,
        dreg: Reg,
    },
    Numgen {
        dreg: Reg,
        modulus: u32,
        kind: u32,
        offset: u32,
    },
    Queue {
        number: u16,
        total: u16,
        flags: u16,
        sreg: Option<Reg>,
    },
    Flow {
        table: String,
    },
    Last {
        set: bool,
        msecs: u64,
    },
    Match(Xt),
    Target(Xt),
    /// Kept whole: its name and the bytes of its attributes.
    Unknown {
        name: String,
        bytes: Vec<u8>,
    },
}

/// A set or map, named or anonymous (`__set%d`, `__map%d`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Of its table.
    pub family: Family,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// Its handle.
    pub handle: u64,
    /// `NFT_SET_*`.
    pub flags: u32,
    /// nft's number of the key's type.
    pub key_type: u32,
    /// Length of the key in bytes, each field of a concatenation rounded up to 4.
    pub key_len: u32,
    /// Type of the data: `0xffffff00` is a verdict.
    pub data_type: u32,
    /// Length of the data in bytes.
    pub data_len: u32,
    /// Of an object map.
    pub object_type: u32,
    /// Lengths of a concatenation's fields in bytes.
    pub fields: Vec<u32>,
    /// How many elements it may hold.
    pub size: Option<u32>,
    /// Default time-out in milliseconds.
    pub timeout: Option<u64>,
    /// Evaluated for each element.
    pub exprs: Vec<Expr>,
    /// Types and comment, whole.
    pub userdata: Vec<u8>,
    /// In the kernel's order.
    pub elements: Vec<Element>,
}

impl Set {
    /// Made for one rule.
    pub fn anonymous(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Its elements are ranges.
    pub fn interval(&self) -> bool {
        self.flags & 4 != 0
    }

    /// It gives data for a key.
    pub fn map(&self) -> bool {
        self.flags & 8 != 0
    }

    /// Rules or time change its elements.
    pub fn dynamic(&self) -> bool {
        self.flags & 0x30 != 0
    }
}

/// An element of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// The key, or the lower end; `None` for the catch-all.
    pub key: Option<Vec<u8>>,
    /// The upper end, inclusive, where the set keeps both in one element.
    pub key_end: Option<Vec<u8>>,
    /// It ends the range that the element before began.
    pub interval_end: bool,
    /// What a map gives.
    pub data: Option<Data>,
    /// The object that an object map gives.
    pub object: Option<String>,
    /// Its own time-out in milliseconds.
    pub timeout: Option<u64>,
    /// What is left of it, in milliseconds.
    pub expiration: Option<u64>,
    /// Evaluated when it is hit.
    pub exprs: Vec<Expr>,
    /// Comment, whole.
    pub userdata: Vec<u8>,
}

/// A named object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Of its table.
    pub family: Family,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// Its handle.
    pub handle: u64,
    /// `NFT_OBJECT_*`.
    pub kind: u32,
    /// Its attributes, whole.
    pub data: Vec<u8>,
}

/// A flow table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flowtable {
    /// Of its table.
    pub family: Family,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// Its handle.
    pub handle: u64,
    /// Where it sits.
    pub hook: Option<Hook>,
    /// `NFT_FLOWTABLE_*`.
    pub flags: u32,
}

impl Ruleset {
    /// A table by family and name.
    pub fn table(&self, family: Family, name: &str) -> Option<&Table> {
        self.tables.iter().find(|t| t.family == family && t.name == name)
    }

    /// A chain by its table and name.
    pub fn chain(&self, family: Family, table: &str, name: &str) -> Option<&Chain> {
        self.chains.iter().find(|c| c.family == family && c.table == table && c.name == name)
    }

    /// A set by its table and name.
    pub fn set(&self, family: Family, table: &str, name: &str) -> Option<&Set> {
        self.sets.iter().find(|s| s.family == family && s.table == table && s.name == name)
    }

    /// The rules of a chain, in order.
    pub fn rules_of<'a>(&'a self, chain: &'a Chain) -> impl Iterator<Item = &'a Rule> {
        self.rules.iter().filter(|r| r.chain == chain.name && r.table == chain.table && r.family == chain.family)
    }
}
