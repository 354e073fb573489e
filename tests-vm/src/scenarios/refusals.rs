//! What is refused, by name and exit code, with nothing changed.

use super::stage::{Stage, WATCHED, comparable, field, serving};
use super::{Scenario, figure};
use crate::bed::Bed;
use crate::image::Suite;
use crate::snapshot::Depth;
use crate::world::{Size, node_toml};
use anyhow::{Context, Result, ensure};

pub(super) const CASES: &[Scenario] = &[
    Scenario { name: "closure_refuses_requires", run: |b, s| closure(b, s, "requires", "Requires") },
    Scenario { name: "closure_refuses_binds_to", run: |b, s| closure(b, s, "binds-to", "BindsTo") },
    Scenario { name: "closure_refuses_part_of", run: |b, s| closure(b, s, "part-of", "PartOf") },
    Scenario { name: "closure_refuses_requisite", run: |b, s| closure(b, s, "requisite", "Requisite") },
    Scenario { name: "closure_refuses_propagates_stop_to", run: |b, s| closure(b, s, "stop-to", "StopPropagatedFrom") },
    Scenario { name: "stand_in_keeps_dependents", run: stand_in_keeps_dependents },
    Scenario { name: "held_ports_are_named", run: held_ports_are_named },
    Scenario { name: "iptables_nft_is_refused_by_name", run: |b, s| other_firewall(b, s, "iptables-nft") },
    Scenario { name: "iptables_legacy_is_refused_by_name", run: |b, s| other_firewall(b, s, "iptables-legacy") },
    Scenario { name: "without_node_toml_nothing_is_adopted", run: without_node_toml },
];

/// Adopting must exit `exit`, say each of `words`, and leave everything as it is.
fn refused(stage: &mut Stage, arguments: &str, exit: i32, words: &[&str]) -> Result<()> {
    let before = stage.snapshot(Depth::Full)?;
    let output = stage.mesh_says(arguments, exit, words)?;
    figure("said", output.err.trim().replace('\n', "\n      "));
    let after = stage.snapshot(Depth::Full)?;
    let differences = comparable(&before).differences(&comparable(&after), |_, _| false);
    figure("differences", differences.len());
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    stage.control_is_on(&before)
}

/// A service that hangs on a control unit by `directive`.
fn add_dependent(stage: &mut Stage, directive: &str) -> Result<()> {
    stage.run(&format!(
        "cat >/etc/systemd/system/shop.service <<U
[Unit]
Description=Shop
{directive}=fleet-agent.service
After=fleet-agent.service
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
U
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -s ../shop.service /etc/systemd/system/multi-user.target.wants/shop.service
systemctl daemon-reload; systemctl start shop.service"
    ))?;
    Ok(())
}

fn closure(bed: &Bed, suite: Suite, name: &str, directive: &str) -> Result<()> {
    Stage::new(bed, suite, Size::Small, name)?.show(|stage| {
        add_dependent(stage, directive)?;
        refused(stage, "adopt", 3, &["shop.service", "fleet-agent.service"])
    })
}

fn stand_in_keeps_dependents(bed: &Bed, suite: Suite) -> Result<()> {
    let text = node_toml::keeping_dependents();
    Stage::with(bed, suite, Size::Small, "stand-in", &text)?.show(|stage| {
        add_dependent(stage, "Requires")?;
        let before = stage.snapshot(Depth::Full)?;
        stage.adopt()?;
        let (was, is) = (serving(&before), serving(&stage.snapshot(Depth::Quick)?));
        let shop = "system shop.service";
        ensure!(was.contains_key(shop) && was.get(shop) == is.get(shop), "{:?} is {:?}", was.get(shop), is.get(shop));
        let moving = stage.still_moving(WATCHED)?;
        ensure!(moving.is_empty(), "still written: {moving:?}");
        stage.site.reboot()?;
        let units = stage.snapshot(Depth::Quick)?.part("units");
        let state = units.get(shop).context("shop.service is not loaded")?;
        ensure!(field(state, "ActiveState").as_deref() == Some("active"), "after the reboot: {state}");
        let moving = stage.still_moving(WATCHED)?;
        ensure!(moving.is_empty(), "still written after the reboot: {moving:?}");
        figure("dependent", "kept its process, and came up at the boot");
        stage.mesh_says("release", 0, &[])?;
        stage.control_is_on(&before)
    })
}

fn held_ports_are_named(bed: &Bed, suite: Suite) -> Result<()> {
    let text = node_toml::with_standard_ports();
    Stage::with(bed, suite, Size::Full, "held", &text)?.show(|stage| {
        refused(
            stage,
            "adopt",
            69,
            &["5000", "podman-restart.service", "15672", "broker.service", "51820", "tunnel.service"],
        )?;
        stage.mesh_says("adopt --without-foundation", 0, &[])?;
        ensure!(stage.mode()? == "adopted", "the mode is {}", stage.mode()?);
        Ok(())
    })
}

fn other_firewall(bed: &Bed, suite: Suite, kind: &str) -> Result<()> {
    Stage::new(bed, suite, Size::Small, kind)?.show(|stage| {
        let tool = if kind == "iptables-legacy" { "iptables-legacy" } else { "iptables-nft" };
        stage.run(&format!(
            "nft flush ruleset; {tool} -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT; \
             {tool} -A INPUT -i lo -j ACCEPT; {tool} -A INPUT -p tcp --dport 22 -j ACCEPT; {tool} -P INPUT DROP; \
             {tool} -S >/dev/null"
        ))?;
        refused(stage, "adopt", 3, &[kind])
    })
}

fn without_node_toml(bed: &Bed, suite: Suite) -> Result<()> {
    Stage::new(bed, suite, Size::Small, "no-node")?.show(|stage| {
        stage.run("rm /etc/mesh/node.toml")?;
        stage.reload()?;
        refused(stage, "adopt", 78, &["node.toml"])
    })
}
