//! Whose table is this: which tool wrote it, by the names and shapes that each tool gives its tables and chains.

use crate::eval::Facts;
use crate::ir::{Chain, Expr, Family, Ruleset, Table};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The tools whose tables are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Written by hand, or by nft from a file.
    Nftables,
    /// iptables' own tables in nf_tables.
    IptablesNft,
    /// iptables' own tables in the kernel's older tables.
    IptablesLegacy,
    /// ufw, in iptables' tables.
    Ufw,
    /// firewalld's table.
    Firewalld,
    /// Docker's chains or tables.
    Docker,
    /// podman's table.
    Netavark,
    /// CNI plug-ins' chains or tables.
    Cni,
    /// libvirt's chains or tables.
    Libvirt,
    /// fail2ban's chains or tables.
    Fail2ban,
    /// sshguard's tables.
    Sshguard,
    /// Tailscale's chains.
    Tailscale,
    /// Kubernetes' chains or tables.
    Kubernetes,
    /// NetworkManager's shared connections.
    NetworkManager,
}

impl Kind {
    /// As it is shown.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Nftables => "nftables",
            Kind::IptablesNft => "iptables-nft",
            Kind::IptablesLegacy => "iptables-legacy",
            Kind::Ufw => "ufw",
            Kind::Firewalld => "firewalld",
            Kind::Docker => "docker",
            Kind::Netavark => "netavark",
            Kind::Cni => "cni",
            Kind::Libvirt => "libvirt",
            Kind::Fail2ban => "fail2ban",
            Kind::Sshguard => "sshguard",
            Kind::Tailscale => "tailscale",
            Kind::Kubernetes => "kubernetes",
            Kind::NetworkManager => "networkmanager",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Chain name prefixes in iptables' tables, and whose they are. ufw comes first: where it is, it owns the table.
const CHAINS: [(&str, Kind); 12] = [
    ("ufw-", Kind::Ufw),
    ("ufw6-", Kind::Ufw),
    ("DOCKER", Kind::Docker),
    ("KUBE-", Kind::Kubernetes),
    ("cali-", Kind::Kubernetes),
    ("CILIUM_", Kind::Kubernetes),
    ("CNI-", Kind::Cni),
    ("NETAVARK", Kind::Netavark),
    ("LIBVIRT_", Kind::Libvirt),
    ("f2b-", Kind::Fail2ban),
    ("sshguard", Kind::Sshguard),
    ("ts-", Kind::Tailscale),
];

const BUILT_IN: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];

/// Whether `t` is one of iptables' tables: its name, and either an xt expression or iptables' own base chains.
fn iptables(ruleset: &Ruleset, t: &Table) -> bool {
    let named = (t.family == Family::IP || t.family == Family::IP6) && BUILT_IN.contains(&t.name.as_str());
    named
        && (ruleset.rules.iter().any(|r| {
            r.family == t.family
                && r.table == t.name
                && r.exprs.iter().any(|e| matches!(e, Expr::Match(_) | Expr::Target(_)))
        }) || chains(ruleset, t).any(|c| {
            c.hook.is_some() && ["INPUT", "FORWARD", "OUTPUT", "PREROUTING", "POSTROUTING"].contains(&c.name.as_str())
        }))
}

fn chains<'a>(ruleset: &'a Ruleset, t: &'a Table) -> impl Iterator<Item = &'a Chain> {
    ruleset.chains.iter().filter(|c| c.family == t.family && c.table == t.name)
}

/// Whose table `t` is.
pub fn of(ruleset: &Ruleset, t: &Table) -> Kind {
    let name = t.name.as_str();
    match name {
        "firewalld" => return Kind::Firewalld,
        "netavark" => return Kind::Netavark,
        "docker-bridges" => return Kind::Docker,
        "libvirt_network" => return Kind::Libvirt,
        "f2b-table" => return Kind::Fail2ban,
        "sshguard" => return Kind::Sshguard,
        "kube-proxy" | "kube-router" => return Kind::Kubernetes,
        _ => {}
    }
    for (prefix, kind) in [
        ("firewalld_", Kind::Firewalld),
        ("f2b-", Kind::Fail2ban),
        ("cni_", Kind::Cni),
        ("kube-", Kind::Kubernetes),
        ("calico", Kind::Kubernetes),
        ("nm-shared-", Kind::NetworkManager),
        ("nm-sh-", Kind::NetworkManager),
    ] {
        if name.starts_with(prefix) {
            return kind;
        }
    }
    if iptables(ruleset, t) {
        if chains(ruleset, t).any(|c| c.name.starts_with("ufw-") || c.name.starts_with("ufw6-")) {
            return Kind::Ufw;
        }
        return Kind::IptablesNft;
    }
    Kind::Nftables
}

/// A tool that was found, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Which.
    pub kind: Kind,
    /// The tables it has, or has chains in: `inet filter`.
    pub tables: Vec<String>,
}

/// Every tool that has a table, or chains in one.
pub fn found(ruleset: &Ruleset, facts: &Facts) -> Vec<Found> {
    let mut out: Vec<Found> = Vec::new();
    let mut add = |kind: Kind, table: String| match out.iter_mut().find(|f| f.kind == kind) {
        Some(f) if f.tables.contains(&table) => {}
        Some(f) => f.tables.push(table),
        None => out.push(Found { kind, tables: vec![table] }),
    };
    for t in &ruleset.tables {
        let label = format!("{} {}", t.family, t.name);
        add(of(ruleset, t), label.clone());
        if iptables(ruleset, t) {
            for c in chains(ruleset, t) {
                if let Some((_, kind)) = CHAINS.iter().find(|(p, _)| c.name.starts_with(p)) {
                    add(*kind, label.clone());
                }
            }
        }
    }
    for t in &facts.legacy {
        add(Kind::IptablesLegacy, t.clone());
    }
    if facts.ufw_enabled {
        // Enabled with no chain in force yet is still the machine's firewall after the next boot.
        match out.iter().any(|f| f.kind == Kind::Ufw) {
            true => {}
            false => out.push(Found { kind: Kind::Ufw, tables: Vec::new() }),
        }
    }
    out.sort_by_key(|f| f.kind);
    out
}
