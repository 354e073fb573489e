//! One rule asked about one flow: which verdicts it may give, and on what that hangs.
//!
//! Registers hold [`Byte`]s, so a packet of which only some fields are known runs through the expressions as the
//! kernel runs a whole one. An expression that is not understood makes everything after it in its rule opaque.

use crate::bits::{self, Byte, Tri, Why};
use crate::ir::{BitwiseOp, Chain, CmpOp, Data, Element, Expr, Reg, Rule, Ruleset, Set, Verdict};
use crate::xt::{self, TargetEffect};
use mesh_model::flow::{Carried, Flow};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What is known of this machine besides its ruleset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Interface names with their indexes.
    pub interfaces: BTreeMap<String, u32>,
    /// The tables of iptables-legacy that exist, by family (`ip filter`).
    pub legacy: Vec<String>,
    /// `/etc/ufw/ufw.conf` says `ENABLED=yes`.
    pub ufw_enabled: bool,
}

/// Conntrack state of the packet that is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The first packet of a connection.
    New,
    /// One that follows.
    Established,
}

/// A packet of a flow, with what is known of it.
#[derive(Debug, Clone)]
pub struct Packet {
    /// IPv6, else IPv4.
    pub v6: bool,
    proto: u8,
    network: Vec<Byte>,
    transport: Vec<Byte>,
    iif_name: Vec<Byte>,
    iif_index: Vec<Byte>,
    state: State,
}

impl Packet {
    /// The packets of `flow` in one family whose port (or ICMP type) begins with the bits of `part`: a value and the
    /// number of its low bits that are left open.
    pub fn of(flow: &Flow, v6: bool, state: State, part: Option<(u16, u32)>, facts: &Facts) -> Packet {
        let mut network = bits::unknown(40, Why::OTHER);
        let (proto_at, source_at, dest_at, len) = if v6 { (6, 8, 24, 16) } else { (9, 12, 16, 4) };
        network.truncate(if v6 { 40 } else { 20 });
        network[0] = Byte::partly(if v6 { 0x60 } else { 0x40 }, 0xf0, Why::OTHER);
        network[proto_at] = Byte::of(flow.protocol());
        let octets = |a: IpAddr| match a {
            IpAddr::V4(a) => a.octets().to_vec(),
            IpAddr::V6(a) => a.octets().to_vec(),
        };
        let source = match flow.from {
            Some(p) => bits::prefixed(&octets(p.addr()), p.prefix_len(), Why::SOURCE),
            None => bits::unknown(len, Why::SOURCE),
        };
        network[source_at..source_at + len].copy_from_slice(&source);
        let dest = match flow.to {
            Some(a) => bits::known(&octets(a)),
            None => bits::unknown(len, Why::DESTINATION),
        };
        network[dest_at..dest_at + len].copy_from_slice(&dest);

        let mut transport = bits::unknown(20, Why::OTHER);
        if let Some((value, open)) = part {
            let mask = if open >= 16 { 0 } else { 0xffffu16 << open };
            let (v, m) = (value.to_be_bytes(), mask.to_be_bytes());
            match flow.carried {
                Carried::Ports { .. } => {
                    transport[2] = Byte::partly(v[0], m[0], Why::PART);
                    transport[3] = Byte::partly(v[1], m[1], Why::PART);
                }
                Carried::Icmp(_) | Carried::Icmp6(_) => transport[0] = Byte::partly(v[1], m[1], Why::PART),
                Carried::Bare(_) => {}
            }
        }
        let (iif_name, iif_index) = match &flow.on {
            Some(name) => {
                let mut padded = name.as_bytes().to_vec();
                padded.resize(16, 0);
                let index = match facts.interfaces.get(name) {
                    Some(i) => bits::known(&i.to_ne_bytes()),
                    None => bits::unknown(4, Why::INTERFACE),
                };
                (bits::known(&padded), index)
            }
            None => (bits::unknown(16, Why::INTERFACE), bits::unknown(4, Why::INTERFACE)),
        };
        Packet { v6, proto: flow.protocol(), network, transport, iif_name, iif_index, state }
    }
}

/// What a rule may do with the packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// An nf_tables verdict other than continue and break.
    Verdict(Verdict),
    /// `reject` and what is like it.
    Reject,
    /// The destination is changed.
    Translate,
    /// Something that ends the rules in a way that is not known.
    Opaque,
}

