//! A virtual machine: qemu without KVM, so that it is the same everywhere; everything in it is real.
//!
//! One processor only: with several, qemu's threads now and then run code that the guest's kernel has patched since
//! ("Oops: int3", about one boot in 80, measured). The disk is an overlay that lives as long as the value: a power cut
//! or a reboot boots from it again. The clock of a copy of a saved machine starts at the time of the save.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::bed::{Bed, remove_tree};
use crate::channel::Channel;
use crate::image::Image;
use crate::node::{Node, Output};
use crate::process::{self, Checked, command};
use crate::qmp::Qmp;
use crate::switch::Switch;

/// The size of the disk that files are handed in on: fixed, since a saved machine remembers it.
const PAYLOAD_BYTES: u64 = 64 << 20;

/// Kernel words: a slow machine's watchdogs off, its clock trusted, no question to a terminal that is a file.
const KERNEL_LINE: &str = "console=ttyS0 quiet loglevel=3 panic=-1 net.ifnames=0 nokaslr audit=0 cryptomgr.notests \
    nowatchdog tsc=reliable no_timer_check rcupdate.rcu_expedited=1 8250.nr_uarts=1 TERM=dumb \
    systemd.tty.term.console=dumb systemd.show_status=0";

/// What differs between machines of one image.
#[derive(Debug, Clone)]
pub struct Hardware {
    /// Memory, MiB.
    pub memory: u32,
    /// Words added to the kernel's command line.
    pub kernel_words: String,
}

impl Default for Hardware {
    fn default() -> Hardware {
        Hardware { memory: 768, kernel_words: String::new() }
    }
}

/// A virtual machine.
#[derive(Debug)]
pub struct Vm {
    name: String,
    bed: Bed,
    image: Image,
    hardware: Hardware,
    work: PathBuf,
    switch: Switch,
    running: Option<Running>,
    boots: u32,
}

#[derive(Debug)]
struct Running {
    child: Child,
    channel: Channel,
    qmp: Qmp,
}

/// What a machine's disk is laid over, and how.
pub(crate) enum Base<'a> {
    Image,
    Saved { disk: &'a Path },
}

impl Vm {
    /// Boots a new machine from an image and waits until all its units run (about 20 s).
    pub fn boot(bed: &Bed, image: &Image, name: &str, switch: &Switch, hardware: Hardware) -> Result<Vm> {
        let mut vm = Vm::create(bed, image, name, switch, hardware, &Base::Image)?;
        vm.start()?;
        vm.wait_running()?;
        Ok(vm)
    }

    pub(crate) fn create(
        bed: &Bed,
        image: &Image,
        name: &str,
        switch: &Switch,
        hardware: Hardware,
        base: &Base<'_>,
    ) -> Result<Vm> {
        let work = bed.run_dir(name)?;
        let (lower, format) = match base {
            Base::Image => (image.disk()?, "raw"),
            Base::Saved { disk } => (disk.to_path_buf(), "qcow2"),
        };
        command("qemu-img", ["create", "-q", "-f", "qcow2", "-F", format, "-b"])
            .arg(lower)
            .arg(work.join("disk.qcow2"))
            .checked()?;
        File::create(work.join("payload.img"))?.set_len(PAYLOAD_BYTES)?;
        let (name, switch) = (name.to_owned(), switch.clone());
        Ok(Vm { name, bed: bed.clone(), image: image.clone(), hardware, work, switch, running: None, boots: 0 })
    }

    /// Boots from the machine's own disk and waits until it answers (not until all its units run).
    pub fn start(&mut self) -> Result<()> {
        self.launch(None)?;
        // One long wait, not many short ones: the request lies in the channel until the agent is up.
        self.try_run("true", Duration::from_secs(240)).map(drop)
    }

    /// Starts qemu; with a saved memory, the machine is where it was saved, and running.
    pub(crate) fn launch(&mut self, memory: Option<&Path>) -> Result<()> {
        if self.running.is_some() {
            bail!("{} runs already", self.name);
        }
        self.switch.port(&self.name, &self.work.join("ethernet"))?;
        for socket in ["qmp", "agent"] {
            if self.work.join(socket).exists() {
                fs::remove_file(self.work.join(socket))?;
            }
        }
        self.boots += 1;
        let mut arguments = arguments(&self.image, &self.work, &self.hardware)?;
        let console = format!("file:{}", self.work.join(format!("console-{}.log", self.boots)).display());
        arguments.extend(["-name".into(), self.name.clone(), "-serial".into(), console]);
        if let Some(memory) = memory {
            arguments.extend(["-incoming".into(), format!("exec:cat '{}'", memory.display())]);
        }
        let log = File::create(self.work.join("qemu.log"))?;
        let errors = log.try_clone()?;
        let mut child = process::spawn("qemu-system-x86_64", |command| {
            command.args(arguments).stdin(Stdio::null()).stdout(log).stderr(errors);
        })?;
        match self.reach(&mut child) {
            Ok((qmp, channel)) => self.running = Some(Running { child, channel, qmp }),
            Err(error) => {
                process::end(&mut child);
                return Err(error);
            }
        }
        if memory.is_some() {
            while self.qmp()?.ask("query-status", json!({}))?["status"] == "inmigrate" {
                std::thread::sleep(Duration::from_millis(10));
            }
            self.qmp()?.ask("cont", json!({}))?;
        }
        Ok(())
    }

