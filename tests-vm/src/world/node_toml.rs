//! What the operator of this world writes into `node.toml`.

use super::control;
use super::firewall;
use super::plan;

/// The whole file: a control-node whose foundation gets ports of its own, since the predecessor holds the standard ones.
pub fn adopting() -> String {
    with("registry.http = 5001\nbus.management = 15673\noverlay.wg = 51821\n", false)
}

/// The same with the standard ports: three are held.
pub fn with_standard_ports() -> String {
    with("", false)
}

/// As [`adopting`], with a stand-in where something hangs on the control.
pub fn keeping_dependents() -> String {
    with("registry.http = 5001\nbus.management = 15673\noverlay.wg = 51821\n", true)
}

fn list<'a>(items: impl IntoIterator<Item = &'a &'a str>) -> String {
    items.into_iter().map(|i| format!("  \"{i}\",\n")).collect()
}

fn with(foundation: &str, keep_dependents: bool) -> String {
    let files = list(control::SYSTEM_FILES.iter().chain(&control::HOME_FILES));
    format!(
        "schema = 1\nname = \"alpha\"\nrole = \"control\"\nmodules = []\n\n[foundation]\n{foundation}\n\
         [predecessor]\nunits = [\n{system}]\nfiles = [\n{files}]\nkeep-dependents = {keep_dependents}\n\
         cron = [{{ file = \"{cron}\" }}]\nprocesses = [{{ executable = \"{bare}\", user = \"{user}\" }}]\n\n\
         [predecessor.user.{user}]\nunits = [\n{own}]\n\n\
         [predecessor.firewall]\ntables = [\"inet filter\"]\nloader = \"nftables.service\"\n\n\
         [[opening]]\nflow = \"tcp/{admin_port} from {admin}\"\n\n[[opening]]\nflow = \"tcp/{any_port}\"\n",
        system = list(&control::SYSTEM_UNITS),
        own = list(&control::USER_UNITS),
        cron = control::CRON,
        bare = control::BARE,
        user = control::USER,
        admin = firewall::ADMIN,
        admin_port = plan::OPENED_ADMIN,
        any_port = plan::OPENED_ANY,
    )
}
