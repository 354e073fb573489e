//! The found firewall: default deny, exactly 54 input and 52 forward rules, each served port allowed explicitly.
//!
//! It is the same text for every size of the world, so that a small machine has the firewall of the large one.

use super::plan::{self, Size, Transport};
use std::fmt::Write as _;

/// Rules in the input chain.
pub const INPUT_RULES: usize = 54;
/// Rules in the forward chain.
pub const FORWARD_RULES: usize = 52;
/// Whose packets are always dropped, whatever is open: a deliberate drop.
pub const BANNED: &str = "198.51.100.0/24";
/// From here alone the ports of administration are open.
pub const ADMIN: &str = "10.77.0.0/24";

/// The input rules in order.
pub fn input_rules() -> Vec<String> {
    let mut rules: Vec<String> = [
        "ct state established,related accept",
        "ct state invalid drop",
        "iif \"lo\" accept",
        "ip saddr @banned drop",
        "meta l4proto icmp icmp type { echo-request, destination-unreachable, time-exceeded } accept",
        "meta l4proto ipv6-icmp accept",
    ]
    .map(String::from)
    .into();
    for s in plan::served(Size::Full).iter().filter(|s| !s.forwarded) {
        rules.push(format!("{} dport {} accept comment \"{}\"", s.transport.word(), s.port, s.name));
    }
    // Open to the administrators' network alone; most with nobody there any more, as on every old machine.
    let admin: [u16; 12] = [5900, 5901, 8006, 9090, 9093, 10000, 10050, 19999, 3128, 8140, 8500, 8081];
    let missing = INPUT_RULES.saturating_sub(rules.len() + 2);
    for port in admin.iter().take(missing) {
        rules.push(format!("ip saddr {ADMIN} tcp dport {port} accept"));
    }
    rules.push("ip saddr 10.77.0.0/24 udp dport 161 accept".into());
    rules.push("tcp dport 113 reject with tcp reset".into());
    rules
}

/// The forward rules in order.
pub fn forward_rules() -> Vec<String> {
    let mut rules: Vec<String> = [
        "ct state established,related accept",
        "ct state invalid drop",
        "ip saddr @banned drop",
        "iifname \"podman0\" accept",
        "oifname \"podman0\" icmp type echo-request accept",
        "ct status dnat tcp dport 7001-7015 accept comment \"stores\"",
    ]
    .map(String::from)
    .into();
    for c in plan::containers(Size::Full).iter().filter(|c| !c.host_network && !c.name.starts_with("fleet-store")) {
        // After the translation the packet carries the container's own port.
        let flow = if c.tcp == c.published {
            format!("tcp dport {}", c.tcp)
        } else {
            format!("meta l4proto tcp ct original proto-dst {}", c.published)
        };
        rules.push(format!("{flow} accept comment \"{}\"", c.name));
        if let Some(udp) = c.udp {
            rules.push(format!("{} dport {udp} accept comment \"{}\"", Transport::Udp.word(), c.name));
        }
    }
    rules
}

/// `/etc/nftables.conf`. It replaces its own table and leaves those of others alone.
pub fn nftables_conf() -> String {
    let mut text =
        String::from("#!/usr/sbin/nft -f\n\ntable inet filter\ndelete table inet filter\n\ntable inet filter {\n");
    let mut chain = |name: &str, hook: &str, policy: &str, rules: &[String]| {
        let mut chain = format!("\tchain {name} {{\n\t\ttype filter hook {hook} priority filter; policy {policy};\n");
        for rule in rules {
            // Writing to a string cannot fail.
            if writeln!(chain, "\t\t{rule}").is_err() {
                return;
            }
        }
        text.push_str(&chain);
        text.push_str("\t}\n");
    };
    chain("output", "output", "accept", &[]);
    chain("input", "input", "drop", &input_rules());
    chain("forward", "forward", "drop", &forward_rules());
    let set = format!(
        "\tset banned {{\n\t\ttype ipv4_addr\n\t\tflags interval\n\t\telements = {{ {BANNED}, 203.0.113.7 }}\n\t}}\n"
    );
    text.replace("\tchain input {", &format!("{set}\tchain input {{")) + "}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_firewall_has_the_size_of_the_design() {
        assert_eq!(input_rules().len(), INPUT_RULES, "{:#?}", input_rules());
        assert_eq!(forward_rules().len(), FORWARD_RULES, "{:#?}", forward_rules());
    }

    #[test]
    fn each_served_port_is_allowed_explicitly() {
        let text = nftables_conf();
        for s in plan::served(Size::Full) {
            let store = s.name.starts_with("fleet-store");
            let said = text.contains(&format!("\"{}\"", s.name)) && text.contains(&s.port.to_string());
            assert!(store || said, "{} {}", s.name, s.port);
        }
    }
}
