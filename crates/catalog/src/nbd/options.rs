//! The options of `nbd`.

use std::path::PathBuf;

use super::super::remote::{ON_REMOTE_ERROR, OnRemoteError};
use graph::options::entry::{at, choice_at, in_group};
use graph::options::{Entry, Group};

/// The options of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nbd {
    /// `server.type`; `None`: by what else is given.
    pub(super) address: Option<AddressType>,
    /// `server.host`.
    pub(super) host: Option<String>,
    /// `server.port`.
    pub(super) port: Option<String>,
    /// `server.ipv4`.
    pub(super) ipv4: Option<bool>,
    /// `server.ipv6`.
    pub(super) ipv6: Option<bool>,
    /// `server.path`.
    pub(super) path: Option<String>,
    /// `server.abstract`.
    pub(super) has_no_path: bool,
    /// `server.tight`.
    pub(super) tight: Option<bool>,
    /// `server.str`.
    pub(super) passed: Option<String>,
    /// `export`.
    pub(super) export: Option<String>,
    /// `x-dirty-bitmap`.
    pub(super) bitmap: Option<String>,
    /// `reconnect-delay`, in seconds.
    pub(super) reconnect_delay_s: u32,
    /// `open-timeout`, in seconds.
    pub(super) open_timeout_s: u32,
    /// `on-remote-error`.
    pub(super) on_remote_error: OnRemoteError,
    /// `remote-timeout`, in seconds; 0 is none.
    pub(super) remote_timeout_s: u32,
    /// `tls-creds`.
    pub(super) tls_creds: Option<String>,
    /// `tls-certificates`.
    pub(super) tls_certificates: Option<PathBuf>,
    /// `tls-hostname`.
    pub(super) tls_hostname: Option<String>,
}

/// What kind of address a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressType {
    Inet,
    Unix,
    Fd,
}

const TYPES: [(&str, AddressType); 3] =
    [("inet", AddressType::Inet), ("unix", AddressType::Unix), ("fd", AddressType::Fd)];

/// The driver's part of the table.
pub const NBD_OPTIONS: &[Entry<Nbd>] = &in_group(
    Group::Storage("nbd"),
    [
        Entry::choice("server.type", choice_at!(Nbd, TYPES, address), "where the server listens")
            .default_follows("unix with server.path, fd with server.str, else inet"),
        Entry::text("server.host", at!(Nbd, host), "name or address of the server")
            .alias("host")
            .default_follows("localhost"),
        Entry::text("server.port", at!(Nbd, port), "its TCP port").alias("port").default_follows("10809"),
        Entry::switch("server.ipv4", at!(Nbd, ipv4), "connect over IPv4")
            .default_follows("on; off with server.ipv6=on"),
        Entry::switch("server.ipv6", at!(Nbd, ipv6), "connect over IPv6")
            .default_follows("on; off with server.ipv4=on"),
        Entry::text("server.path", at!(Nbd, path), "its unix socket").alias("path").default_follows("none"),
        Entry::switch(
            "server.abstract",
            at!(Nbd, has_no_path),
            "server.path is the name of an abstract socket, which is no file",
        )
        .default("off"),
        Entry::switch(
            "server.tight",
            at!(Nbd, tight),
            "the abstract socket's name is not filled up with zeroes to the length that addresses have",
        )
        .default_follows("on"),
        Entry::text(
            "server.str",
            at!(Nbd, passed),
            "the name under which getfd (QMP) handed over a connection to it; when that is lost it does not come back",
        )
        .default_follows("none"),
        Entry::text("export", at!(Nbd, export), "name of the export").default_follows("the server's default"),
        Entry::text(
            "x-dirty-bitmap",
            at!(Nbd, bitmap),
            "a metadata context of the export, qemu:dirty-bitmap:NAME: map shows what is dirty there as no data",
        )
        .default_follows("none: holes are shown"),
        Entry::whole(
            "reconnect-delay",
            at!(Nbd, reconnect_delay_s),
            "seconds for which requests wait for a lost connection to come back; 0: they fail",
        )
        .default("0"),
        Entry::whole(
            "open-timeout",
            at!(Nbd, open_timeout_s),
            "seconds for which opening tries to connect; 0: once, and an answer is waited for a minute",
        )
        .default("0"),
        Entry::whole(
            "remote-timeout",
            at!(Nbd, remote_timeout_s),
            "seconds within which the server must answer a request, or its connection counts as lost; 0: any time",
        )
        .default("0"),
        Entry::choice(
            "on-remote-error",
            choice_at!(Nbd, ON_REMOTE_ERROR, on_remote_error),
            "what requests do while the connection is lost: report has them fail, after reconnect-delay; wait has them wait for the server (with reconnect-delay, so long)",
        )
        .default("report"),
        Entry::text(
            "tls-creds",
            at!(Nbd, tls_creds),
            "encrypts the connection, with the certificates of this object (tls-creds-x509, endpoint=client)",
        )
        .default_follows("none"),
        Entry::path(
            "tls-certificates",
            at!(Nbd, tls_certificates),
            "encrypts it, with the certificates in this directory: ca-cert.pem, and client-cert.pem with client-key.pem for servers that ask",
        )
        .default_follows("none"),
        Entry::text("tls-hostname", at!(Nbd, tls_hostname), "the name that the server's certificate must have")
            .default_follows("server.host"),
    ],
);
