//! Are the openings in force, exactly as asked, and do they come back?

use super::stage::Stage;
use super::{Scenario, figure};
use crate::bed::Bed;
use crate::image::Suite;
use crate::node::Node;
use crate::prober::{Opened, Prober, targets};
use crate::world::{Size, plan};
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};

pub(super) const CASES: &[Scenario] = &[
    Scenario { name: "openings_come_back_after_reload", run: openings_come_back_after_reload },
    Scenario { name: "openings_come_back_after_flush", run: openings_come_back_after_flush },
    Scenario { name: "openings_are_closed_by_handle_of_the_mark", run: only_what_is_marked_is_removed },
];

/// The rules of the mesh in the ruleset.
fn marked(stage: &mut Stage) -> Result<usize> {
    Ok(stage.run("nft list ruleset | grep -c 'mesh:v1:' || true")?.trim().parse()?)
}

/// Does `act` on the adopted machine, which loses the openings, and waits until they are back.
fn come_back(bed: &Bed, suite: Suite, name: &str, act: &str, committer: &str) -> Result<()> {
    Stage::new(bed, suite, Size::Small, name)?.show(|stage| {
        stage.adopt()?;
        let rules = marked(stage)?;
        figure("rules of the mesh", rules);
        ensure!(rules >= 2, "only {rules} marked rules");
        let since = stage.run("date +%s.%N")?.trim().to_string();
        let started = Instant::now();
        stage.run(act)?;
        while marked(stage)? < rules {
            ensure!(started.elapsed() < Duration::from_secs(10), "the openings do not come back");
            std::thread::sleep(Duration::from_millis(50));
        }
        figure("back after", format!("{:.2} s", started.elapsed().as_secs_f64()));
        std::thread::sleep(Duration::from_secs(1));
        ensure!(marked(stage)? == rules, "{} rules instead of {rules}", marked(stage)?);
        let journal = stage.run(&format!("journalctl -b -t mesh -o json --no-pager --since @{since}"))?;
        ensure!(journal.contains(committer), "the journal does not name {committer}:\n{journal}");
        let mut prober = Prober::start(&stage.site.outside, targets(Size::Small, Opened::Yes)?)?;
        std::thread::sleep(Duration::from_secs(6));
        let report = prober.report()?;
        figure("probed", &report);
        ensure!(report.failures() == 0, "{}", report.failed().join("\n"));
        let noise = stage
            .run("systemctl show mesh-watch.service -p NRestarts -p Result; systemctl is-active mesh-watch.socket")?;
        ensure!(noise.contains("Result=success") && noise.contains("\nactive"), "{noise}");
        Ok(())
    })
}

fn openings_come_back_after_reload(bed: &Bed, suite: Suite) -> Result<()> {
    come_back(bed, suite, "reload", "systemctl reload nftables.service", "nft")
}

fn openings_come_back_after_flush(bed: &Bed, suite: Suite) -> Result<()> {
    come_back(bed, suite, "flush", "nft flush ruleset; nft -f /etc/nftables.conf", "nft")
}

fn only_what_is_marked_is_removed(bed: &Bed, suite: Suite) -> Result<()> {
    Stage::new(bed, suite, Size::Small, "by-handle")?.show(|stage| {
        stage.adopt()?;
        // The administrator's own rule for the same flow.
        let own = format!("tcp dport {} counter accept comment \"mine\"", plan::OPENED_ANY);
        stage.run(&format!("nft insert rule inet filter input {own}"))?;
        std::thread::sleep(Duration::from_secs(1));
        stage.mesh_says("release", 0, &[])?;
        ensure!(marked(stage)? == 0, "{} rules of the mesh stay", marked(stage)?);
        let mine = stage.run("nft list chain inet filter input | grep -c '\"mine\"'")?;
        ensure!(mine.trim() == "1", "the administrator's own rule went with it");
        stage.site.node.run("nft list chain inet filter input | grep -q 'policy drop'")?;
        Ok(())
    })
}
