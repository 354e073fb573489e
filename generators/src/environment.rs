//! How the manager calls a generator (systemd.generator(7)): folders as arguments, the rest in the environment.

use mesh_model::unit::Scope;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What the arguments and the environment say.
#[derive(Debug, Clone)]
pub struct Environment {
    /// `/`, or a tree made by a test.
    root: Option<PathBuf>,
    scope: Scope,
    /// Print instead of writing.
    pub dry_run: bool,
    /// The normal and the early folder.
    pub folders: Option<(PathBuf, PathBuf)>,
}

/// What the arguments should have been.
pub const USAGE: &str =
    "usage: mesh-generator NORMAL-DIR [EARLY-DIR LATE-DIR] | mesh-generator --dry-run [--user NAME]";

impl Environment {
    /// Of this process; `None` where the arguments are not those of a generator.
    pub fn of_process() -> Option<Environment> {
        let mut arguments = std::env::args_os();
        let program = arguments.next().unwrap_or_default();
        let arguments: Vec<OsString> = arguments.collect();
        let root = variable("MESH_GENERATOR_ROOT").map(PathBuf::from);
        let (dry_run, folders, named) = match arguments.as_slice() {
            [flag] if flag == "--dry-run" => (true, None, None),
            [flag, user, name] if flag == "--dry-run" && user == "--user" => {
                (true, None, name.to_str().map(String::from))
            }
            // A slip of the pen or --help, and no folder to make units in.
            [first, ..] if first.as_encoded_bytes().starts_with(b"-") => return None,
            // With one folder there is none that wins over /etc; masks in it still win over /usr/lib.
            [one] => (false, Some((one.into(), one.into())), None),
            [normal, early, _late] => (false, Some((normal.into(), early.into())), None),
            _ => return None,
        };
        let by_user = match std::env::var("SYSTEMD_SCOPE").as_deref() {
            Ok("user") => true,
            Ok(_) => false,
            // Before systemd 251 only the paths tell.
            Err(_) => {
                let folder = folders.as_ref().map_or(Path::new(""), |(normal, _): &(PathBuf, PathBuf)| normal);
                folder.starts_with("/run/user")
                    || Path::new(&program).parent().is_some_and(|p| p.ends_with("user-generators"))
            }
        };
        let scope = match named {
            Some(name) => Scope::User(name),
            None if by_user => Scope::User(user_name(root.as_deref())),
            None => Scope::System,
        };
        Some(Environment { root, scope, dry_run, folders })
    }

    /// Whose manager calls.
    pub fn scope(&self) -> Scope {
        self.scope.clone()
    }

    /// Whether PID 1's log is the kernel's: not for a user's generator, which may not write it.
    pub fn kernel_log(&self) -> bool {
        self.scope == Scope::System && !self.dry_run && self.root.is_none()
    }

    /// An absolute path of the machine.
    pub fn under(&self, absolute: &str) -> PathBuf {
        match &self.root {
            None => PathBuf::from(absolute),
            Some(root) => root.join(absolute.trim_start_matches('/')),
        }
    }

    /// The kernel's command line, or PID 1's in a container, which shares the kernel with others.
    pub fn command_line(&self) -> String {
        if let Some(line) = variable("SYSTEMD_PROC_CMDLINE") {
            return line.to_string_lossy().into_owned();
        }
        let in_container = match std::env::var("SYSTEMD_VIRTUALIZATION") {
            Ok(kind) => kind.starts_with("container"),
            Err(_) => self.under("/run/systemd/container").exists(),
        };
        let file = if in_container { "/proc/1/cmdline" } else { "/proc/cmdline" };
        // Where it cannot be read, nothing on it lowers the mode.
        std::fs::read(self.under(file)).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
    }
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|v| !v.is_empty())
}

/// The name of the user that this process runs as: by number, as `$USER` is only a text. A user that is in no local file
/// (a directory service's) has the name that its session gave it.
fn user_name(root: Option<&Path>) -> String {
    let uid = match (root, variable("MESH_GENERATOR_UID")) {
        (Some(_), Some(uid)) => uid.to_string_lossy().into_owned(),
        _ => rustix::process::getuid().as_raw().to_string(),
    };
    let file = root.unwrap_or(Path::new("/")).join("etc/passwd");
    let users = std::fs::read_to_string(file).unwrap_or_default();
    let named = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_string())
    });
    named.or_else(|| variable("USER").map(|u| u.to_string_lossy().into_owned())).unwrap_or_default()
}
