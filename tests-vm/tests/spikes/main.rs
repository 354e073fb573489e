//! What the design leans on, tried on Debian's own kernels and systemds in virtual machines before anything is built
//! on it: `cargo test -p mesh-tests-vm --test spikes`, as root. Each prints what it saw.

mod boot;
mod dormant;
mod early;
mod isolate;
mod node;
mod one_go;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};
use mesh_tests_vm::node::on;
use mesh_tests_vm::{Bed, Hardware, Node, Preparation, Recipe, Saved, Suite, Switch, Vm};

/// What a spike does with a copy of the saved machine.
type Spike = fn(&Bed, &mut Vm, &mut Notes) -> Result<()>;

const SPIKES: [(&str, Spike); 3] = [("dormant", dormant::spike), ("isolate", isolate::spike), ("boot", boot::spike)];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One machine at a time: they are emulated, and slow enough.
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    for suite in Suite::ALL {
        for (name, spike) in SPIKES {
            trials.push(Trial::test(format!("{name}::{}", suite.name()), move || {
                tried(suite, name, spike).map_err(|error| Failed::from(format!("{error:#}")))
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// What was seen, a line each.
#[derive(Debug, Default)]
pub struct Notes(Vec<String>);

impl Notes {
    /// Adds a line.
    pub fn saw(&mut self, line: impl Into<String>) {
        self.0.push(line.into());
    }
}

fn tried(suite: Suite, name: &str, spike: Spike) -> Result<()> {
    let started = Instant::now();
    let bed = Bed::open()?;
    let image = Recipe::machine(suite, &["openssh-server", "unbound"]).image(&bed)?;
    let what = Preparation {
        copies: vec![(bed.stream()?, "/usr/local/bin/mesh-test-stream".into())],
        script: "modprobe -a nft_chain_nat nft_nat nft_masq nft_ct nft_reject_inet veth".into(),
    };
    let saved = Saved::of(&bed, &image, "spikes", Hardware::default(), &what)?;
    let prepared = started.elapsed();
    let mut vm = saved.copy(name, &Switch::new())?;
    let mut notes = Notes::default();
    let versions = vm.run("echo kernel $(uname -r), $(systemctl --version | head -1), $(nft --version)")?;
    notes.saw(versions.trim());
    let result = on(&mut vm, |vm| spike(&bed, vm, &mut notes));
    notes.saw(format!(
        "{:.1} s (the machine: {:.1} s)",
        (started.elapsed() - prepared).as_secs_f64(),
        prepared.as_secs_f64()
    ));
    let text: String = notes.0.iter().map(|line| format!("    {name}::{}: {line}\n", suite.name())).collect();
    // The harness captures nothing: one write, so that lines stay together.
    std::io::Write::write_all(&mut std::io::stdout(), format!("\n{text}").as_bytes())?;
    result
}