/// One possible effect; certain if `why` is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Possible {
    /// What.
    pub effect: Effect,
    /// On what it hangs.
    pub why: Why,
}

const FILE: usize = 64;

struct Machine<'a> {
    ruleset: &'a Ruleset,
    chain: &'a Chain,
    packet: &'a Packet,
    registers: [Byte; FILE],
    why: Why,
    out: Vec<Possible>,
}

/// What `rule` of `chain` may do with `packet`. Nothing in the answer: it goes on to the next rule for certain.
pub fn rule(ruleset: &Ruleset, chain: &Chain, rule: &Rule, packet: &Packet) -> Vec<Possible> {
    let mut m = Machine { ruleset, chain, packet, registers: [Byte::of(0); FILE], why: Why::NONE, out: Vec::new() };
    for e in &rule.exprs {
        match m.step(e) {
            Tri::Yes => {}
            Tri::No => break,
            Tri::Maybe(w) => m.why |= w,
        }
        if m.out.iter().any(|p| p.why.is_none()) {
            break;
        }
    }
    m.out
}

impl Machine<'_> {
    fn load(&mut self, reg: Reg, bytes: &[Byte]) {
        if let Some(at) = reg.byte() {
            // The kernel zeroes the rest of the last word.
            let end = (at + bytes.len()).next_multiple_of(4).min(FILE);
            for (i, slot) in self.registers[at.min(FILE)..end].iter_mut().enumerate() {
                *slot = bytes.get(i).copied().unwrap_or(Byte::of(0));
            }
        }
    }

    fn forget(&mut self, reg: Option<Reg>, len: usize, why: Why) -> Tri {
        if let Some(r) = reg {
            self.load(r, &bits::unknown(len, why));
        }
        Tri::Yes
    }

    fn read(&self, reg: Reg, len: usize) -> Vec<Byte> {
        match reg.byte() {
            Some(at) => self.registers[at..(at + len).min(FILE)].to_vec(),
            None => Vec::new(),
        }
    }

    fn effect(&mut self, effect: Effect, why: Why) -> Tri {
        self.out.push(Possible { effect, why: self.why | why });
        Tri::Yes
    }

    fn verdict(&mut self, v: &Verdict, why: Why) -> Tri {
        match v {
            // Break only leaves this rule.
            Verdict::Continue => Tri::Yes,
            Verdict::Break => Tri::No,
            Verdict::Queue(_) | Verdict::Other(_) => self.effect(Effect::Opaque, why),
            v @ (Verdict::Accept | Verdict::Drop | Verdict::Return | Verdict::Jump(_) | Verdict::Goto(_)) => {
                self.effect(Effect::Verdict(v.clone()), why)
            }
        }
    }

    fn step(&mut self, e: &Expr) -> Tri {
        match e {
            Expr::Meta { key, dreg: Some(d), .. } => self.meta(*key, *d),
            Expr::Payload { base, offset, len, dreg } => self.payload(*base, *offset, *len, *dreg),
            Expr::PayloadSet { base, offset, .. } => {
                // Rewriting what this crate keeps track of would make every later answer wrong.
                let addresses = *base == 1 && *offset >= if self.packet.v6 { 8 } else { 12 };
                let ports = *base == 2 && *offset < 4;
                if addresses || ports { self.effect(Effect::Opaque, Why::NONE) } else { Tri::Yes }
            }
            Expr::Cmp { sreg, op, data } => self.cmp(*sreg, *op, data),
            Expr::Range { sreg, inverted, from, to } => {
                bits::within(&self.read(*sreg, from.len()), from, to).invert(*inverted)
            }
            Expr::Bitwise { sreg, dreg, len, op } => self.bitwise(*sreg, *dreg, *len as usize, op),
            Expr::Byteorder { sreg, dreg, len, size, .. } => {
                let mut bytes = self.read(*sreg, *len as usize);
                if cfg!(target_endian = "little") {
                    bytes.chunks_mut((*size as usize).clamp(1, 8)).for_each(<[Byte]>::reverse);
                }
                self.load(*dreg, &bytes);
                Tri::Yes
            }
            Expr::Immediate { dreg, data: Data::Value(v) } => {
                self.load(*dreg, &bits::known(v));
                Tri::Yes
            }
            Expr::Immediate { data: Data::Verdict(v), .. } => self.verdict(v, Why::NONE),
            Expr::Lookup { set, sreg, dreg, inverted } => self.lookup(set, *sreg, *dreg, *inverted),
            Expr::Ct { key, direction, dreg: Some(d), .. } => self.ct(*key, *direction, *d),
            // Setting a mark, a connection's mark, a priority changes nothing that is asked.
            Expr::Meta { .. } | Expr::Ct { .. } => Tri::Yes,
            Expr::Counter { .. } | Expr::Log { .. } | Expr::Notrack | Expr::Last { .. } | Expr::Flow { .. } => Tri::Yes,
            Expr::Limit { .. } | Expr::Quota { .. } | Expr::Connlimit { .. } => Tri::Maybe(Why::OTHER),
            Expr::Reject { .. } => self.effect(Effect::Reject, Why::NONE),
            Expr::Nat { dnat: true, .. } | Expr::Redir { .. } | Expr::Tproxy { .. } => {
                self.effect(Effect::Translate, Why::NONE)
            }
            Expr::Nat { .. } | Expr::Masq { .. } => Tri::Yes,
            Expr::Fib { dreg, flags, .. } => {
                // NFTA_FIB_F_SADDR is 1, F_DADDR 2, F_MARK 4, F_IIF 8.
                let mut why = Why::NONE;
                for (bit, w) in [(1, Why::SOURCE), (2, Why::DESTINATION), (4, Why::OTHER), (8, Why::INTERFACE)] {
                    if flags & bit != 0 {
                        why |= w;
                    }
                }
                self.forget(*dreg, 16, why | Why::OTHER)
            }
            Expr::Dynset { exprs, inverted, .. } => {
                let rated = exprs.iter().any(|e| !matches!(e, Expr::Counter { .. } | Expr::Last { .. }));
                // An update without a rate in it only fails when the set is full: it goes on.
                if rated || *inverted { Tri::Maybe(Why::OTHER) } else { Tri::Yes }
            }
            Expr::Objref { kind, set, .. } => match (kind, set) {
                // NFT_OBJECT_COUNTER, CT_HELPER, CT_TIMEOUT, SECMARK, CT_EXPECT let every packet go on.
                (1 | 3 | 7 | 8 | 9, None) => Tri::Yes,
                // QUOTA, LIMIT, CONNLIMIT, TUNNEL, and whatever a map may give.
                (2 | 4 | 5 | 6, _) | (1 | 3 | 7 | 8 | 9, Some(_)) => Tri::Maybe(Why::OTHER),
                _ => self.effect(Effect::Opaque, Why::NONE),
            },
            Expr::Exthdr { dreg: Some(d), .. } => {
                self.load(*d, &bits::unknown(16, Why::OTHER));
                Tri::Maybe(Why::OTHER)
            }
            Expr::Exthdr { .. } => Tri::Maybe(Why::OTHER),
            Expr::Rt { dreg, .. } | Expr::Numgen { dreg, .. } => self.forget(Some(*dreg), 16, Why::OTHER),
            Expr::Socket { dreg, .. } => {
                self.load(*dreg, &bits::unknown(16, Why::OTHER));
                Tri::Maybe(Why::OTHER)
            }
            Expr::Queue { .. } => self.effect(Effect::Opaque, Why::NONE),
            Expr::Match(m) => xt::matches(m, self.packet.proto, &self.packet.transport),
            Expr::Target(t) => match xt::effect(t) {
                TargetEffect::Continues => Tri::Yes,
                TargetEffect::Drops => self.effect(Effect::Reject, Why::NONE),
                TargetEffect::Translates => self.effect(Effect::Translate, Why::NONE),
                TargetEffect::Opaque => self.effect(Effect::Opaque, Why::OPAQUE),
            },
            Expr::Unknown { name, .. } => {
                self.registers = [Byte::unknown(Why::OPAQUE); FILE];
                match name.as_str() {
                    // They load a register or copy the packet, and at most break.
                    "hash" | "osf" | "xfrm" | "tunnel" | "dup" | "inner" => Tri::Maybe(Why::OPAQUE),
                    // Any other may end the rules by itself (synproxy, fwd, what is yet to be invented).
                    _ => {
                        self.effect(Effect::Opaque, Why::OPAQUE);
                        Tri::Maybe(Why::OPAQUE)
                    }
                }
            }
        }
    }

    fn meta(&mut self, key: u32, dreg: Reg) -> Tri {
        let p = self.packet;
        let bytes = match key {
            // NFT_META_PROTOCOL: the ethertype.
            1 => bits::known(if p.v6 { &[0x86, 0xdd] } else { &[0x08, 0x00] }),
            4 => p.iif_index.clone(),
            6 => p.iif_name.clone(),
            // IIFTYPE, IIFGROUP, IIFKIND, SDIF, SDIFNAME.
            8 | 21 | 26 | 33 | 34 => bits::unknown(16, Why::INTERFACE),
            15 => bits::known(&[if p.v6 { 10 } else { 2 }]),
            16 => bits::known(&[p.proto]),
            _ => bits::unknown(16, Why::OTHER),
        };
        self.load(dreg, &bytes);
        Tri::Yes
    }

    fn payload(&mut self, base: u32, offset: u32, len: u32, dreg: Reg) -> Tri {
        let (header, beyond): (&[Byte], Why) = match base {
            // The sender's hardware address; the rest of the link header.
            0 => (&[], if (6..12).contains(&offset) { Why::SOURCE } else { Why::OTHER }),
            1 => (&self.packet.network, Why::OTHER),
            2 => (&self.packet.transport, Why::OTHER),
            _ => (&[], Why::OTHER),
        };
        let bytes: Vec<Byte> = (offset as usize..)
            .take((len as usize).min(FILE))
            .map(|i| header.get(i).copied().unwrap_or(Byte::unknown(beyond)))
            .collect();
        self.load(dreg, &bytes);
        Tri::Yes
    }

    fn ct(&mut self, key: u32, direction: Option<u8>, dreg: Reg) -> Tri {
        let bytes = match (key, direction) {
            // Bits are 1 << (ctinfo % 3 + 1): established 2, related 4, new 8; host order.
            (0, None) => bits::known(&match self.packet.state {
                State::New => 8u32.to_ne_bytes(),
                State::Established => 2u32.to_ne_bytes(),
            }),
            // Packets of the flow go the way of the first one.
            (1, None) => bits::known(&[0]),
            _ => bits::unknown(16, Why::OTHER),
        };
        self.load(dreg, &bytes);
        Tri::Yes
    }

    fn cmp(&self, sreg: Reg, op: CmpOp, data: &[u8]) -> Tri {
        let bytes = self.read(sreg, data.len());
        let (low, high) = (vec![0; data.len()], vec![0xff; data.len()]);
        match op {
            CmpOp::Eq => bits::equal(&bytes, data),
            CmpOp::Ne => bits::equal(&bytes, data).opposite(),
            CmpOp::Le => bits::within(&bytes, &low, data),
            CmpOp::Gt => bits::within(&bytes, &low, data).opposite(),
            CmpOp::Ge => bits::within(&bytes, data, &high),
            CmpOp::Lt => bits::within(&bytes, data, &high).opposite(),
        }
    }

    fn bitwise(&mut self, sreg: Reg, dreg: Reg, len: usize, op: &BitwiseOp) -> Tri {
        let bytes = self.read(sreg, len.min(FILE));
        let out: Vec<Byte> = match op {
            BitwiseOp::MaskXor { mask, xor } if mask.len() == bytes.len() && xor.len() == bytes.len() => bytes
                .iter()
                .zip(mask.iter().zip(xor))
                .map(|(b, (m, x))| Byte::partly((b.value & m) ^ x, b.known | !m, b.why))
                .collect(),
            _ => bits::unknown(bytes.len(), bits::why(&bytes) | Why::OTHER),
        };
        self.load(dreg, &out);
        Tri::Yes
    }

    fn lookup(&mut self, name: &str, sreg: Reg, dreg: Option<Reg>, inverted: bool) -> Tri {
        let Some(set) = self.ruleset.set(self.chain.family, &self.chain.table, name) else {
            return Tri::Maybe(Why::OPAQUE);
        };
        let key = self.read(sreg, set.key_len as usize);
        let hits = hits(set, &key);
        let certain = hits.iter().find(|(_, w)| w.is_none()).map(|(e, _)| *e);
        let verdict_map = set.map() && dreg == Some(Reg::VERDICT);
        if verdict_map {
            match certain {
                Some(Element { data: Some(Data::Verdict(v)), .. }) => return self.verdict(v, Why::NONE),
                Some(_) => return Tri::Maybe(Why::OPAQUE),
                None => {}
            }
            for (e, w) in &hits {
                if let Some(Data::Verdict(v)) = &e.data {
                    self.verdict(v, *w);
                }
            }
            return Tri::Yes;
        }
        let answer = match (certain, hits.is_empty()) {
            (Some(_), _) => Tri::Yes,
            (None, true) => Tri::No,
            (None, false) => Tri::Maybe(hits.iter().fold(Why::NONE, |a, (_, w)| a | *w)),
        };
        // What is named may be filled at any time; as long as only a part of the flow can be in it, it stays a maybe.
        let open = bits::why(&key);
        let answer = match answer {
            Tri::No if !set.anonymous() && !open.is_none() => Tri::Maybe(open),
            other => other,
        };
        if let Some(d) = dreg {
            let len = set.data_len as usize;
            match certain.and_then(|e| e.data.as_ref()) {
                Some(Data::Value(v)) => self.load(d, &bits::known(v)),
                _ => self.load(d, &bits::unknown(len.min(16), Why::OTHER | open)),
            }
        }
        answer.invert(inverted)
    }
}

