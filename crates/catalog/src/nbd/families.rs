//! `server.ipv4` and `server.ipv6`: over which kinds of addresses a server is reached.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};

use remote::nbd::Server;

/// Families of addresses, of which one at least is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Families {
    pub(super) v4: bool,
    pub(super) v6: bool,
}

impl Families {
    pub(super) fn any(self) -> bool {
        self.v4 || self.v6
    }

    fn allow(self, address: IpAddr) -> bool {
        if address.is_ipv4() { self.v4 } else { self.v6 }
    }

    /// `server`, by an address of an allowed family where not both are. A name is looked up when the disk is opened, and not again.
    pub(super) async fn choose(self, server: Server) -> io::Result<Server> {
        let Server::Tcp { host, port } = server else { return Ok(server) };
        if self.v4 && self.v6 {
            return Ok(Server::Tcp { host, port });
        }
        let name = host.clone();
        let found = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => {
                let found = reactor::blocking(move || (host.as_str(), port).to_socket_addrs()).await?;
                found.map(|found| found.ip()).collect()
            }
        };
        let address = found.into_iter().find(|address| self.allow(*address)).ok_or_else(|| {
            let family = if self.v4 { "IPv4" } else { "IPv6" };
            io::Error::new(io::ErrorKind::AddrNotAvailable, format!("{name} has no {family} address"))
        })?;
        Ok(Server::Tcp { host: address.to_string(), port })
    }
}
