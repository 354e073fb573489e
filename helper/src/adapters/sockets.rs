//! The kernel's own list of listening sockets (sock_diag(7)), of this process's network namespace.

use anyhow::{Context as _, bail};
use mesh_model::flow::PortProtocol;
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags, nlas::Nla};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use std::net::IpAddr;
use std::os::fd::AsRawFd;

/// One socket that takes what comes from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listening {
    /// Protocol.
    pub protocol: PortProtocol,
    /// Address it is bound to; the unspecified one means any.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Index of the interface it is bound to, 0 for any.
    pub interface: u32,
    /// Whether it takes IPv6 only.
    pub v6_only: bool,
    /// Inode of the socket, as in `/proc/PID/fd`.
    pub inode: u32,
    /// User that made it.
    pub uid: u32,
    /// Inode of its cgroup in the unified hierarchy (`INET_DIAG_CGROUP_ID`, include/uapi/linux/inet_diag.h).
    pub cgroup: Option<u64>,
}

/// include/uapi/linux/inet_diag.h
const INET_DIAG_SKV6ONLY: u16 = 11;
/// include/uapi/linux/inet_diag.h
const INET_DIAG_CGROUP_ID: u16 = 21;
/// include/net/tcp_states.h
const TCP_CLOSE: u32 = 7;
/// include/net/tcp_states.h
const TCP_LISTEN: u32 = 10;

/// Every listening TCP and unconnected UDP and SCTP socket.
///
/// # Errors
/// When the kernel refuses the dump. A protocol that it does not have has no sockets.
pub fn listening() -> anyhow::Result<Vec<Listening>> {
    let mut out = Vec::new();
    for protocol in [PortProtocol::Tcp, PortProtocol::Udp, PortProtocol::Sctp] {
        for family in [AF_INET, AF_INET6] {
            dump(protocol, family, &mut out)
                .with_context(|| format!("reading the kernel's {} sockets", protocol.word()))?;
        }
    }
    Ok(out)
}

fn dump(protocol: PortProtocol, family: u8, out: &mut Vec<Listening>) -> anyhow::Result<()> {
    let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)?;
    let states = match protocol {
        PortProtocol::Tcp | PortProtocol::Sctp => 1 << TCP_LISTEN,
        PortProtocol::Udp => 1 << TCP_CLOSE,
    };
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut request = NetlinkMessage::new(
        header,
        NetlinkPayload::from(SockDiagMessage::InetRequest(InetRequest {
            family,
            protocol: protocol.number(),
            extensions: ExtensionFlags::empty(),
            states: StateFlags::from_bits_truncate(states),
            socket_id: if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() },
        })),
    );
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    send(fd.as_raw_fd(), &bytes, MsgFlags::empty())?;
    let mut buffer = vec![0u8; 1 << 17];
    loop {
        let n = recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let mut rest = buffer.get(..n).unwrap_or_default();
        while !rest.is_empty() {
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest).context("a malformed answer")?;
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(()),
                // A kernel without this protocol's diag module (SCTP mostly) has none of its sockets to show.
                NetlinkPayload::Error(e) if e.raw_code() == -(nix::errno::Errno::ENOENT as i32) => return Ok(()),
                NetlinkPayload::Error(e) if e.code.is_some() => return Err(e.to_io().into()),
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(r)) => {
                    let mut cgroup = None;
                    let mut v6_only = false;
                    for nla in &r.nlas {
                        let Nla::Other(attribute) = nla else { continue };
                        use netlink_packet_utils::nla::Nla as _;
                        let mut value = vec![0; attribute.value_len()];
                        attribute.emit_value(&mut value);
                        match (attribute.kind(), value.as_slice()) {
                            (INET_DIAG_CGROUP_ID, v) => cgroup = v.try_into().ok().map(u64::from_ne_bytes),
                            (INET_DIAG_SKV6ONLY, [b]) => v6_only = *b != 0,
                            _ => {}
                        }
                    }
                    let id = &r.header.socket_id;
                    if id.source_port != 0 && id.destination_port == 0 {
                        out.push(Listening {
                            protocol,
                            address: id.source_address,
                            port: id.source_port,
                            interface: id.interface_id,
                            v6_only,
                            inode: r.header.inode,
                            uid: r.header.uid,
                            cgroup,
                        });
                    }
                }
                _ => {}
            }
            let length = message.header.length as usize;
            // Messages are aligned to 4 bytes (netlink(7), NLMSG_ALIGN).
            let step = length.div_ceil(4) * 4;
            if length == 0 {
                bail!("a message of no length");
            }
            rest = rest.get(step..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_this_process_is_listed() {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = std::net::UdpSocket::bind("[::1]:0").unwrap();
        let all = listening().unwrap();
        let want = |p: PortProtocol, a: std::net::SocketAddr| {
            all.iter().filter(|l| l.protocol == p && l.address == a.ip() && l.port == a.port()).count()
        };
        assert_eq!(want(PortProtocol::Tcp, tcp.local_addr().unwrap()), 1);
        assert_eq!(want(PortProtocol::Udp, udp.local_addr().unwrap()), 1);
    }
}