/// The elements that `key` may hit, each with what that hangs on; a certain hit stands alone.
fn hits<'a>(set: &'a Set, key: &[Byte]) -> Vec<(&'a Element, Why)> {
    let mut out = Vec::new();
    let mut any = |e: &'a Element, t: Tri| {
        let rated = if e.exprs.iter().all(|x| matches!(x, Expr::Counter { .. } | Expr::Last { .. })) {
            Why::NONE
        } else {
            Why::OTHER
        };
        match t {
            Tri::Yes => out.push((e, rated)),
            Tri::No => {}
            Tri::Maybe(w) => out.push((e, w | rated)),
        }
    };
    if set.interval() && set.fields.len() < 2 && set.elements.iter().all(|e| e.key_end.is_none()) {
        // Ranges as start and end elements: an end is exclusive, and at the same key comes before the next start.
        let mut sorted: Vec<(&[u8], bool, &Element)> =
            set.elements.iter().filter_map(|e| Some((e.key.as_deref()?, !e.interval_end, e))).collect();
        sorted.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
        let mut begun: Option<(&[u8], &Element)> = None;
        for (at, starts, e) in &sorted {
            if let Some((from, element)) = begun.take() {
                any(element, bits::within(key, from, &before(at)));
            }
            begun = starts.then_some((*at, *e));
        }
        if let Some((from, element)) = begun {
            any(element, bits::within(key, from, &vec![0xff; from.len()]));
        }
    } else {
        for e in &set.elements {
            let Some(from) = e.key.as_deref() else { continue };
            any(e, element(set, key, from, e.key_end.as_deref()));
        }
    }
    let certain = out.iter().position(|(_, w)| w.is_none());
    if let Some(i) = certain {
        return vec![out[i]];
    }
    // The catch-all has no key and is hit by what hits nothing else.
    if let Some(e) = set.elements.iter().find(|e| e.key.is_none()) {
        let w = out.iter().fold(Why::NONE, |a, (_, w)| a | *w);
        out.push((e, w));
    }
    out
}

