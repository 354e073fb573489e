//! A flow as an operator types it (DESIGN §2): one grammar for command line, `node.toml` and rows.
//!
//! `tcp|udp|sctp/PORT[-PORT]`, `icmp|icmp6[/TYPE]` or a bare protocol, then `[from PREFIX] [on IFACE] [to ADDR]
//! [via forward]`, seen on the wire: port and address before any DNAT, `on` the interface it comes in by.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// What is carried, with what the grammar allows for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Carried {
    /// TCP, UDP or SCTP with an inclusive range of destination ports, `first <= last`, both 1..=65535.
    Ports {
        /// The protocol.
        protocol: PortProtocol,
        /// First port.
        first: u16,
        /// Last port, inclusive.
        last: u16,
    },
    /// ICMP of IPv4, any type or one.
    Icmp(Option<u8>),
    /// ICMP of IPv6, any type or one.
    Icmp6(Option<u8>),
    /// A bare IP protocol by number (never TCP, UDP, SCTP, ICMP or ICMPv6).
    Bare(u8),
}

/// The protocols that have ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortProtocol {
    /// IP protocol 6.
    Tcp,
    /// IP protocol 17.
    Udp,
    /// IP protocol 132.
    Sctp,
}

impl PortProtocol {
    /// Its name in the grammar.
    pub fn word(self) -> &'static str {
        match self {
            PortProtocol::Tcp => "tcp",
            PortProtocol::Udp => "udp",
            PortProtocol::Sctp => "sctp",
        }
    }

    /// Its IP protocol number (IANA).
    pub fn number(self) -> u8 {
        match self {
            PortProtocol::Tcp => 6,
            PortProtocol::Udp => 17,
            PortProtocol::Sctp => 132,
        }
    }

    /// From its name.
    pub fn from_word(word: &str) -> Option<PortProtocol> {
        [PortProtocol::Tcp, PortProtocol::Udp, PortProtocol::Sctp].into_iter().find(|p| p.word() == word)
    }
}

/// Bare protocols that may be named (IANA protocol numbers; the names of /etc/protocols).
const BARE: [(&str, u8); 8] =
    [("igmp", 2), ("ipip", 4), ("gre", 47), ("esp", 50), ("ah", 51), ("ospf", 89), ("vrrp", 112), ("udplite", 136)];

/// A flow. An absent part is unconstrained.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Flow {
    /// Protocol and ports.
    pub carried: Carried,
    /// Source prefix, masked.
    pub from: Option<IpNet>,
    /// The interface it comes in by.
    pub on: Option<String>,
    /// Destination address on the wire.
    pub to: Option<IpAddr>,
    /// Delivered beyond this host.
    pub via_forward: bool,
}

/// Why a text is not a flow: what is wrong and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} in flow {text:?}; {remedy}")]
pub struct FlowError {
    /// The whole text.
    pub text: String,
    /// What is wrong.
    pub what: String,
    /// What would be right.
    pub remedy: String,
}

impl Flow {
    /// The IP protocol number.
    pub fn protocol(&self) -> u8 {
        match self.carried {
            Carried::Ports { protocol, .. } => protocol.number(),
            Carried::Icmp(_) => 1,
            Carried::Icmp6(_) => 58,
            Carried::Bare(n) => n,
        }
    }

    /// Whether a packet of this flow can be IPv4.
    pub fn allows_v4(&self) -> bool {
        !matches!(self.carried, Carried::Icmp6(_))
            && self.from.is_none_or(|p| matches!(p, IpNet::V4(_)))
            && self.to.is_none_or(|a| a.is_ipv4())
    }

    /// Whether a packet of this flow can be IPv6.
    pub fn allows_v6(&self) -> bool {
        !matches!(self.carried, Carried::Icmp(_))
            && self.from.is_none_or(|p| matches!(p, IpNet::V6(_)))
            && self.to.is_none_or(|a| a.is_ipv6())
    }
}

fn port(text: &str, word: &str) -> Result<u16, FlowError> {
    match word.parse::<u32>() {
        Ok(n @ 1..=65535) if word.bytes().all(|b| b.is_ascii_digit()) => Ok(n as u16),
        _ => Err(FlowError {
            text: text.into(),
            what: format!("{word:?} is not a port"),
            remedy: "a port is a number from 1 to 65535".into(),
        }),
    }
}

