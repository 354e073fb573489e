//! Adopting in one go, a power cut in the middle of a flip, and the boot after it: one machine, since a boot is what
//! costs the time.

use anyhow::Result;
use mesh_tests_vm::{Bed, Vm};

use crate::{Notes, early, node, one_go};

/// The whole spike.
pub fn spike(bed: &Bed, vm: &mut Vm, notes: &mut Notes) -> Result<()> {
    node::install(bed, vm)?;
    node::configure(vm)?;
    early::prepare(vm)?;
    one_go::adopt(vm, notes)?;
    early::cut_and_boot(vm, notes)?;
    one_go::adopted_again(vm, notes)
}
