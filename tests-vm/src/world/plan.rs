//! What the predecessor's world is made of, as values: no I/O. Sizes are those of DESIGN §1.

/// How much of the world is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Size {
    /// 60 containers, 20 system services.
    Full,
    /// No container and five services; the same firewall, files and control. Boots in a second.
    Small,
}

/// Which transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// TCP
    Tcp,
    /// UDP
    Udp,
}

impl Transport {
    /// `tcp` or `udp`.
    pub fn word(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        }
    }
}

/// What answers on a port, so that the prober knows a right answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    /// Our own program: `NAME INSTANCE`.
    Banner,
    /// HTTP: the request comes first.
    Http,
    /// An ssh server.
    Ssh,
}

/// One served port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// Who serves it.
    pub name: String,
    /// Over which transport.
    pub transport: Transport,
    /// The port as seen on the wire.
    pub port: u16,
    /// What answers.
    pub speaks: Speaks,
    /// Whether it is behind the forward hook (a published container port).
    pub forwarded: bool,
}

/// A system service that is none of the control's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Unit name without `.service`.
    pub name: &'static str,
    /// TCP ports on every address.
    pub tcp: &'static [u16],
    /// UDP ports on every address.
    pub udp: &'static [u16],
    /// TCP ports on loopback only.
    pub local: &'static [u16],
    /// TCP ports on every address that the found firewall does not allow: an adopted node opens them.
    pub waiting: &'static [u16],
    /// What answers on TCP.
    pub speaks: Speaks,
}

const fn service(name: &'static str, tcp: &'static [u16], udp: &'static [u16]) -> Service {
    Service { name, tcp, udp, local: &[], waiting: &[], speaks: Speaks::Banner }
}

/// Listened on by `edge-tls` and not allowed: the node opens it for the administrators' network.
pub const OPENED_ADMIN: u16 = 9443;
/// The same, opened for anybody.
pub const OPENED_ANY: u16 = 9444;

/// The 20 system services. What collides with the mesh is held by the first five: web ports, resolver, the broker's
/// management port on loopback, the predecessor's own tunnel.
pub const SERVICES: [Service; 20] = [
    Service { name: "edge-http", tcp: &[80], udp: &[], local: &[], waiting: &[], speaks: Speaks::Http },
    Service {
        name: "edge-tls",
        tcp: &[443, 8443],
        udp: &[443],
        local: &[],
        waiting: &[OPENED_ADMIN, OPENED_ANY],
        speaks: Speaks::Banner,
    },
    service("resolver", &[53], &[53]),
    Service { name: "broker", tcp: &[5671], udp: &[], local: &[15672], waiting: &[], speaks: Speaks::Banner },
    service("tunnel", &[], &[51820]),
    Service { name: "ssh", tcp: &[22], udp: &[], local: &[], waiting: &[], speaks: Speaks::Ssh },
    service("mail-in", &[25, 587], &[]),
    service("mail-box", &[143, 993], &[]),
    service("directory", &[389, 636], &[]),
    service("clock", &[], &[123]),
    service("logsink", &[601], &[514]),
    service("metrics", &[9100, 9187], &[]),
    service("gitd", &[9418], &[]),
    service("mirror", &[873], &[]),
    service("files", &[2049], &[]),
    service("cache", &[6379], &[]),
    service("search", &[9200, 9300], &[]),
    service("telemetry", &[1883], &[8125]),
    service("backup", &[8200], &[]),
    service("console", &[3000], &[]),
];

/// A container of the predecessor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Its own TCP port.
    pub tcp: u16,
    /// The port it is published at; the same in most.
    pub published: u16,
    /// Its UDP port.
    pub udp: Option<u16>,
    /// A volume with data.
    pub store: bool,
    /// In the machine's own network instead of the bridge.
    pub host_network: bool,
}

/// The 60 containers: the registry, 35 applications, 15 stores, 5 with UDP, 4 in the host's network.
pub fn containers(size: Size) -> Vec<Container> {
    if size == Size::Small {
        return Vec::new();
    }
    let plain = |name: String, port: u16| Container {
        name,
        tcp: port,
        published: port,
        udp: None,
        store: false,
        host_network: false,
    };
    let mut all = vec![Container { store: true, ..plain("fleet-registry".into(), 5000) }];
    for n in 1..=35 {
        let mut app = plain(format!("fleet-app{n:02}"), 8000 + n);
        if n > 30 {
            // Published under another port than its own, as compose files do.
            app.tcp = 80;
        }
        all.push(app);
    }
    all.extend((1..=15).map(|n| Container { store: true, ..plain(format!("fleet-store{n:02}"), 7000 + n) }));
    all.extend((1..=5).map(|n| Container { udp: Some(9600 + n), ..plain(format!("fleet-media{n:02}"), 9500 + n) }));
    all.extend((1..=4).map(|n| Container { host_network: true, ..plain(format!("fleet-host{n:02}"), 9800 + n) }));
    all
}

/// The system services of this size.
pub fn services(size: Size) -> &'static [Service] {
    match size {
        Size::Full => &SERVICES,
        Size::Small => &SERVICES[..6],
    }
}

/// Every port that must answer from outside, in the order of the world.
pub fn served(size: Size) -> Vec<Served> {
    let mut all = Vec::new();
    for s in services(size) {
        for (transport, ports) in [(Transport::Tcp, s.tcp), (Transport::Udp, s.udp)] {
            let speaks = if transport == Transport::Udp { Speaks::Banner } else { s.speaks };
            all.extend(ports.iter().map(|port| Served {
                name: s.name.into(),
                transport,
                port: *port,
                speaks,
                forwarded: false,
            }));
        }
    }
    for c in containers(size) {
        let port = |transport, port| Served {
            name: c.name.clone(),
            transport,
            port,
            speaks: Speaks::Banner,
            forwarded: !c.host_network,
        };
        all.push(port(Transport::Tcp, c.published));
        all.extend(c.udp.map(|p| port(Transport::Udp, p)));
    }
    all
}

/// TCP ports that must stay shut from outside: held on loopback or by nobody, never allowed by the found firewall.
pub const SHUT: [u16; 4] = [15672, 5432, 4444, 31337];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_world_has_the_size_of_the_design() {
        assert_eq!(containers(Size::Full).len(), 60);
        assert_eq!(services(Size::Full).len(), 20);
        let names: BTreeSet<_> = containers(Size::Full).into_iter().map(|c| c.name).collect();
        assert_eq!(names.len(), 60);
    }

    #[test]
    fn no_two_serve_one_port_and_the_store_and_bus_are_free() {
        let served = served(Size::Full);
        let ports: BTreeSet<_> = served.iter().map(|s| (s.transport, s.port)).collect();
        assert_eq!(ports.len(), served.len());
        for free in [5432, 5672, 4369, 25672] {
            assert!(!ports.contains(&(Transport::Tcp, free)), "{free} is to be free");
        }
        for held in [5000, 80, 443, 53] {
            assert!(ports.contains(&(Transport::Tcp, held)), "{held} is to be held");
        }
        assert!(ports.contains(&(Transport::Udp, 51820)));
    }
}
