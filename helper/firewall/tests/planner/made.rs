//! Rulesets made by hand: tables, chains and rules in a few words.

use mesh_firewall::decode::message::NEWTABLE;
use mesh_firewall::encode::comment_userdata;
use mesh_firewall::ir::*;

pub const R: Reg = Reg(1);

/// A ruleset under construction; everything goes into one table.
pub struct Made {
    pub ruleset: Ruleset,
    family: Family,
    table: String,
    handle: u64,
}

impl Made {
    pub fn new(family: Family, table: &str) -> Made {
        assert_eq!(NEWTABLE >> 8, 10, "nf_tables is subsystem 10");
        let mut m =
            Made { ruleset: Ruleset { generation: 7, ..Ruleset::default() }, family, table: String::new(), handle: 0 };
        m.table(family, table);
        m
    }

    /// What follows goes into this table.
    pub fn table(&mut self, family: Family, name: &str) -> &mut Made {
        (self.family, self.table) = (family, name.into());
        self.ruleset.tables.push(Table {
            family,
            name: name.into(),
            flags: 0,
            handle: 1,
            owner: None,
            userdata: vec![],
        });
        self
    }

    pub fn flags(&mut self, flags: u32) -> &mut Made {
        self.ruleset.tables.last_mut().unwrap().flags = flags;
        self
    }

    fn chain_of(&mut self, name: &str, hook: Option<Hook>, kind: &str, accepts: Option<bool>) -> &mut Made {
        self.handle += 1;
        self.ruleset.chains.push(Chain {
            family: self.family,
            table: self.table.clone(),
            name: name.into(),
            handle: self.handle,
            hook,
            kind: kind.into(),
            policy_accepts: accepts,
            flags: 0,
            userdata: vec![],
        });
        self
    }

    pub fn chain(&mut self, name: &str) -> &mut Made {
        self.chain_of(name, None, "", None)
    }

    pub fn base(&mut self, name: &str, number: u32, kind: &str, accepts: bool) -> &mut Made {
        self.chain_of(name, Some(Hook { number, priority: 0, devices: vec![] }), kind, Some(accepts))
    }

    pub fn input(&mut self, accepts: bool) -> &mut Made {
        self.base("input", hook::INPUT, "filter", accepts)
    }

    /// A rule of a chain; returns its handle.
    pub fn rule(&mut self, chain: &str, parts: Vec<Vec<Expr>>) -> u64 {
        self.handle += 1;
        self.ruleset.rules.push(Rule {
            family: self.family,
            table: self.table.clone(),
            chain: chain.into(),
            handle: self.handle,
            exprs: parts.concat(),
            userdata: vec![],
            compat: None,
        });
        self.handle
    }

    pub fn comment(&mut self, text: &str) -> &mut Made {
        self.ruleset.rules.last_mut().unwrap().userdata = comment_userdata(text);
        self
    }

    pub fn set(&mut self, name: &str, flags: u32, key_len: u32, elements: Vec<Element>) -> &mut Made {
        self.ruleset.sets.push(Set {
            family: self.family,
            table: self.table.clone(),
            name: name.into(),
            handle: 0,
            flags,
            key_type: 0,
            key_len,
            data_type: 0,
            data_len: 0,
            object_type: 0,
            fields: vec![],
            size: None,
            timeout: None,
            exprs: vec![],
            userdata: vec![],
            elements,
        });
        self
    }
}

pub fn element(key: &[u8], data: Option<Data>) -> Element {
    Element {
        key: Some(key.to_vec()),
        key_end: None,
        interval_end: false,
        data,
        object: None,
        timeout: None,
        expiration: None,
        exprs: vec![],
        userdata: vec![],
    }
}

/// The element that ends a range, exclusive.
pub fn end(key: &[u8]) -> Element {
    Element { interval_end: true, ..element(key, None) }
}

pub fn verdict(v: Verdict) -> Vec<Expr> {
    vec![Expr::Immediate { dreg: Reg::VERDICT, data: Data::Verdict(v) }]
}

pub fn accept() -> Vec<Expr> {
    verdict(Verdict::Accept)
}

pub fn drop() -> Vec<Expr> {
    verdict(Verdict::Drop)
}

pub fn jump(to: &str) -> Vec<Expr> {
    verdict(Verdict::Jump(to.into()))
}

pub fn goto(to: &str) -> Vec<Expr> {
    verdict(Verdict::Goto(to.into()))
}

fn eq(data: &[u8]) -> Expr {
    Expr::Cmp { sreg: R, op: CmpOp::Eq, data: data.to_vec() }
}

pub fn tcp(port: u16) -> Vec<Expr> {
    tcps(port, port)
}

pub fn tcps(from: u16, to: u16) -> Vec<Expr> {
    vec![
        Expr::Meta { key: 16, dreg: Some(R), sreg: None },
        eq(&[6]),
        Expr::Payload { base: 2, offset: 2, len: 2, dreg: R },
        Expr::Range { sreg: R, inverted: false, from: from.to_be_bytes().to_vec(), to: to.to_be_bytes().to_vec() },
    ]
}

/// A source prefix of whole bytes.
pub fn from(bytes: &[u8]) -> Vec<Expr> {
    vec![
        Expr::Meta { key: 15, dreg: Some(R), sreg: None },
        eq(&[2]),
        Expr::Payload { base: 1, offset: 12, len: bytes.len() as u32, dreg: R },
        eq(bytes),
    ]
}

pub fn load_source() -> Vec<Expr> {
    vec![Expr::Payload { base: 1, offset: 12, len: 4, dreg: R }]
}

pub fn load_port() -> Vec<Expr> {
    vec![Expr::Payload { base: 2, offset: 2, len: 2, dreg: R }]
}

pub fn load_iif() -> Vec<Expr> {
    vec![Expr::Meta { key: 6, dreg: Some(R), sreg: None }]
}

pub fn lookup(set: &str) -> Vec<Expr> {
    vec![Expr::Lookup { set: set.into(), sreg: R, dreg: None, inverted: false }]
}

pub fn vmap(set: &str) -> Vec<Expr> {
    vec![Expr::Lookup { set: set.into(), sreg: R, dreg: Some(Reg::VERDICT), inverted: false }]
}

pub fn name16(name: &str) -> Vec<u8> {
    let mut v = name.as_bytes().to_vec();
    v.resize(16, 0);
    v
}

pub fn iif(name: &str) -> Vec<Expr> {
    let mut v = load_iif();
    v.push(eq(&name16(name)));
    v
}

/// `ct state` with these bits: invalid 1, established 2, related 4, new 8.
pub fn state(bits: u32) -> Vec<Expr> {
    let mask = bits.to_ne_bytes().to_vec();
    vec![
        Expr::Ct { key: 0, direction: None, dreg: Some(R), sreg: None },
        Expr::Bitwise { sreg: R, dreg: R, len: 4, op: BitwiseOp::MaskXor { mask, xor: vec![0; 4] } },
        Expr::Cmp { sreg: R, op: CmpOp::Ne, data: vec![0; 4] },
    ]
}
