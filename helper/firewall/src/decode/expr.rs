//! Expressions: each that is known becomes its variant with every attribute; each other is kept whole.

use super::{DecodeError, Result, data, missing, value, wire};
use crate::ir::{BitwiseOp, CmpOp, Data, Expr, Reg, Xt};
use crate::wire::{Attr, attrs};

/// Deeper than a rule's expressions, a dynset's, and a set's there is nothing in nf_tables.
const DEPTH: u8 = 4;

/// A list of expressions (`NFTA_RULE_EXPRESSIONS` and its like).
pub fn expressions(list: &[u8]) -> Result<Vec<Expr>> {
    nested(list, 0)
}

fn nested(list: &[u8], depth: u8) -> Result<Vec<Expr>> {
    attrs(list).map_err(wire("expressions"))?.iter().map(|a| expression(a.data, depth)).collect()
}

/// One expression: `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`.
pub(super) fn expression(bytes: &[u8], depth: u8) -> Result<Expr> {
    if depth > DEPTH {
        return Err(DecodeError::Depth);
    }
    let (mut name, mut body) = (None, &[][..]);
    for a in attrs(bytes).map_err(wire("expression"))? {
        match a.kind {
            1 => name = Some(a.text()),
            2 => body = a.data,
            _ => {}
        }
    }
    let name = name.ok_or_else(|| missing("expression", "its name"))?;
    match known(&name, body, depth)? {
        Some(e) => Ok(e),
        None => Ok(Expr::Unknown { name, bytes: body.to_vec() }),
    }
}

/// The attributes of one expression, by number.
struct Fields<'a> {
    object: &'static str,
    list: Vec<Attr<'a>>,
}

impl<'a> Fields<'a> {
    fn get(&self, kind: u16) -> Option<&Attr<'a>> {
        self.list.iter().find(|a| a.kind == kind)
    }

    fn opt32(&self, kind: u16) -> Result<Option<u32>> {
        self.get(kind).map(Attr::be32).transpose().map_err(wire(self.object))
    }

    fn n32(&self, kind: u16) -> Result<u32> {
        Ok(self.opt32(kind)?.unwrap_or(0))
    }

    fn n64(&self, kind: u16) -> Result<u64> {
        Ok(self.get(kind).map(Attr::be64).transpose().map_err(wire(self.object))?.unwrap_or(0))
    }

    fn opt16(&self, kind: u16) -> Result<Option<u16>> {
        self.get(kind).map(Attr::be16).transpose().map_err(wire(self.object))
    }

    fn opt8(&self, kind: u16) -> Result<Option<u8>> {
        self.get(kind).map(Attr::u8).transpose().map_err(wire(self.object))
    }

    fn reg(&self, kind: u16) -> Result<Option<Reg>> {
        Ok(self.opt32(kind)?.map(Reg))
    }

    fn need(&self, kind: u16, what: &'static str) -> Result<Reg> {
        self.reg(kind)?.ok_or_else(|| missing(self.object, what))
    }

    fn text(&self, kind: u16) -> Option<String> {
        self.get(kind).map(Attr::text)
    }

    fn value(&self, kind: u16) -> Result<Vec<u8>> {
        Ok(match self.get(kind) {
            Some(a) => value(a, self.object)?.unwrap_or_default(),
            None => Vec::new(),
        })
    }

    fn regs(&self, min: u16, max: u16) -> Result<(Option<Reg>, Option<Reg>)> {
        Ok((self.reg(min)?, self.reg(max)?))
    }
}

