//! systemd in namespaces of this machine: own PID 1, own network stack, own users; this machine's kernel.
//!
//! The root is an overlay on the image's directory, and reachable at [`Nspawn::root`] before, while and after the node
//! runs. `/var/lib/containers` is a plain directory (overlay does not stack on overlay); both outlive a reboot of the
//! node. Network links are made anew for each boot, and are there before PID 1 runs, as on a machine.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bed::{Bed, remove_tree, unmount};
use crate::cgroup::Cgroup;
use crate::channel::Channel;
use crate::image::Image;
use crate::netns::Netns;
use crate::node::{Node, Output};
use crate::process::{self, Checked, command};

/// nspawn's exit code when the payload asked for a reboot (`--keep-unit`: its service manager is to start it again).
const REBOOT: i32 = 133;

/// A node in namespaces.
#[derive(Debug)]
pub struct Nspawn {
    name: String,
    bed: Bed,
    work: PathBuf,
    wires: Vec<Wire>,
    running: Option<Running>,
    boots: u32,
}

#[derive(Debug)]
struct Running {
    child: Child,
    /// Ends whatever outlives nspawn itself: first of what is dropped after the child is ended.
    _group: Cgroup,
    channel: Channel,
    leader: u32,
    /// New for each boot: no rule and no address outlives a reboot.
    _network: Netns,
}

#[derive(Debug)]
struct Wire {
    inside: String,
    netns: String,
    outside: String,
    setup: String,
}

impl Nspawn {
    /// Makes the root without starting it: files can be put in first.
    pub fn create(bed: &Bed, image: &Image, name: &str) -> Result<Nspawn> {
        let work = bed.run_dir(name)?;
        for dir in ["upper", "work", "root", "channel", "containers"] {
            fs::create_dir_all(work.join(dir))?;
        }
        let shown = |dir: &str| work.join(dir).display().to_string();
        let lower = image.rootfs().display().to_string();
        let options = format!("lowerdir={lower},upperdir={},workdir={}", shown("upper"), shown("work"));
        command("mount", ["-t", "overlay", "-o", &options, "none", &shown("root")]).checked()?;
        Ok(Nspawn { name: name.to_owned(), bed: bed.clone(), work, wires: Vec::new(), running: None, boots: 0 })
    }

    /// Makes and starts a node and waits until all of it runs.
    pub fn boot(bed: &Bed, image: &Image, name: &str) -> Result<Nspawn> {
        let mut node = Nspawn::create(bed, image, name)?;
        node.start()?;
        node.wait_running()?;
        Ok(node)
    }

    /// The node's root directory as seen from here.
    pub fn root(&self) -> PathBuf {
        self.work.join("root")
    }

    /// A path of the node as seen from here; `/var/lib/containers` included, `/run` and `/tmp` not.
    pub fn under(&self, path: &str) -> PathBuf {
        match path.strip_prefix("/var/lib/containers") {
            Some(rest) => self.work.join("containers").join(rest.trim_start_matches('/')),
            None => self.root().join(path.trim_start_matches('/')),
        }
    }

    /// The process id, on this machine, of the node's PID 1.
    pub fn leader(&self) -> Result<u32> {
        Ok(self.running()?.leader)
    }

    /// Lays a cable: at each boot a link `inside` of the node with its other end `outside` in `netns`, where `setup`
    /// (a script) then gives it addresses. To be laid before the start; the inner end is the node's to configure.
    pub fn wire(&mut self, inside: &str, netns: &Netns, outside: &str, setup: &str) {
        self.wires.push(Wire {
            inside: inside.to_owned(),
            netns: netns.name().to_owned(),
            outside: outside.to_owned(),
            setup: setup.to_owned(),
        });
    }

