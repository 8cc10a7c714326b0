//! The server: what it has open, the commands and figures of that, its life from the sockets to the last disk.
//!
//! [`inventory`] is what is open, by name: disks of a graph, exports, sockets, jobs. [`qmp`] has the commands on it, [`metrics`] its
//! figures, `jobs` what runs beside guests, [`take_over`] what another process gets. [`supervise`] runs it until the end, behind the
//! fences of [`sandbox`].

#![forbid(unsafe_code)]
// They panic when the output is closed: a server must outlive its terminal.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod brokers;
pub mod endpoint;
pub mod exports;
pub mod figure;
pub mod inventory;
mod jobs;
pub mod listening;
pub mod log;
pub mod log_filter;
mod made_file;
pub mod map_figures;
pub mod metrics;
mod new_socket;
pub mod owners_socket;
pub mod pid_file;
pub mod qmp;
mod remote_figures;
pub mod sandbox;
pub mod sealed_layers;
pub mod signals;
pub mod socket_mode;
pub mod socket_path;
pub mod status_line;
pub mod steering;
pub mod supervise;
pub mod systemd;
pub mod take_over;
pub mod trace;
pub mod turns;