/// `Ok(None)` for what this file has no variant for, and for a form of a known one that it does not know.
#[allow(clippy::too_many_lines, reason = "one arm an expression: a table")]
fn known(name: &str, body: &[u8], depth: u8) -> Result<Option<Expr>> {
    let fields = |object: &'static str| -> Result<Fields<'_>> {
        Ok(Fields { object, list: attrs(body).map_err(wire(object))? })
    };
    Ok(Some(match name {
        "meta" => {
            let f = fields("meta")?;
            Expr::Meta { key: f.n32(2)?, dreg: f.reg(1)?, sreg: f.reg(3)? }
        }
        "payload" => {
            let f = fields("payload")?;
            let (base, offset, len) = (f.n32(2)?, f.n32(3)?, f.n32(4)?);
            match f.reg(5)? {
                Some(sreg) => Expr::PayloadSet {
                    base,
                    offset,
                    len,
                    sreg,
                    csum_type: f.n32(6)?,
                    csum_offset: f.n32(7)?,
                    csum_flags: f.n32(8)?,
                },
                None => Expr::Payload { base, offset, len, dreg: f.need(1, "its register")? },
            }
        }
        "cmp" => {
            let f = fields("cmp")?;
            let op = match f.n32(2)? {
                0 => CmpOp::Eq,
                1 => CmpOp::Ne,
                2 => CmpOp::Lt,
                3 => CmpOp::Le,
                4 => CmpOp::Gt,
                5 => CmpOp::Ge,
                _ => return Ok(None),
            };
            Expr::Cmp { sreg: f.need(1, "its register")?, op, data: f.value(3)? }
        }
        "range" => {
            let f = fields("range")?;
            let inverted = match f.n32(2)? {
                0 => false,
                1 => true,
                _ => return Ok(None),
            };
            Expr::Range { sreg: f.need(1, "its register")?, inverted, from: f.value(3)?, to: f.value(4)? }
        }
        "bitwise" => {
            let f = fields("bitwise")?;
            let op = match f.n32(6)? {
                0 => BitwiseOp::MaskXor { mask: f.value(4)?, xor: f.value(5)? },
                1 => BitwiseOp::Left(f.value(7)?),
                2 => BitwiseOp::Right(f.value(7)?),
                op => BitwiseOp::Registers { op, with: f.reg(8)? },
            };
            Expr::Bitwise { sreg: f.need(1, "its source")?, dreg: f.need(2, "its register")?, len: f.n32(3)?, op }
        }
        "byteorder" => {
            let f = fields("byteorder")?;
            Expr::Byteorder {
                sreg: f.need(1, "its source")?,
                dreg: f.need(2, "its register")?,
                op: f.n32(3)?,
                len: f.n32(4)?,
                size: f.n32(5)?,
            }
        }
        "immediate" => {
            let f = fields("immediate")?;
            let dreg = f.need(1, "its register")?;
            let Some(d) = f.get(2).map(|a| data(a, "immediate")).transpose()?.flatten() else {
                return Ok(None);
            };
            if (dreg == Reg::VERDICT) != matches!(d, Data::Verdict(_)) {
                return Ok(None);
            }
            Expr::Immediate { dreg, data: d }
        }
        "lookup" => {
            let f = fields("lookup")?;
            Expr::Lookup {
                set: f.text(1).unwrap_or_default(),
                sreg: f.need(2, "its register")?,
                dreg: f.reg(3)?,
                inverted: f.n32(5)? & 1 != 0,
            }
        }
        "ct" => {
            let f = fields("ct")?;
            Expr::Ct { key: f.n32(2)?, direction: f.opt8(3)?, dreg: f.reg(1)?, sreg: f.reg(4)? }
        }
        "counter" => {
            let f = fields("counter")?;
            Expr::Counter { bytes: f.n64(1)?, packets: f.n64(2)? }
        }
        "limit" => {
            let f = fields("limit")?;
            Expr::Limit {
                rate: f.n64(1)?,
                unit: f.n64(2)?,
                burst: f.n32(3)?,
                bytes: f.n32(4)? == 1,
                over: f.n32(5)? & 1 != 0,
            }
        }
        "quota" => {
            let f = fields("quota")?;
            Expr::Quota { bytes: f.n64(1)?, flags: f.n32(2)?, consumed: f.n64(4)? }
        }
        "connlimit" => {
            let f = fields("connlimit")?;
            Expr::Connlimit { count: f.n32(1)?, over: f.n32(2)? & 1 != 0 }
        }
        "log" => {
            let f = fields("log")?;
            Expr::Log {
                group: f.opt16(1)?,
                prefix: f.text(2),
                snaplen: f.opt32(3)?,
                threshold: f.opt16(4)?,
                level: f.opt32(5)?,
                flags: f.n32(6)?,
            }
        }
        "reject" => {
            let f = fields("reject")?;
            Expr::Reject { kind: f.n32(1)?, code: f.opt8(2)?.unwrap_or(0) }
        }
        "nat" => {
            let f = fields("nat")?;
            Expr::Nat {
                dnat: f.n32(1)? == 1,
                family: f.n32(2)?,
                addr: f.regs(3, 4)?,
                proto: f.regs(5, 6)?,
                flags: f.n32(7)?,
            }
        }
        "masq" => {
            let f = fields("masq")?;
            Expr::Masq { flags: f.n32(1)?, proto: f.regs(2, 3)? }
        }
        "redir" => {
            let f = fields("redir")?;
            Expr::Redir { proto: f.regs(1, 2)?, flags: f.n32(3)? }
        }
        "tproxy" => {
            let f = fields("tproxy")?;
            Expr::Tproxy { family: f.n32(1)?, addr: f.reg(2)?, port: f.reg(3)? }
        }
        "notrack" => Expr::Notrack,
        "fib" => {
            let f = fields("fib")?;
            Expr::Fib { dreg: f.reg(1)?, result: f.n32(2)?, flags: f.n32(3)? }
        }
        "dynset" => {
            let f = fields("dynset")?;
            let mut exprs = Vec::new();
            if let Some(a) = f.get(7) {
                exprs.push(expression(a.data, depth + 1)?);
            }
            if let Some(a) = f.get(10) {
                exprs = nested(a.data, depth + 1)?;
            }
            Expr::Dynset {
                set: f.text(1).unwrap_or_default(),
                op: f.n32(3)?,
                key: f.need(4, "its key")?,
                data: f.reg(5)?,
                timeout: f.n64(6)?,
                inverted: f.n32(9)? & 1 != 0,
                exprs,
            }
        }
        "objref" => {
            let f = fields("objref")?;
            let set = match (f.text(4), f.reg(3)?) {
                (Some(s), Some(r)) => Some((s, r)),
                _ => None,
            };
            Expr::Objref { kind: f.n32(1)?, name: f.text(2), set }
        }
        "exthdr" => {
            let f = fields("exthdr")?;
            Expr::Exthdr {
                dreg: f.reg(1)?,
                kind: f.opt8(2)?.unwrap_or(0),
                offset: f.n32(3)?,
                len: f.n32(4)?,
                flags: f.n32(5)?,
                op: f.n32(6)?,
                sreg: f.reg(7)?,
            }
        }
        "rt" => {
            let f = fields("rt")?;
            Expr::Rt { dreg: f.need(1, "its register")?, key: f.n32(2)? }
        }
        "socket" => {
            let f = fields("socket")?;
            Expr::Socket { key: f.n32(1)?, dreg: f.need(2, "its register")?, level: f.opt32(3)? }
        }
        "numgen" => {
            let f = fields("numgen")?;
            Expr::Numgen { dreg: f.need(1, "its register")?, modulus: f.n32(2)?, kind: f.n32(3)?, offset: f.n32(4)? }
        }
        "queue" => {
            let f = fields("queue")?;
            Expr::Queue {
                number: f.opt16(1)?.unwrap_or(0),
                total: f.opt16(2)?.unwrap_or(0),
                flags: f.opt16(3)?.unwrap_or(0),
                sreg: f.reg(4)?,
            }
        }
        "flow_offload" => Expr::Flow { table: fields("flow_offload")?.text(1).unwrap_or_default() },
        "last" => {
            let f = fields("last")?;
            Expr::Last { set: f.n32(1)? != 0, msecs: f.n64(2)? }
        }
        "match" | "target" => {
            let f = fields("xt")?;
            let xt = Xt {
                name: f.text(1).unwrap_or_default(),
                revision: f.n32(2)?,
                info: f.get(3).map(|a| a.data.to_vec()).unwrap_or_default(),
            };
            if name == "match" { Expr::Match(xt) } else { Expr::Target(xt) }
        }
        _ => return Ok(None),
    }))
}