    /// Boots, and waits until the node answers (not until all its units run: [`Node::wait_running`]).
    pub fn start(&mut self) -> Result<()> {
        if self.running.is_some() {
            bail!("{} runs already", self.name);
        }
        let network = Netns::new(&self.name)?;
        for wire in &self.wires {
            let Wire { inside, netns, outside, setup } = wire;
            // Made inside: a name is refused that the namespace where the command runs has too.
            let ends = ["-n", network.name(), "link", "add", inside, "type", "veth"];
            let other = ["peer", "name", outside, "netns", netns];
            command("ip", ends.into_iter().chain(other)).checked()?;
            command("nsenter", [&format!("--net=/run/netns/{netns}"), "bash", "-ec", setup]).checked()?;
        }
        let socket = self.work.join("channel/agent.sock");
        if socket.exists() {
            fs::remove_file(&socket)?;
        }
        self.boots += 1;
        let console = File::create(self.work.join(format!("console-{}.log", self.boots)))?;
        let group = Cgroup::new(&format!("{}-{}", self.name, self.boots))?;
        let child = process::spawn("sh", |command| {
            command
                .args(["-ec", &format!("{}exec systemd-nspawn \"$@\"", group.enter()), "sh"])
                .args(["--quiet", "--boot", "--register=no", "--keep-unit"])
                .arg(format!("--network-namespace-path=/run/netns/{}", network.name()))
                .args(["--console=read-only", "--kill-signal=SIGRTMIN+3", "--link-journal=no", "--resolv-conf=off"])
                .args(["--timezone=off", "--capability=all"])
                .arg("--system-call-filter=add_key keyctl bpf fanotify_init fanotify_mark")
                .arg(format!("--machine={}", self.name))
                .arg(format!("--directory={}", self.root().display()))
                .arg(format!("--bind={}:/run/mesh-test", self.work.join("channel").display()))
                .arg(format!("--bind={}:/var/lib/containers", self.work.join("containers").display()))
                // Containers in the node need one cgroup tree; this machine may have the split one.
                .env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1")
                // /proc/sys/net is the node's own: forwarding is switched on there.
                .env("SYSTEMD_NSPAWN_API_VFS_WRITABLE", "network");
            if let Ok(error) = console.try_clone() {
                command.stderr(error);
            }
            command.stdout(console).stdin(Stdio::null());
        })?;
        self.running = Some(self.reached(child, group, network, &socket)?);
        Ok(())
    }

    fn reached(&self, mut child: Child, group: Cgroup, network: Netns, socket: &Path) -> Result<Running> {
        let started = Instant::now();
        let stream = loop {
            if let Ok(stream) = UnixStream::connect(socket) {
                break stream;
            }
            let ended = child.try_wait()?;
            if ended.is_some() || started.elapsed() > Duration::from_secs(60) {
                process::end(&mut child);
                bail!("{} does not come up ({ended:?}): {}", self.name, self.console());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()))?;
        let leader = children.split_whitespace().next().context("nspawn has no child")?.parse()?;
        Ok(Running { child, _group: group, channel: Channel::new(stream), leader, _network: network })
    }

    /// Shuts the node down in order; its root stays, and [`Nspawn::start`] boots it again.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        command("kill", ["-TERM", &running.child.id().to_string()]).checked()?;
        if wait(&mut running.child, Duration::from_secs(100))?.is_none() {
            process::end(&mut running.child);
            bail!("{} did not stop in time: {}", self.name, self.console());
        }
        Ok(())
    }

    /// A power cut: everything ends at once, nothing is told. The root stays, and [`Nspawn::start`] boots it again.
    /// (What was written is in this machine's memory and stays: a cut that loses unwritten data needs [`crate::Vm`].)
    pub fn cut(&mut self) -> Result<()> {
        let mut running = self.running.take().with_context(|| format!("{} does not run", self.name))?;
        process::end(&mut running.child);
        Ok(())
    }

    fn running(&self) -> Result<&Running> {
        self.running.as_ref().with_context(|| format!("{} does not run", self.name))
    }
}

fn wait(child: &mut Child, limit: Duration) -> Result<Option<std::process::ExitStatus>> {
    let started = Instant::now();
    loop {
        match child.try_wait()? {
            None if started.elapsed() < limit => std::thread::sleep(Duration::from_millis(10)),
            state => return Ok(state),
        }
    }
}

impl Node for Nspawn {
    fn name(&self) -> &str {
        &self.name
    }

    fn try_run(&mut self, script: &str, limit: Duration) -> Result<Output> {
        let running = self.running.as_mut().with_context(|| format!("{} does not run", self.name))?;
        running.channel.run(script, limit)
    }

    fn put(&mut self, path: &str, content: &[u8], mode: u32) -> Result<()> {
        let place = self.under(path);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&place, content).with_context(|| format!("cannot put {path} into {}", self.name))?;
        Ok(fs::set_permissions(&place, fs::Permissions::from_mode(mode))?)
    }

    fn copy_in(&mut self, from: &Path, to: &str) -> Result<()> {
        let place = self.under(to);
        let mut copy = command("cp", ["-rdT", "--preserve=mode,links,timestamps"]);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        copy.arg(from).arg(place).checked().map(drop)
    }

    fn reboot(&mut self) -> Result<()> {
        // The answer may be cut off by the reboot itself.
        self.try_run("systemctl reboot --no-block", Duration::from_secs(30)).ok();
        let mut running = self.running.take().with_context(|| format!("{} does not run", self.name))?;
        match wait(&mut running.child, Duration::from_secs(120))? {
            Some(status) if status.code() == Some(REBOOT) => {}
            state => {
                process::end(&mut running.child);
                bail!("{} did not reboot ({state:?}): {}", self.name, self.console());
            }
        }
        drop(running);
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

impl Drop for Nspawn {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            // Not an orderly stop: the node is thrown away. Its processes end with its PID 1.
            process::end(&mut running.child);
        }
        unmount(&self.root());
        // What stays is cleared by the next run.
        remove_tree(&self.work).ok();
    }
}