    fn reach(&self, child: &mut Child) -> Result<(Qmp, Channel)> {
        let mut connect = |socket: &str| -> Result<UnixStream> {
            let started = Instant::now();
            loop {
                if let Ok(stream) = UnixStream::connect(self.work.join(socket)) {
                    return Ok(stream);
                }
                let ended = child.try_wait()?;
                if ended.is_some() || started.elapsed() > Duration::from_secs(20) {
                    let log = fs::read_to_string(self.work.join("qemu.log")).unwrap_or_default();
                    bail!("qemu of {} does not come up ({ended:?}): {log}", self.name);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let qmp = Qmp::new(connect("qmp")?)?;
        Ok((qmp, Channel::new(connect("agent")?)))
    }

    /// The control socket of its qemu.
    pub fn qmp(&mut self) -> Result<&mut Qmp> {
        Ok(&mut self.running.as_mut().with_context(|| format!("{} does not run", self.name))?.qmp)
    }

    /// Power cut: nothing is flushed, nobody is told. [`Vm::start`] boots what the disk holds.
    pub fn power_cut(&mut self) {
        if let Some(mut running) = self.running.take() {
            process::end(&mut running.child);
        }
    }

    /// Keeps memory and disk under `tag`, within this machine.
    pub fn snapshot(&mut self, tag: &str) -> Result<()> {
        self.qmp()?.monitor(&format!("savevm {tag}")).map(drop)
    }

    /// Goes back to [`Vm::snapshot`]'s state.
    pub fn restore(&mut self, tag: &str) -> Result<()> {
        self.qmp()?.monitor(&format!("loadvm {tag}")).map(drop)
    }

    /// Gives the machine its own address on the common Ethernet: `192.0.2.N/24` and `2001:db8::N/64`. (All copies of a
    /// saved machine have one hardware address.)
    pub fn attach(&mut self, n: u8) -> Result<()> {
        self.run(&format!(
            "set -e; ip link set eth0 down; ip link set eth0 address 52:54:00:00:00:{n:02x}
             ip addr add 192.0.2.{n}/24 dev eth0; ip addr add 2001:db8::{n}/64 dev eth0 nodad; ip link set eth0 up"
        ))
        .map(drop)
    }

    /// Plugs `data` in as `/dev/disk/by-id/virtio-data`; each write and flush is recorded in `log` for
    /// [`crate::crash::states`].
    pub fn plug_logged(&mut self, data: &Path, log: &Path) -> Result<()> {
        let qmp = self.qmp()?;
        for (node, file) in [("data-file", data), ("log-file", log)] {
            qmp.ask("blockdev-add", json!({ "driver": "file", "node-name": node, "filename": file }))?;
        }
        // The interval of 1: else a log that is cut short has an empty header.
        qmp.ask(
            "blockdev-add",
            json!({ "driver": "blklogwrites", "node-name": "logged", "file": "data-file", "log": "log-file",
                    "log-sector-size": 512, "log-super-update-interval": 1 }),
        )?;
        qmp.ask(
            "device_add",
            json!({ "driver": "virtio-blk-pci", "drive": "logged", "serial": "data", "bus": "plug0" }),
        )?;
        self.wait_for("test -b /dev/disk/by-id/virtio-data", Duration::from_secs(20)).map(drop)
    }

    pub(crate) fn work(&self) -> &Path {
        &self.work
    }

    pub(crate) fn wait_off(&mut self, limit: Duration) -> Result<()> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        let started = Instant::now();
        while running.child.try_wait()?.is_none() {
            if started.elapsed() > limit {
                process::end(&mut running.child);
                bail!("{} is still up after {limit:?}: {}", self.name, self.console());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Hands a staged tree in as the content of the payload disk, a tar.
    fn hand_in(&mut self, stage: &Path) -> Result<()> {
        let tar = self.work.join("payload.tar");
        command("tar", ["--owner=0", "--group=0", "--numeric-owner", "-cf"])
            .arg(&tar)
            .arg("-C")
            .arg(stage)
            .arg(".")
            .checked()?;
        if fs::metadata(&tar)?.len() > PAYLOAD_BYTES {
            bail!("{} bytes do not fit into the disk that files are handed in on", fs::metadata(&tar)?.len());
        }
        command("dd", ["conv=notrunc", "status=none", "bs=1M"])
            .arg(format!("if={}", tar.display()))
            .arg(format!("of={}", self.work.join("payload.img").display()))
            .checked()?;
        remove_tree(stage)?;
        // What the machine has read of the disk before is stale. Folders that are there keep their owner and mode.
        self.run(
            "d=/dev/disk/by-id/virtio-payload; blockdev --flushbufs $d &&
             tar -C / --no-overwrite-dir --keep-directory-symlink -xpf $d",
        )
        .map(drop)
    }
}

/// The command line that decides what the machine is made of (a saved memory fits only the same).
pub(crate) fn arguments(image: &Image, work: &Path, hardware: &Hardware) -> Result<Vec<String>> {
    let at = |file: &str| work.join(file).display().to_string();
    let line = format!("{KERNEL_LINE} {}", hardware.kernel_words);
    let text = format!(
        "-nodefaults|-no-user-config|-display|none|-no-reboot|-accel|tcg|-cpu|Nehalem|-smp|1\
         |-machine|q35,usb=off,vmport=off,hpet=off,smbus=off,sata=off|-m|{memory}\
         |-kernel|{kernel}|-initrd|{initrd}|-append|{line}\
         |-drive|file={disk},format=qcow2,if=none,id=root,cache=writeback|-device|virtio-blk-pci,drive=root,serial=root,addr=0x4\
         |-drive|file={payload},format=raw,if=none,id=payload,read-only=on,file.locking=off\
         |-device|virtio-blk-pci,drive=payload,serial=payload,addr=0x5\
         |-device|pcie-root-port,id=plug0,chassis=1,addr=0x6|-device|virtio-rng-pci,addr=0x7\
         |-netdev|stream,id=net0,server=off,addr.type=unix,addr.path={ethernet}\
         |-device|virtio-net-pci,netdev=net0,mac=52:54:00:00:00:01,romfile=,addr=0x8\
         |-qmp|unix:{qmp},server=on,wait=off|-device|virtio-serial-pci,addr=0x9\
         |-chardev|socket,id=agent,path={agent},server=on,wait=off|-device|virtserialport,chardev=agent,name=mesh.test.0",
        memory = hardware.memory,
        kernel = image.kernel()?.display(),
        initrd = image.initrd()?.display(),
        disk = at("disk.qcow2"),
        payload = at("payload.img"),
        ethernet = at("ethernet"),
        qmp = at("qmp"),
        agent = at("agent"),
    );
    Ok(text.split('|').map(String::from).collect())
}

impl Node for Vm {
    fn name(&self) -> &str {
        &self.name
    }

    fn try_run(&mut self, script: &str, limit: Duration) -> Result<Output> {
        let running = self.running.as_mut().with_context(|| format!("{} does not run", self.name))?;
        running.channel.run(script, limit).map_err(|error| {
            let console = self.console();
            let panic = console.lines().find(|line| line.contains("Kernel panic") || line.contains("Oops:"));
            match panic {
                Some(line) => error.context(format!("the kernel of {} died: {line}", self.name)),
                None => error,
            }
        })
    }

    fn put(&mut self, path: &str, content: &[u8], mode: u32) -> Result<()> {
        let stage = self.work.join("stage");
        let place = stage.join(path.trim_start_matches('/'));
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&place, content)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(mode))?;
        self.hand_in(&stage)
    }

    fn copy_in(&mut self, from: &Path, to: &str) -> Result<()> {
        let stage = self.work.join("stage");
        let place = stage.join(to.trim_start_matches('/'));
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        command("cp", ["-rdT", "--preserve=mode,links,timestamps"]).arg(from).arg(place).checked()?;
        self.hand_in(&stage)
    }

    fn reboot(&mut self) -> Result<()> {
        // The answer may be cut off by the reboot itself. qemu ends at a reboot: the next boot is a new qemu.
        self.try_run("systemctl reboot --no-block", Duration::from_secs(60)).ok();
        self.wait_off(Duration::from_secs(180))?;
        self.start()
    }

    fn console(&self) -> String {
        let file = self.work.join(format!("console-{}.log", self.boots));
        fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    fn failed_dir(&self) -> Result<PathBuf> {
        self.bed.failed_dir(&self.name)
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.power_cut();
        // What stays is cleared by the next run.
        remove_tree(&self.work).ok();
    }
}
