//! What the generator costs, beside systemd's fstab-generator and podman's, in one run on one machine: the medians of
//! 50 runs, taken in turns so that whatever else the machine does falls on all alike. It never fails on a time.
//!
//! `make bench`, or `MESH_GENERATOR=PATH cargo bench -p mesh-generator`.

use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const RUNS: usize = 50;
const FSTAB: &str = "/usr/lib/systemd/system-generators/systemd-fstab-generator";
const QUADLET: &str = "/usr/lib/systemd/system-generators/podman-system-generator";

type Outcome<T> = Result<T, Box<dyn Error>>;

/// One thing to measure.
struct Subject {
    name: String,
    program: PathBuf,
    environment: Vec<(&'static str, PathBuf)>,
    times: Vec<Duration>,
}

impl Subject {
    fn new(name: impl Into<String>, program: impl Into<PathBuf>, environment: &[(&'static str, &Path)]) -> Subject {
        let environment = environment.iter().map(|(k, v)| (*k, v.to_path_buf())).collect();
        Subject { name: name.into(), program: program.into(), environment, times: Vec::new() }
    }

    fn command(&self, out: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["normal", "early", "late"].map(|f| out.join(f)));
        self.surroundings(&mut command);
        command
    }

    fn surroundings(&self, command: &mut Command) {
        command.env_clear().env("SYSTEMD_SCOPE", "system").env("SYSTEMD_LOG_LEVEL", "err");
        command.envs(self.environment.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    }

    fn run(&mut self, out: &Path) -> Outcome<()> {
        folders(out)?;
        let mut command = self.command(out);
        let begin = Instant::now();
        command.status()?;
        self.times.push(begin.elapsed());
        Ok(())
    }

    fn median_ms(&mut self) -> f64 {
        self.times.sort();
        self.times[self.times.len() / 2].as_secs_f64() * 1e3
    }

    /// Counted by strace, where there is one.
    fn system_calls(&self, out: &Path) -> Option<usize> {
        folders(out).ok()?;
        let log = out.join("strace");
        let mut command = Command::new("/usr/bin/strace");
        command.args(["-f", "-qq", "-o"]).arg(&log).arg(&self.program);
        command.args(["normal", "early", "late"].map(|f| out.join(f)));
        self.surroundings(&mut command);
        command.status().ok()?;
        Some(fs::read_to_string(log).ok()?.lines().filter(|l| l.contains('(') && !l.contains("+++")).count())
    }
}

/// Empty output folders, as the manager gives them.
fn folders(out: &Path) -> Outcome<()> {
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    for folder in ["normal", "early", "late"] {
        fs::create_dir_all(out.join(folder))?;
    }
    Ok(())
}

/// A node with as many modules, each with ports, a file and a command, all migrated; `assigned` of them are its.
fn node(root: &Path, catalogued: usize, assigned: usize) -> Outcome<()> {
    let catalogue = root.join("etc/mesh/catalogue");
    fs::create_dir_all(&catalogue)?;
    let names: Vec<String> = (0..catalogued).map(|n| format!("module{n}")).collect();
    let quoted: Vec<String> = names[..assigned].iter().map(|n| format!("\"{n}\"")).collect();
    fs::write(root.join("etc/mesh/mode"), "adopted\n")?;
    fs::write(
        root.join("etc/mesh/node.toml"),
        format!(
            "schema = 1\nname = \"bench\"\nrole = \"node\"\nmodules = [{}]\n\n[foundation]\nat = \"control\"\n\n\
             [predecessor]\nunits = [\"fleet-agent.service\", \"fleet-sync.timer\"]\n",
            quoted.join(", ")
        ),
    )?;
    fs::write(
        root.join("etc/mesh/state.toml"),
        format!("schema = 1\nraised = []\nmigrated = [{}]\n", quoted.join(", ")),
    )?;
    for (n, name) in names.iter().enumerate() {
        let manifest = format!(
            "schema = 1\nsummary = \"Module number {n}\"\npackages = [\"package-{n}\"]\ndata = [\"/var/lib/{name}\"]\n\n\
             [[port]]\nname = \"http\"\nprotocol = \"tcp\"\nport = {}\nscope = \"overlay\"\n\n\
             [[file]]\npath = \"/etc/{name}/config.yml\"\ncontent = \"listen: true\\n\"\nmode = \"0640\"\n\n\
             [run]\nexec = [\"/usr/bin/{name}\", \"serve\", \"/etc/{name}/config.yml\"]\nuser = \"{name}\"\n\
             state_directory = \"{name}\"\nenvironment = {{ LOG = \"info\" }}\n\n[health]\ntcp = \"http\"\n",
            20000 + n
        );
        fs::write(catalogue.join(format!("{name}.toml")), manifest)?;
    }
    Ok(())
}

/// As many quadlets, about as large as the manifests.
fn quadlets(folder: &Path, count: usize) -> Outcome<()> {
    fs::create_dir_all(folder)?;
    for n in 0..count {
        let text = format!(
            "[Unit]\nDescription=Container number {n}\n\n[Container]\nImage=localhost/image:{n}\n\
             PublishPort={}:80\nVolume=/srv/{n}:/data\nEnvironment=LOG=info\n\n[Service]\nRestart=on-failure\n\n\
             [Install]\nWantedBy=multi-user.target\n",
            20000 + n
        );
        fs::write(folder.join(format!("container{n}.container")), text)?;
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let generator =
        std::env::var_os("MESH_GENERATOR").map_or(env!("CARGO_BIN_EXE_mesh-generator").into(), PathBuf::from);
    let work = tempfile::tempdir()?;
    let at = |name: String| work.path().join(name);
    // The manager's folders are on a tmpfs; making a file on a disk would cost more than all the rest.
    let memory = tempfile::tempdir_in("/dev/shm")?;
    let out = memory.path().join("out");
    let empty = at("empty".into());
    fs::create_dir_all(&empty)?;
    fs::write(at("fstab".into()), "")?;

    let mut subjects = vec![
        Subject::new("spawn floor: /usr/bin/true", "/usr/bin/true", &[]),
        Subject::new("mesh, no mode file", &generator, &[("MESH_GENERATOR_ROOT", &empty)]),
    ];
    let sizes = [(0, 0), (10, 10), (60, 60), (1000, 1000), (1000, 0)];
    for (catalogued, assigned) in sizes {
        let root = at(format!("node-{catalogued}-{assigned}"));
        node(&root, catalogued, assigned)?;
        let name = format!("mesh, adopted, {assigned} modules of {catalogued} catalogued");
        subjects.push(Subject::new(name, &generator, &[("MESH_GENERATOR_ROOT", &root)]));
    }
    let mut skipped = Vec::new();
    if Path::new(FSTAB).exists() {
        subjects.push(Subject::new("fstab-generator, 0 lines", FSTAB, &[("SYSTEMD_FSTAB", &at("fstab".into()))]));
        subjects.push(Subject::new("fstab-generator, as found", FSTAB, &[]));
    } else {
        skipped.push(FSTAB);
    }
    if Path::new(QUADLET).exists() {
        for count in [0, 10, 60, 1000] {
            let folder = at(format!("quadlets-{count}"));
            quadlets(&folder, count)?;
            let name = format!("podman's generator, {count} containers");
            subjects.push(Subject::new(name, QUADLET, &[("QUADLET_UNIT_DIRS", &folder)]));
        }
    } else {
        skipped.push(QUADLET);
    }

    for _ in 0..RUNS {
        for subject in &mut subjects {
            subject.run(&out)?;
        }
    }

    let floor = subjects.iter_mut().find(|s| s.name.starts_with("fstab-generator, 0")).map(Subject::median_ms);
    let mut print = std::io::stdout().lock();
    writeln!(
        print,
        "median of {RUNS} runs, in turns; {}, {} bytes",
        generator.display(),
        fs::metadata(&generator)?.len()
    )?;
    writeln!(
        print,
        "{:46} {:>9} {:>9} {:>18} {:>13}",
        "", "median ms", "least ms", "of fstab-generator", "system calls"
    )?;
    for subject in &mut subjects {
        let median = subject.median_ms();
        let least = subject.times.first().map_or(0.0, |t| t.as_secs_f64() * 1e3);
        let ratio = floor.map_or("-".into(), |f| format!("{:.2}", median / f));
        let calls = subject.system_calls(&out).map_or("-".into(), |n| n.to_string());
        writeln!(print, "{:46} {median:9.3} {least:9.3} {ratio:>18} {calls:>13}", subject.name)?;
    }
    for program in skipped {
        writeln!(print, "skipped: {program} is not on this machine")?;
    }
    Ok(())
}