fn carried(text: &str, word: &str) -> Result<Carried, FlowError> {
    let fail = |what: String, remedy: &str| FlowError { text: text.into(), what, remedy: remedy.into() };
    let (name, rest) = match word.split_once('/') {
        Some((n, r)) => (n, Some(r)),
        None => (word, None),
    };
    if let Some(protocol) = PortProtocol::from_word(name) {
        let rest = rest
            .ok_or_else(|| fail(format!("{name} without a port"), "write tcp/443, or a range such as udp/6000-6010"))?;
        let (first, last) = match rest.split_once('-') {
            Some((a, b)) => (port(text, a)?, port(text, b)?),
            None => (port(text, rest)?, port(text, rest)?),
        };
        if first > last {
            return Err(fail(format!("range {rest} runs backwards"), "write the lower port first"));
        }
        return Ok(Carried::Ports { protocol, first, last });
    }
    let icmp_type = |r: Option<&str>| match r {
        None => Ok(None),
        Some(r) if r.bytes().all(|b| b.is_ascii_digit()) => r.parse::<u8>().map(Some).map_err(|_| ()),
        Some(_) => Err(()),
    };
    let bad_type =
        |()| fail(format!("{:?} is not an ICMP type", rest.unwrap_or("")), "a type is a number from 0 to 255");
    match name {
        "icmp" => return icmp_type(rest).map(Carried::Icmp).map_err(bad_type),
        "icmp6" => return icmp_type(rest).map(Carried::Icmp6).map_err(bad_type),
        _ => {}
    }
    let number = BARE.iter().find(|(n, _)| *n == name).map(|(_, n)| *n);
    match (number, rest) {
        (Some(n), None) => Ok(Carried::Bare(n)),
        (Some(_), Some(r)) => Err(fail(format!("{name} has no ports, but /{r} follows"), "write the bare name")),
        (None, _) => Err(fail(
            format!("{name:?} is not a protocol"),
            "it begins with tcp/PORT, udp/PORT, sctp/PORT, icmp, icmp6, or one of igmp, ipip, gre, esp, ah, ospf, vrrp, udplite",
        )),
    }
}

impl FromStr for Flow {
    type Err = FlowError;

    fn from_str(text: &str) -> Result<Flow, FlowError> {
        let fail = |what: String, remedy: &str| FlowError { text: text.into(), what, remedy: remedy.into() };
        let mut words = text.split_whitespace();
        let first = words.next().ok_or_else(|| fail("nothing".into(), "write for example tcp/443 from 10.0.0.0/8"))?;
        let mut flow = Flow {
            carried: carried(text, &first.to_ascii_lowercase())?,
            from: None,
            on: None,
            to: None,
            via_forward: false,
        };
        // The canonical order is from, on, to, via; typed ones may come in any order, once each.
        while let Some(key) = words.next() {
            let key = key.to_ascii_lowercase();
            let value = words.next().ok_or_else(|| {
                fail(format!("{key:?} with nothing after it"), "each of from, on, to, via takes a value")
            })?;
            let again = match key.as_str() {
                "from" => flow.from.is_some(),
                "on" => flow.on.is_some(),
                "to" => flow.to.is_some(),
                "via" => flow.via_forward,
                _ => {
                    return Err(fail(
                        format!("{key:?} is not a part of a flow"),
                        "after the protocol come from PREFIX, on IFACE, to ADDR, via forward",
                    ));
                }
            };
            if again {
                return Err(fail(format!("{key:?} twice"), "give each part once"));
            }
            match key.as_str() {
                "from" => {
                    let net =
                        value.parse::<IpNet>().or_else(|_| value.parse::<IpAddr>().map(IpNet::from)).map_err(|_| {
                            fail(
                                format!("{value:?} is not a prefix"),
                                "write an address or a prefix such as 10.0.0.0/8",
                            )
                        })?;
                    flow.from = Some(net.trunc());
                }
                "on" => {
                    // Linux: 1 to 15 bytes, no slash, no white space (net/core/dev.c, dev_valid_name).
                    if value.len() > 15 || value.contains('/') || value == "." || value == ".." || value.contains(':') {
                        return Err(fail(
                            format!("{value:?} is not an interface name"),
                            "a name has 1 to 15 bytes, no slash, no colon",
                        ));
                    }
                    flow.on = Some(value.into());
                }
                "to" => {
                    let a = value.parse::<IpAddr>().map_err(|_| {
                        fail(format!("{value:?} is not an address"), "write one address of this machine")
                    })?;
                    flow.to = Some(a);
                }
                _ if value.eq_ignore_ascii_case("forward") => flow.via_forward = true,
                _ => return Err(fail(format!("via {value:?}"), "only via forward exists")),
            }
        }
        if !flow.allows_v4() && !flow.allows_v6() {
            return Err(fail("IPv4 and IPv6 mixed".into(), "protocol, from and to must be of one family"));
        }
        Ok(flow)
    }
}

