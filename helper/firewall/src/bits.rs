//! Three-valued bytes: each bit known or not, and why not. What a rule loads into registers when only a flow is known.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// Why something is not known, as a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Why(u8);

impl Why {
    /// Nothing: it is known.
    pub const NONE: Why = Why(0);
    /// It hangs on who sends.
    pub const SOURCE: Why = Why(1);
    /// It hangs on the interface it comes in by.
    pub const INTERFACE: Why = Why(2);
    /// It hangs on which port or type of the asked range it is.
    pub const PART: Why = Why(4);
    /// It hangs on the destination address.
    pub const DESTINATION: Why = Why(8);
    /// It hangs on rates, marks, flags, and whatever else a flow does not say.
    pub const OTHER: Why = Why(16);
    /// It is not understood.
    pub const OPAQUE: Why = Why(32);

    /// Whether all of `other` is in it.
    pub fn has(self, other: Why) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether it is empty.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Why {
    type Output = Why;
    fn bitor(self, o: Why) -> Why {
        Why(self.0 | o.0)
    }
}

impl BitOrAssign for Why {
    fn bitor_assign(&mut self, o: Why) {
        self.0 |= o.0;
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = [
            (Why::SOURCE, "source"),
            (Why::INTERFACE, "interface"),
            (Why::PART, "port"),
            (Why::DESTINATION, "destination"),
            (Why::OTHER, "state, rate or other"),
            (Why::OPAQUE, "not understood"),
        ]
        .into_iter()
        .filter(|(w, _)| self.has(*w))
        .map(|(_, t)| t)
        .collect();
        f.write_str(&words.join(", "))
    }
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tri {
    /// For the whole flow.
    Yes,
    /// For none of it.
    No,
    /// For a part, or it cannot be told.
    Maybe(Why),
}

impl Tri {
    /// The opposite.
    #[must_use]
    pub fn opposite(self) -> Tri {
        match self {
            Tri::Yes => Tri::No,
            Tri::No => Tri::Yes,
            m @ Tri::Maybe(_) => m,
        }
    }

    /// Inverted if `inverted`.
    #[must_use]
    pub fn invert(self, inverted: bool) -> Tri {
        if inverted { self.opposite() } else { self }
    }
}

/// Eight bits; those set in `known` have the value in `value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Byte {
    /// The known bits; the others are 0.
    pub value: u8,
    /// Which are known.
    pub known: u8,
    /// Why the others are not; empty if all are.
    pub why: Why,
}

impl Byte {
    /// A known byte.
    pub fn of(value: u8) -> Byte {
        Byte { value, known: 0xff, why: Why::NONE }
    }

    /// A byte of which only the bits of `known` are known.
    pub fn partly(value: u8, known: u8, why: Why) -> Byte {
        Byte { value: value & known, known, why: if known == 0xff { Why::NONE } else { why } }
    }

    /// Nothing known.
    pub fn unknown(why: Why) -> Byte {
        Byte::partly(0, 0, why)
    }
}

/// Known bytes.
pub fn known(bytes: &[u8]) -> Vec<Byte> {
    bytes.iter().map(|b| Byte::of(*b)).collect()
}

/// Unknown bytes.
pub fn unknown(len: usize, why: Why) -> Vec<Byte> {
    vec![Byte::unknown(why); len]
}

/// An address of which the first `prefix` bits are known.
pub fn prefixed(address: &[u8], prefix: u8, why: Why) -> Vec<Byte> {
    address
        .iter()
        .enumerate()
        .map(|(i, b)| {
            let bits = (u32::from(prefix)).saturating_sub(i as u32 * 8).min(8);
            Byte::partly(*b, (0xff00u16 >> bits) as u8, why)
        })
        .collect()
}

/// Why any of `bytes` is not known.
pub fn why(bytes: &[Byte]) -> Why {
    bytes.iter().fold(Why::NONE, |w, b| w | b.why)
}

/// Whether `bytes` begin with `data`.
pub fn equal(bytes: &[Byte], data: &[u8]) -> Tri {
    if bytes.len() < data.len() {
        return Tri::Maybe(Why::OPAQUE);
    }
    let bytes = &bytes[..data.len()];
    if bytes.iter().zip(data).any(|(b, d)| (b.value ^ d) & b.known != 0) {
        return Tri::No;
    }
    match why(bytes) {
        w if w.is_none() => Tri::Yes,
        w => Tri::Maybe(w),
    }
}

/// The least and the greatest value that `bytes` can have.
pub fn bounds(bytes: &[Byte]) -> (Vec<u8>, Vec<u8>) {
    bytes.iter().map(|b| (b.value, b.value | !b.known)).unzip()
}

/// Whether `bytes`, as one big-endian number, lie in `from..=to`.
pub fn within(bytes: &[Byte], from: &[u8], to: &[u8]) -> Tri {
    if bytes.len() < from.len() || from.len() != to.len() {
        return Tri::Maybe(Why::OPAQUE);
    }
    let bytes = &bytes[..from.len()];
    let (min, max) = bounds(bytes);
    if max.as_slice() < from || min.as_slice() > to {
        Tri::No
    } else if min.as_slice() >= from && max.as_slice() <= to {
        Tri::Yes
    } else {
        Tri::Maybe(why(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prefixes() {
        let b = prefixed(&[10, 1, 2, 3], 12, Why::SOURCE);
        assert_eq!(equal(&b, &[10, 0x10]), Tri::No);
        assert_eq!(equal(&b, &[10]), Tri::Yes);
        assert_eq!(equal(&b, &[10, 1, 2, 3]), Tri::Maybe(Why::SOURCE));
        assert_eq!(within(&b, &[10, 0, 0, 0], &[10, 255, 255, 255]), Tri::Yes);
        assert_eq!(within(&b, &[11, 0, 0, 0], &[12, 0, 0, 0]), Tri::No);
        assert_eq!(within(&b, &[10, 2, 0, 0], &[12, 0, 0, 0]), Tri::Maybe(Why::SOURCE));
    }

    proptest! {
        /// Whatever the unknown bits are, a definite answer is the answer.
        #[test]
        fn definite_answers_hold(v in any::<[u8; 4]>(), k in any::<[u8; 4]>(), fill in any::<[u8; 4]>(),
                                 data in any::<[u8; 4]>(), to in any::<[u8; 4]>()) {
            let b: Vec<Byte> = v.iter().zip(k).map(|(v, k)| Byte::partly(*v, k, Why::OTHER)).collect();
            let c: Vec<u8> = b.iter().zip(fill).map(|(b, f)| b.value | (f & !b.known)).collect();
            match equal(&b, &data) {
                Tri::Yes => prop_assert_eq!(&c[..], &data[..]),
                Tri::No => prop_assert_ne!(&c[..], &data[..]),
                Tri::Maybe(w) => prop_assert!(!w.is_none()),
            }
            let inside = c.as_slice() >= &data[..] && c.as_slice() <= &to[..];
            match within(&b, &data, &to) {
                Tri::Yes => prop_assert!(inside),
                Tri::No => prop_assert!(!inside),
                Tri::Maybe(_) => {}
            }
        }
    }
}
