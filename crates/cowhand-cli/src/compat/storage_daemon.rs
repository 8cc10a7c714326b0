//! `qemu-storage-daemon`: nodes, exports and sockets out of options, in the order in which they were given.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command};
use door_nbd::ServerOptions;
use filter::{Mismatch, on_mismatch};
use graph::OpenRules;
use monitor::endpoint::absolute;
use monitor::log_filter::LEVEL_AS_QEMU;
use serde_json::{Map, Value, json};
use tool::failure::Failure;
use tool::output::tell;

use super::chardev_line::{chardev, is_on, monitor};
use super::daemon::Daemon;
use super::keyval::{parse, parse_with_switches};
use super::names::VERSION;
use crate::background::{Background, Side};
use crate::policy::policy;
use crate::serve::settings::SHARED_DEFAULT;

/// Options that are done in their order: name, what stands behind it, help.
const STEPS: [(&str, &str, &str); 6] = [
    ("object", "TYPE,id=ID,...", "An object: throttle-group, secret or tls-creds-x509"),
    ("blockdev", "DRIVER,node-name=NAME,...", "A node, as blockdev-add takes it; also as JSON"),
    (
        "chardev",
        "socket,id=ID,path=PATH,server=on,wait=off",
        "A Unix socket for a monitor; also stdio, file,path=PATH, pipe,path=PATH and null, each with id=ID",
    ),
    ("monitor", "chardev=ID[,pretty=on]", "Listen for commands (QMP) there"),
    (
        "nbd-server",
        "addr.type=unix,addr.path=PATH,...",
        "Listen for NBD clients: unix, or inet with addr.host and addr.port",
    ),
    (
        "export",
        "nbd,id=ID,node-name=NAME,...",
        "Let clients reach a node (nbd, vhost-user-blk, fuse), as block-export-add takes it; also as JSON",
    ),
];

/// The command line.
pub fn command() -> Command {
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let steps = STEPS.map(|(name, value, help)| option(name, value, help).action(ArgAction::Append));
    Command::new("qemu-storage-daemon")
        .version(VERSION)
        .about("Nodes and exports by options and commands (cowhand under qemu-storage-daemon's name)")
        .infer_long_args(true)
        .args_override_self(true)
        .args(steps)
        .arg(
            Arg::new("daemonize")
                .long("daemonize")
                .action(ArgAction::SetTrue)
                .help("Serve in the background; end when all is open"),
        )
        .arg(option("pidfile", "PATH", "Write the process's number to a file"))
        .arg(option("trace", "EVENTS", "Trace events of QEMU (refused: there are none here)").short('T'))
}

/// Serves.
///
/// # Errors
/// For the first option that cannot be done, and as the server.
pub fn run(matches: &ArgMatches, _: &mut dyn Write) -> Result<ExitCode, Failure> {
    if let Some(events) = matches.get_one::<String>("trace") {
        return Err(Failure::new(format!(
            "-T {events}: there are no trace events of QEMU here; leave it out"
        )));
    }
    let background = match matches.get_flag("daemonize").then(Background::begin).transpose()? {
        Some(Side::Started(code)) => return Ok(code),
        Some(Side::Serving(background)) => Some(background),
        None => None,
    };
    on_mismatch(end_at_mismatch);
    let options = ServerOptions { connections_per_export: SHARED_DEFAULT, ..ServerOptions::default() };
    let rules = OpenRules { policy: policy(&[], &[])?, ..OpenRules::default() };
    let mut daemon = Daemon::begin(LEVEL_AS_QEMU, options, rules)?;
    for (name, value) in in_order(matches) {
        step(&daemon, name, value)?;
    }
    if let Some(path) = matches.get_one::<String>("pidfile") {
        daemon.write_pid_file(Path::new(path))?;
    }
    daemon.serve(background)
}

/// Ends the process where disks under a blkverify node differ, as QEMU's daemon does: a test of a format must not go on. Nothing is flushed.
fn end_at_mismatch(Mismatch { offset, len, at }: Mismatch) {
    tell(format_args!("blkverify: read offset={offset} bytes={len} contents mismatch at offset {at}"));
    std::process::exit(1);
}