impl fmt::Display for Flow {
    /// The canonical form: lower case, fields in grammar order, prefixes masked, single spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.carried {
            Carried::Ports { protocol, first, last } if first == last => write!(f, "{}/{first}", protocol.word())?,
            Carried::Ports { protocol, first, last } => write!(f, "{}/{first}-{last}", protocol.word())?,
            Carried::Icmp(None) => f.write_str("icmp")?,
            Carried::Icmp(Some(t)) => write!(f, "icmp/{t}")?,
            Carried::Icmp6(None) => f.write_str("icmp6")?,
            Carried::Icmp6(Some(t)) => write!(f, "icmp6/{t}")?,
            Carried::Bare(n) => f.write_str(BARE.iter().find(|(_, m)| *m == n).map_or("?", |(name, _)| name))?,
        }
        if let Some(p) = self.from {
            write!(f, " from {p}")?;
        }
        if let Some(i) = &self.on {
            write!(f, " on {i}")?;
        }
        if let Some(a) = self.to {
            write!(f, " to {a}")?;
        }
        if self.via_forward {
            f.write_str(" via forward")?;
        }
        Ok(())
    }
}

impl TryFrom<String> for Flow {
    type Error = FlowError;
    fn try_from(s: String) -> Result<Self, FlowError> {
        s.parse()
    }
}

impl From<Flow> for String {
    fn from(f: Flow) -> String {
        f.to_string()
    }
}

/// The mark of an opening: `mesh:v1:` and the first 16 hex digits of SHA-256 over MODULE, newline, canonical flow.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mark(String);

/// What every mark begins with.
pub const MARK_PREFIX: &str = "mesh:v1:";

impl Mark {
    /// The mark of `flow` opened for `module` (`operator` for one typed by hand).
    pub fn of(module: &str, flow: &Flow) -> Mark {
        let digest = Sha256::digest(format!("{module}\n{flow}").as_bytes());
        let hex: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
        Mark(format!("{MARK_PREFIX}{hex}"))
    }

    /// Reads a rule's comment: a mark is the prefix and 16 lower-case hex digits, nothing else.
    pub fn from_comment(comment: &str) -> Option<Mark> {
        let id = comment.strip_prefix(MARK_PREFIX)?;
        (id.len() == 16 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
            .then(|| Mark(comment.to_string()))
    }

    /// The text put on the rule.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_form() {
        for (typed, want) in [
            ("tcp/443", "tcp/443"),
            ("TCP/443  From 10.1.2.3/8", "tcp/443 from 10.0.0.0/8"),
            ("udp/51820 to 192.0.2.1 on eth0", "udp/51820 on eth0 to 192.0.2.1"),
            ("tcp/80-81 via forward from 2001:DB8::1/32", "tcp/80-81 from 2001:db8::/32 via forward"),
            ("icmp/8", "icmp/8"),
            ("esp from 192.0.2.7", "esp from 192.0.2.7/32"),
            ("tcp/80-80", "tcp/80"),
        ] {
            let flow: Flow = typed.parse().unwrap();
            assert_eq!(flow.to_string(), want);
            assert_eq!(want.parse::<Flow>().unwrap(), flow, "canonical form reads back");
        }
    }

    #[test]
    fn malformed_flows_say_what_would_be_right() {
        for bad in [
            "",
            "tcp",
            "tcp/",
            "tcp/0",
            "tcp/65536",
            "tcp/+1",
            "tcp/90-80",
            "xyz",
            "esp/4",
            "icmp/256",
            "icmp/+1",
            "tcp/1 from",
            "tcp/1 from x",
            "tcp/1 on averyverylonginterface",
            "tcp/1 to 1.2.3.0/24",
            "tcp/1 via nat",
            "tcp/1 from 10.0.0.0/8 from 10.0.0.0/8",
            "tcp/1 from 10.0.0.0/8 to ::1",
            "icmp6 from 10.0.0.0/8",
            "tcp/1 and more",
        ] {
            let e = bad.parse::<Flow>().unwrap_err();
            assert!(!e.remedy.is_empty() && !e.what.is_empty(), "{bad}");
        }
    }

    #[test]
    fn marks_are_the_contract_s() {
        // printf 'operator\ntcp/443' | sha256sum | cut -c1-16
        let flow: Flow = "tcp/443".parse().unwrap();
        let mark = Mark::of("operator", &flow);
        assert_eq!(mark.as_str(), "mesh:v1:ff41f7ffb4abe626");
        assert_eq!(Mark::from_comment(mark.as_str()), Some(mark.clone()));
        assert_ne!(mark, Mark::of("registry", &flow));
        for no in ["mesh:v1:", "mesh:v1:0123456789abcdeF", "mesh:v1:0123456789abcdef0", "x mesh:v1:0123456789abcdef"] {
            assert_eq!(Mark::from_comment(no), None);
        }
    }
}
