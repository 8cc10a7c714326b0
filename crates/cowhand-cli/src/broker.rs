//! `cowhand broker`: the process that makes connections for a server in its sandbox. Servers start it; people do not.
//!
//! Its standard input is a socket over which it is asked, its arguments are the addresses that it may connect to. It knows nothing else of the
//! disks: no credentials, no bytes. It ends when the server has ended, and not by the signals that end the server: disks may be written until then.

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;

use dial::Address;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::failure::Failure;
use crate::serve::sandbox;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Addresses that may be connected to
    #[arg(value_name = "HOST:PORT", required = true)]
    addresses: Vec<Address>,
}

/// Connects until nobody can ask any more.
///
/// # Errors
/// When standard input is no socket.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| Failure::because("standard input is no socket of a server", &error);
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::default()).map_err(failed)?;
    }
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let ports: Vec<u16> = args.addresses.iter().map(Address::port).collect();
    sandbox::enter_as_broker(&ports);
    dial::broker::serve(&socket, args.addresses).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}