/// One less, as a big-endian number; 0 stays 0.
fn before(bytes: &[u8]) -> Vec<u8> {
    let mut v = bytes.to_vec();
    for b in v.iter_mut().rev() {
        let (n, borrow) = b.overflowing_sub(1);
        *b = n;
        if !borrow {
            return v;
        }
    }
    bytes.to_vec()
}

/// Whether `key` is one element, field by field for a concatenation.
fn element(set: &Set, key: &[Byte], from: &[u8], to: Option<&[u8]>) -> Tri {
    let to = to.unwrap_or(from);
    let whole = [set.key_len];
    let fields: &[u32] = if set.fields.is_empty() { &whole } else { &set.fields };
    let (mut at, mut why) = (0, Why::NONE);
    for len in fields {
        let len = *len as usize;
        let (Some(k), Some(f), Some(t)) = (key.get(at..at + len), from.get(at..at + len), to.get(at..at + len)) else {
            return Tri::Maybe(Why::OPAQUE);
        };
        match bits::within(k, f, t) {
            Tri::Yes => {}
            Tri::No => return Tri::No,
            Tri::Maybe(w) => why |= w,
        }
        at += len.next_multiple_of(4);
    }
    if why.is_none() { Tri::Yes } else { Tri::Maybe(why) }
}
