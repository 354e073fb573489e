//! The few xtables extensions that are understood: comment, tcp, udp and multiport. Layouts are those of
//! linux/netfilter/{xt_comment,xt_tcpudp,xt_multiport}.h, in host order; every other blob stays opaque.

use crate::bits::{Byte, Tri, Why, within};
use crate::ir::Xt;

/// The NUL-terminated text of an xt `comment`.
pub fn text(info: &[u8]) -> String {
    let end = info.iter().position(|b| *b == 0).unwrap_or(info.len());
    String::from_utf8_lossy(&info[..end]).into_owned()
}

fn u16_at(info: &[u8], index: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(info.get(index * 2..index * 2 + 2)?.try_into().ok()?))
}

fn ports(transport: &[Byte], at: usize, low: u16, high: u16) -> Tri {
    match transport.get(at..at + 2) {
        Some(bytes) => within(bytes, &low.to_be_bytes(), &high.to_be_bytes()),
        None => Tri::Maybe(Why::OPAQUE),
    }
}

fn and(a: Tri, b: Tri) -> Tri {
    match (a, b) {
        (Tri::No, _) | (_, Tri::No) => Tri::No,
        (Tri::Yes, x) | (x, Tri::Yes) => x,
        (Tri::Maybe(a), Tri::Maybe(b)) => Tri::Maybe(a | b),
    }
}

fn or(a: Tri, b: Tri) -> Tri {
    and(a.opposite(), b.opposite()).opposite()
}

/// Source and destination port ranges as xt_tcp and xt_udp begin; `inverted` has bit 0 for the source, 1 for the
/// destination.
fn two_ranges(info: &[u8], inverted: u8, transport: &[Byte]) -> Option<Tri> {
    let s = ports(transport, 0, u16_at(info, 0)?, u16_at(info, 1)?).invert(inverted & 1 != 0);
    let d = ports(transport, 2, u16_at(info, 2)?, u16_at(info, 3)?).invert(inverted & 2 != 0);
    Some(and(s, d))
}

fn decide(m: &Xt, proto: u8, transport: &[Byte]) -> Option<Tri> {
    match m.name.as_str() {
        "comment" => Some(Tri::Yes),
        "tcp" if proto == 6 => {
            let (option, mask, inverted) = (*m.info.get(8)?, *m.info.get(9)?, *m.info.get(11)?);
            let answer = two_ranges(&m.info, inverted, transport)?;
            let rest = if option == 0 && mask == 0 { Tri::Yes } else { Tri::Maybe(Why::OTHER) };
            Some(and(answer, rest))
        }
        "udp" if proto == 17 => two_ranges(&m.info, *m.info.get(8)?, transport),
        "tcp" | "udp" => Some(Tri::No),
        "multiport" if m.revision == 1 => {
            let (flags, count) = (*m.info.first()?, usize::from(*m.info.get(1)?));
            let mut any = Tri::No;
            let mut i = 0;
            while i < count.min(15) {
                let low = u16_at(&m.info, 1 + i)?;
                // A port with its flag set begins a range whose end is the next port.
                let high = if *m.info.get(32 + i)? != 0 {
                    i += 1;
                    u16_at(&m.info, 1 + i)?
                } else {
                    low
                };
                i += 1;
                let (s, d) = (ports(transport, 0, low, high), ports(transport, 2, low, high));
                any = or(
                    any,
                    match flags {
                        0 => s,
                        1 => d,
                        _ => or(s, d),
                    },
                );
            }
            Some(any.invert(*m.info.get(47)? != 0))
        }
        _ => None,
    }
}

/// Whether `m` matches a packet of IP protocol `proto` with the transport header `transport`.
pub fn matches(m: &Xt, proto: u8, transport: &[Byte]) -> Tri {
    decide(m, proto, transport).unwrap_or(Tri::Maybe(Why::OPAQUE))
}

/// What an xt target does with a packet, as far as this crate must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetEffect {
    /// The rules go on.
    Continues,
    /// It is dropped or rejected.
    Drops,
    /// Its destination is changed.
    Translates,
    /// Not known.
    Opaque,
}

/// By the target's name.
pub fn effect(t: &Xt) -> TargetEffect {
    match t.name.as_str() {
        "REJECT" | "TARPIT" => TargetEffect::Drops,
        "DNAT" | "REDIRECT" | "NETMAP" | "TPROXY" => TargetEffect::Translates,
        "LOG" | "NFLOG" | "ULOG" | "MARK" | "CONNMARK" | "TCPMSS" | "CT" | "NOTRACK" | "TRACE" | "CLASSIFY"
        | "DSCP" | "TOS" | "TTL" | "HL" | "SET" | "CHECKSUM" | "AUDIT" | "RATEEST" | "SECMARK" | "CONNSECMARK"
        | "SNAT" | "MASQUERADE" | "LED" | "HMARK" | "TEE" | "IDLETIMER" => TargetEffect::Continues,
        _ => TargetEffect::Opaque,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::known;

    fn multiport(list: &[(u16, bool)], invert: bool) -> Xt {
        let mut info = vec![0u8; 48];
        (info[0], info[1], info[47]) = (1, list.len() as u8, u8::from(invert));
        for (i, (p, range)) in list.iter().enumerate() {
            info[2 + i * 2..4 + i * 2].copy_from_slice(&p.to_ne_bytes());
            info[32 + i] = u8::from(*range);
        }
        Xt { name: "multiport".into(), revision: 1, info }
    }

    #[test]
    fn multiport_has_ports_and_ranges() {
        let to = |port: u16| known(&[0x9c, 0x40, (port >> 8) as u8, port as u8]);
        let m = multiport(&[(22, false), (8000, true), (8010, false)], false);
        for (port, want) in [(22, Tri::Yes), (23, Tri::No), (8000, Tri::Yes), (8005, Tri::Yes), (8011, Tri::No)] {
            assert_eq!(matches(&m, 6, &to(port)), want, "{port}");
        }
        assert_eq!(matches(&multiport(&[(22, false)], true), 6, &to(22)), Tri::No);
        assert_eq!(
            matches(&Xt { name: "multiport".into(), revision: 1, info: vec![1, 3] }, 6, &to(22)),
            Tri::Maybe(Why::OPAQUE),
            "a blob too short is not understood"
        );
    }
}
