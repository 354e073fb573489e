//! Netlink's bytes: messages and attributes read without ever trusting a length, and built for a batch.
//!
//! Lengths and types are in host order, nf_tables values in network order (linux/netlink.h,
//! linux/netfilter/nfnetlink.h). A length that runs over its buffer ends the reading with an error.

use thiserror::Error;

/// Why bytes are not netlink.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("malformed netlink at byte {offset}: {what}")]
pub struct WireError {
    /// Offset from the start of the buffer that was being read.
    pub offset: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// The 16-byte header of a message (`struct nlmsghdr`).
pub const HEADER: usize = 16;
/// The 4-byte header of an nfnetlink message after it (`struct nfgenmsg`).
pub const GENMSG: usize = 4;

/// One netlink message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// `nlmsg_seq`.
    pub seq: u32,
    /// What follows the header.
    pub body: &'a [u8],
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

fn aligned(n: usize) -> usize {
    n.saturating_add(3) & !3
}

/// Splits a datagram into its messages.
pub fn messages(datagram: &[u8]) -> Result<Vec<Message<'_>>, WireError> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < datagram.len() {
        let fail = |what| WireError { offset: at, what };
        let rest = &datagram[at..];
        let (Some(len), Some(kind), Some(flags), Some(seq)) =
            (u32_at(rest, 0), u16_at(rest, 4), u16_at(rest, 6), u32_at(rest, 8))
        else {
            return Err(fail("a message shorter than its header"));
        };
        let len = len as usize;
        let body = rest.get(HEADER..len).ok_or_else(|| fail("a message length outside the buffer"))?;
        out.push(Message { kind, flags, seq, body });
        at = at.saturating_add(aligned(len));
    }
    Ok(out)
}

/// One attribute, without the nested and byte-order bits of its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr<'a> {
    /// Its type, of the enclosing space.
    pub kind: u16,
    /// Its payload.
    pub data: &'a [u8],
}

/// Splits a payload into attributes.
pub fn attrs(payload: &[u8]) -> Result<Vec<Attr<'_>>, WireError> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < payload.len() {
        let fail = |what| WireError { offset: at, what };
        let rest = &payload[at..];
        let (Some(len), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) else {
            return Err(fail("an attribute shorter than its header"));
        };
        let len = len as usize;
        let data = rest.get(4..len).ok_or_else(|| fail("an attribute length outside its payload"))?;
        // NLA_TYPE_MASK: the two top bits are NLA_F_NESTED and NLA_F_NET_BYTEORDER.
        out.push(Attr { kind: kind & 0x3fff, data });
        at = at.saturating_add(aligned(len));
    }
    Ok(out)
}

impl<'a> Attr<'a> {
    fn sized<const N: usize>(&self) -> Result<[u8; N], WireError> {
        self.data.try_into().map_err(|_| WireError { offset: 0, what: "an integer of another length" })
    }

    /// A `u8`.
    pub fn u8(&self) -> Result<u8, WireError> {
        self.sized::<1>().map(|[b]| b)
    }

    /// A big-endian `u16`.
    pub fn be16(&self) -> Result<u16, WireError> {
        self.sized().map(u16::from_be_bytes)
    }

    /// A big-endian `u32`.
    pub fn be32(&self) -> Result<u32, WireError> {
        self.sized().map(u32::from_be_bytes)
    }

    /// A big-endian `u64`.
    pub fn be64(&self) -> Result<u64, WireError> {
        self.sized().map(u64::from_be_bytes)
    }

    /// A string; the NUL at its end is not part of it. Bytes that are not UTF-8 are replaced: names from the kernel
    /// are only compared and shown.
    pub fn text(&self) -> String {
        let end = self.data.iter().position(|b| *b == 0).unwrap_or(self.data.len());
        String::from_utf8_lossy(&self.data[..end]).into_owned()
    }

    /// The attributes inside.
    pub fn nested(&self) -> Result<Vec<Attr<'a>>, WireError> {
        attrs(self.data)
    }
}

/// The error of an `NLMSG_ERROR` body: 0 for an acknowledgement, else a negative errno.
pub fn error_code(body: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(body.get(..4)?.try_into().ok()?))
}

/// Builds messages one after the other.
#[derive(Debug, Default, Clone)]
pub struct Builder {
    bytes: Vec<u8>,
    start: usize,
}

impl Builder {
    /// Nothing yet.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Begins a message: header, then `nfgenmsg` of `family` and `res_id` (network order on the wire).
    pub fn message(&mut self, kind: u16, flags: u16, seq: u32, family: u8, res_id: u16) {
        self.finish();
        self.start = self.bytes.len();
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&seq.to_ne_bytes());
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(&[family, 0]);
        self.bytes.extend_from_slice(&res_id.to_be_bytes());
    }

    fn finish(&mut self) {
        let len = self.bytes.len() - self.start;
        if len >= HEADER {
            self.bytes[self.start..self.start + 4].copy_from_slice(&(len as u32).to_ne_bytes());
        }
    }

    /// The finished bytes.
    pub fn bytes(mut self) -> Vec<u8> {
        self.finish();
        self.bytes
    }

    /// Appends an attribute.
    pub fn attr(&mut self, kind: u16, data: &[u8]) -> &mut Builder {
        put(&mut self.bytes, kind, data);
        self
    }

    /// Appends a NUL-terminated string.
    pub fn string(&mut self, kind: u16, text: &str) -> &mut Builder {
        self.attr(kind, &zeroed(text))
    }
}

/// `text` with the NUL that netlink strings end with.
pub fn zeroed(text: &str) -> Vec<u8> {
    let mut v = text.as_bytes().to_vec();
    v.push(0);
    v
}

/// Appends one attribute to `out`. `data` must be shorter than 64 KiB (everything that the mesh writes is).
pub fn put(out: &mut Vec<u8>, kind: u16, data: &[u8]) {
    out.extend_from_slice(&((data.len() + 4) as u16).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(data);
    out.resize(aligned(out.len()), 0);
}

/// Marks an attribute type as nested.
pub const NESTED: u16 = 0x8000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_reads_back() {
        let mut b = Builder::new();
        b.message(7, 1, 9, 2, 10);
        b.string(1, "filter").attr(2, &5u32.to_be_bytes());
        b.message(8, 0, 10, 0, 0);
        let bytes = b.bytes();
        let m = messages(&bytes).unwrap();
        assert_eq!((m.len(), m[0].kind, m[0].seq, m[1].kind), (2, 7, 9, 8));
        let a = attrs(&m[0].body[GENMSG..]).unwrap();
        assert_eq!((a[0].text(), a[1].be32().unwrap()), ("filter".to_string(), 5));
        assert!(a[0].be32().is_err(), "a string is not an integer");
    }

    #[test]
    fn lengths_that_lie_are_errors() {
        for bad in [&[1u8, 0, 0][..], &[3, 0, 1, 0], &[9, 0, 1, 0, 0]] {
            assert!(attrs(bad).is_err(), "{bad:?}");
        }
        assert!(messages(&[255; 20]).is_err());
        assert!(messages(&[0; 16]).is_err(), "a length of 0 would never end");
    }
}
