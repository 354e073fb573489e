//! What the mesh writes into the kernel: its own rules and nothing else, as one batch bound to one generation.

use crate::decode::message;
use crate::ir::{CmpOp, Data, Expr, Family, Reg, Verdict};
use crate::wire::{Builder, NESTED, put, zeroed};

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
/// `NFNL_MSG_BATCH_BEGIN`.
const BATCH_BEGIN: u16 = 0x10;
/// `NFNL_MSG_BATCH_END`.
const BATCH_END: u16 = 0x11;

/// A batch of changes that the kernel takes whole, and only if its generation is still `generation`.
#[derive(Debug)]
pub struct Batch {
    builder: Builder,
    seq: u32,
}

impl Batch {
    /// Begins one; its messages are numbered from `seq + 1`.
    pub fn begin(generation: u32, seq: u32) -> Batch {
        let mut builder = Builder::new();
        builder.message(BATCH_BEGIN, REQUEST, seq, 0, u16::from(message::SUBSYSTEM));
        // NFNL_BATCH_GENID.
        builder.attr(1, &generation.to_be_bytes());
        Batch { builder, seq }
    }

    /// Adds a rule: before the rule with handle `before`, else at the chain's end. Returns the message's number.
    pub fn insert(
        &mut self,
        (family, table, chain): (Family, &str, &str),
        before: Option<u64>,
        exprs: &[Expr],
        comment: &str,
    ) -> u32 {
        self.seq += 1;
        let place = if before.is_some() { 0 } else { APPEND };
        self.builder.message(message::NEWRULE, REQUEST | ACK | CREATE | place, self.seq, family.0, 0);
        self.builder.string(1, table).string(2, chain);
        let mut list = Vec::new();
        for e in exprs {
            put(&mut list, 1 | NESTED, &expression(e));
        }
        self.builder.attr(4 | NESTED, &list);
        if let Some(handle) = before {
            self.builder.attr(6, &handle.to_be_bytes());
        }
        self.builder.attr(7, &comment_userdata(comment));
        self.seq
    }

    /// Removes a rule by its handle. Returns the message's number.
    pub fn remove(&mut self, (family, table, chain): (Family, &str, &str), handle: u64) -> u32 {
        self.seq += 1;
        self.builder.message(message::DELRULE, REQUEST | ACK, self.seq, family.0, 0);
        self.builder.string(1, table).string(2, chain).attr(3, &handle.to_be_bytes());
        self.seq
    }

    /// The bytes to send.
    pub fn end(mut self) -> Vec<u8> {
        self.builder.message(BATCH_END, REQUEST, self.seq + 1, 0, u16::from(message::SUBSYSTEM));
        self.builder.bytes()
    }
}

/// nft's user data for a comment: kind 0, length with the NUL, text, NUL.
pub fn comment_userdata(comment: &str) -> Vec<u8> {
    let text = zeroed(comment);
    let mut v = vec![0, text.len() as u8];
    v.extend(text);
    v
}

/// A dump request for everything of one kind; `NLM_F_DUMP`.
pub fn dump(kind: u16, seq: u32) -> Vec<u8> {
    let mut b = Builder::new();
    b.message(kind, REQUEST | 0x300, seq, 0, 0);
    b.bytes()
}

/// A dump request for the elements of one set.
pub fn dump_elements(family: Family, table: &str, set: &str, seq: u32) -> Vec<u8> {
    let mut b = Builder::new();
    b.message(message::GETSETELEM, REQUEST | 0x300, seq, family.0, 0);
    b.string(1, table).string(2, set);
    b.bytes()
}

/// A request for the generation.
pub fn get_generation(seq: u32) -> Vec<u8> {
    let mut b = Builder::new();
    b.message(message::GETGEN, REQUEST, seq, 0, 0);
    b.bytes()
}