/// The steps, in the order of the command line.
fn in_order(matches: &ArgMatches) -> Vec<(&'static str, &str)> {
    let mut steps = Vec::new();
    for (name, ..) in STEPS {
        let places = matches.indices_of(name).into_iter().flatten();
        let values = matches.get_many::<String>(name).into_iter().flatten();
        steps.extend(places.zip(values).map(|(place, value)| (place, name, value.as_str())));
    }
    steps.sort_unstable();
    steps.into_iter().map(|(_, name, value)| (name, value)).collect()
}

fn step(daemon: &Daemon, name: &str, value: &str) -> Result<(), Failure> {
    let option = format!("--{name}");
    let said = format!("{option} {value}");
    match name {
        "object" => daemon.command(&said, "object-add", parse(&option, value, "qom-type")?),
        "blockdev" => daemon.command(&said, "blockdev-add", parse(&option, value, "driver")?),
        "export" => daemon.command(&said, "block-export-add", export(parse(&option, value, "type")?)?),
        "nbd-server" => daemon.command(&said, "nbd-server-start", nbd_server(parse(&option, value, "")?)?),
        "chardev" => {
            let device = chardev(&said, parse_with_switches(&option, value, "backend")?)?;
            let added = daemon.inventory.chardevs.add(&device.id, device.place);
            added.map_err(|failure| {
                Failure::explained(said, failure.to_string().replace("\n  because: ", ": "))
            })
        }
        _ => {
            let (id, form) = monitor(&said, parse(&option, value, "chardev")?)?;
            let missing = || Failure::new(format!("{said}: there is no chardev {id:?} before it"));
            let device = daemon.inventory.chardevs.find(&id).ok_or_else(missing)?;
            let added = daemon.inventory.monitors.add_for_good(device, form);
            added.map_err(|error| Failure::because(said, &error))
        }
    }
}

/// The path of a socket or a mount from the root: a server in the background leaves its directory, and one that runs may be in another.
///
/// # Errors
/// When the working directory is gone.
pub fn export(mut arguments: Map<String, Value>) -> Result<Map<String, Value>, Failure> {
    if let Some(Value::String(path)) = arguments.get_mut("mountpoint") {
        *path = absolute(Path::new(path))?.to_string_lossy().into_owned();
    }
    if let Some(Value::Object(address)) = arguments.get_mut("addr") {
        from_the_root(address)?;
    }
    Ok(arguments)
}

/// The path of a socket from the root, unless it is the name of an abstract one.
fn from_the_root(address: &mut Map<String, Value>) -> Result<(), Failure> {
    let is_abstract = match address.get("abstract") {
        Some(Value::String(text)) => is_on(Some(text)),
        found => found == Some(&Value::Bool(true)),
    };
    if let Some(Value::String(path)) = address.get_mut("path").filter(|_| !is_abstract) {
        *path = absolute(Path::new(path))?.to_string_lossy().into_owned();
    }
    Ok(())
}

/// The address as nbd-server-start has it: what belongs to its type in an object of its own.
fn nbd_server(mut arguments: Map<String, Value>) -> Result<Map<String, Value>, Failure> {
    let Some(Value::Object(mut address)) = arguments.remove("addr") else {
        return Err(Failure::new("--nbd-server needs addr.type, and addr.path or addr.host and addr.port"));
    };
    let kind = address.remove("type").unwrap_or_default();
    from_the_root(&mut address)?;
    arguments.insert("addr".to_owned(), json!({ "type": kind, "data": address }));
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_done_in_the_order_of_the_command_line() {
        let words = [
            "qemu-storage-daemon",
            "--blockdev",
            "a",
            "--export=b",
            "--blockdev",
            "c",
            "--pidfile",
            "p",
            "--object",
            "d",
        ];
        let matches = command().try_get_matches_from(words).unwrap();
        assert_eq!(
            in_order(&matches),
            [("blockdev", "a"), ("export", "b"), ("blockdev", "c"), ("object", "d")]
        );
    }

    #[test]
    fn an_address_is_nested_as_the_command_takes_it() {
        let nested = |text: &str| nbd_server(parse("--nbd-server", text, "").unwrap()).unwrap();
        let unix = nested("addr.type=unix,addr.path=/x,max-connections=3");
        assert_eq!(
            Value::Object(unix),
            json!({ "max-connections": "3", "addr": { "type": "unix", "data": { "path": "/x" } } })
        );
        let inet = nested("addr.type=inet,addr.host=::1,addr.port=10809");
        assert_eq!(inet["addr"], json!({ "type": "inet", "data": { "host": "::1", "port": "10809" } }));
        assert!(nbd_server(Map::new()).is_err());
    }
}
