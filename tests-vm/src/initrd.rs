//! An initrd of busybox and the modules that the root disk needs, nothing else: 1-2 MB, where the distribution's has
//! 18 MB, which an emulated machine unpacks for seconds.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::process::{Checked, command};

/// What the root disk needs; what is built into the kernel has no line in `modules.dep` and is passed over.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "crc32c_generic", "ext4"];

const INIT: &str = "\
#!/bin/sh
b=/bin/busybox; init=/sbin/init
$b mount -t devtmpfs dev /dev; $b mount -t proc proc /proc
for m in $($b cat /order); do $b insmod /$m; done
for a in $($b cat /proc/cmdline); do case $a in init=*) init=${a#init=};; esac; done
i=0; until [ -b /dev/vda ] || [ $i = 300 ]; do $b usleep 10000; i=$((i+1)); done
$b mount -t ext4 -o rw /dev/vda /root || exec $b reboot -f
$b umount /proc /dev
exec $b switch_root /root $init
";

/// Writes `vmlinuz` and `initrd.gz` of the kernel in `root` to `out`.
pub fn make(root: &Path, out: &Path) -> Result<()> {
    let modules = only_entry(&root.join("usr/lib/modules"))?;
    let release = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
    fs::copy(root.join("boot").join(format!("vmlinuz-{release}")), out.join("vmlinuz"))?;
    Command::new("chroot").arg(root).args(["depmod", &release]).checked()?;

    let tree = out.join("initrd");
    for dir in ["bin", "proc", "dev", "root"] {
        fs::create_dir_all(tree.join(dir))?;
    }
    let busybox = root.join("usr/bin/busybox");
    fs::copy(&busybox, tree.join("bin/busybox"))?;
    symlink("busybox", tree.join("bin/sh"))?;
    fs::write(tree.join("init"), INIT)?;
    fs::set_permissions(tree.join("init"), Permissions::from_mode(0o755))?;
    let order = load_order(&fs::read_to_string(modules.join("modules.dep"))?);
    let mut names = String::new();
    for file in order {
        let packed = modules.join(&file);
        let name = packed.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (plain, content) = match name.rsplit_once('.') {
            Some((plain, "xz")) => (plain.to_owned(), unpacked("xz", &packed)?),
            Some((plain, "zst")) => (plain.to_owned(), unpacked("zstd", &packed)?),
            Some(_) | None => (name.clone(), fs::read(&packed)?),
        };
        fs::write(tree.join(&plain), content)?;
        names += &format!("{plain}\n");
    }
    fs::write(tree.join("order"), names)?;

    let pack = "find . | \"$0\" cpio -o -H newc 2>/dev/null | gzip -1";
    let mut child =
        command("bash", ["-c", pack]).arg(busybox.canonicalize()?).current_dir(&tree).stdout(Stdio::piped()).spawn()?;
    let mut packed = child.stdout.take().context("no output of cpio")?;
    std::io::copy(&mut packed, &mut File::create(out.join("initrd.gz"))?)?;
    if !child.wait()?.success() {
        bail!("cannot pack the initrd");
    }
    Ok(fs::remove_dir_all(tree)?)
}

fn only_entry(dir: &Path) -> Result<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    entries.sort();
    entries.pop().with_context(|| format!("no kernel in {}", dir.display()))
}

/// Module files in the order in which they can be loaded: of a line `module: dependencies`, the last first.
fn load_order(modules_dep: &str) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut order = Vec::new();
    for module in MODULES {
        for line in modules_dep.lines() {
            let Some((file, needs)) = line.split_once(':') else { continue };
            if !file.rsplit('/').next().is_some_and(|name| name.starts_with(&format!("{module}.ko"))) {
                continue;
            }
            for file in needs.split_whitespace().rev().chain([file]) {
                if seen.insert(file.to_owned()) {
                    order.push(file.to_owned());
                }
            }
        }
    }
    order
}

fn unpacked(program: &str, file: &Path) -> Result<Vec<u8>> {
    let output = command(program, ["-dc"]).arg(file).output()?;
    if !output.status.success() {
        std::io::stderr().write_all(&output.stderr)?;
        bail!("cannot unpack {}", file.display());
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_what_it_needs_and_once() {
        let dep = "kernel/fs/ext4/ext4.ko.xz: kernel/lib/crc16.ko.xz kernel/fs/jbd2.ko.xz\n\
                   kernel/drivers/virtio_blk.ko.xz: kernel/drivers/virtio_ring.ko.xz kernel/drivers/virtio.ko.xz\n\
                   kernel/fs/ext4x.ko.xz:\n";
        assert_eq!(
            load_order(dep),
            [
                "kernel/drivers/virtio.ko.xz",
                "kernel/drivers/virtio_ring.ko.xz",
                "kernel/drivers/virtio_blk.ko.xz",
                "kernel/fs/jbd2.ko.xz",
                "kernel/lib/crc16.ko.xz",
                "kernel/fs/ext4/ext4.ko.xz",
            ]
        );
    }
}