/// Expressions that the mesh writes. The others have no encoding here and yield a name the kernel refuses, so that a
/// mistake cannot become a rule that matches more.
fn expression(e: &Expr) -> Vec<u8> {
    let (name, body) = match e {
        Expr::Meta { key, dreg: Some(d), .. } => ("meta", fields(&[(1, d.0), (2, *key)])),
        Expr::Payload { base, offset, len, dreg } => {
            ("payload", fields(&[(1, dreg.0), (2, *base), (3, *offset), (4, *len)]))
        }
        Expr::Cmp { sreg, op: CmpOp::Eq, data } => {
            let mut b = fields(&[(1, sreg.0), (2, 0)]);
            value(&mut b, 3, data);
            ("cmp", b)
        }
        Expr::Range { sreg, inverted: false, from, to } => {
            let mut b = fields(&[(1, sreg.0), (2, 0)]);
            value(&mut b, 3, from);
            value(&mut b, 4, to);
            ("range", b)
        }
        Expr::Bitwise { sreg, dreg, len, op: crate::ir::BitwiseOp::MaskXor { mask, xor } } => {
            let mut b = fields(&[(1, sreg.0), (2, dreg.0), (3, *len)]);
            value(&mut b, 4, mask);
            value(&mut b, 5, xor);
            ("bitwise", b)
        }
        Expr::Counter { packets, bytes } => {
            let mut b = Vec::new();
            put(&mut b, 1, &bytes.to_be_bytes());
            put(&mut b, 2, &packets.to_be_bytes());
            ("counter", b)
        }
        Expr::Immediate { dreg: Reg(0), data: Data::Verdict(Verdict::Accept) } => {
            let mut verdict = Vec::new();
            put(&mut verdict, 1, &1u32.to_be_bytes());
            let mut data = Vec::new();
            put(&mut data, 2 | NESTED, &verdict);
            let mut b = fields(&[(1, 0)]);
            put(&mut b, 2 | NESTED, &data);
            ("immediate", b)
        }
        _ => ("mesh-has-no-such", Vec::new()),
    };
    let mut out = Vec::new();
    put(&mut out, 1, &zeroed(name));
    put(&mut out, 2 | NESTED, &body);
    out
}

fn fields(list: &[(u16, u32)]) -> Vec<u8> {
    let mut b = Vec::new();
    for (kind, n) in list {
        put(&mut b, *kind, &n.to_be_bytes());
    }
    b
}

fn value(out: &mut Vec<u8>, kind: u16, bytes: &[u8]) {
    let mut data = Vec::new();
    put(&mut data, 1, bytes);
    put(out, kind | NESTED, &data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::expressions;
    use crate::ir::{BitwiseOp, userdata_comment};
    use crate::wire::messages;

    #[test]
    fn own_expressions_read_back() {
        let r = Reg(1);
        let list = vec![
            Expr::Meta { key: 15, dreg: Some(r), sreg: None },
            Expr::Cmp { sreg: r, op: CmpOp::Eq, data: vec![2] },
            Expr::Payload { base: 1, offset: 12, len: 4, dreg: r },
            Expr::Bitwise {
                sreg: r,
                dreg: r,
                len: 4,
                op: BitwiseOp::MaskXor { mask: vec![255, 240, 0, 0], xor: vec![0; 4] },
            },
            Expr::Range { sreg: r, inverted: false, from: vec![0, 1], to: vec![0, 9] },
            Expr::Counter { packets: 0, bytes: 0 },
            Expr::Immediate { dreg: Reg(0), data: Data::Verdict(Verdict::Accept) },
        ];
        let mut bytes = Vec::new();
        for e in &list {
            put(&mut bytes, 1, &expression(e));
        }
        assert_eq!(expressions(&bytes).unwrap(), list);
    }

    #[test]
    fn a_batch_is_bound_to_its_generation() {
        let mut b = Batch::begin(7, 100);
        assert_eq!(b.insert((Family::INET, "t", "c"), Some(5), &[], "mesh:v1:0"), 101);
        assert_eq!(b.remove((Family::INET, "t", "c"), 9), 102);
        let bytes = b.end();
        let m = messages(&bytes).unwrap();
        assert_eq!(m.iter().map(|m| m.kind).collect::<Vec<_>>(), [0x10, message::NEWRULE, message::DELRULE, 0x11]);
        assert_eq!(m[0].body, [0, 0, 0, 10, 8, 0, 1, 0, 0, 0, 0, 7]);
        assert_eq!(m[1].flags & APPEND, 0, "an insert before a rule does not append");
    }

    #[test]
    fn comments_are_nft_s() {
        assert_eq!(userdata_comment(&comment_userdata("mesh:v1:abc")).as_deref(), Some("mesh:v1:abc"));
    }
}
