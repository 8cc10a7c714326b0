//! `--chardev` and `--monitor` of `qemu-storage-daemon`.

use std::path::Path;

use control::Form;
use monitor::endpoint::{Endpoint, absolute};
use monitor::inventory::chardevs::Place;
use net::dial::AbstractName;
use serde_json::{Map, Value};
use tool::failure::Failure;

/// A character device that a monitor may name.
#[derive(Debug, PartialEq, Eq)]
pub struct Chardev {
    /// Its name.
    pub id: String,
    /// Where its other end is.
    pub place: Place,
}

/// A character device of a kind that a monitor can have here.
///
/// # Errors
/// When it is of another kind, or an option is missing or unknown.
pub fn chardev(said: &str, mut given: Map<String, Value>) -> Result<Chardev, Failure> {
    let refused = |why: &str| Failure::new(format!("{said}: {why}"));
    let mut take = |name: &str| match given.remove(name) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    };
    let backend = take("backend").unwrap_or_default();
    let id = take("id").ok_or_else(|| refused("it needs id"))?;
    let path = take("path");
    let has_path = path.is_some();
    let needed = |path: Option<String>| absolute(Path::new(&path.ok_or_else(|| refused("it needs path"))?));
    // Nothing is logged of what is carried, and a signal of the terminal ends this program whatever is given.
    for name in ["logfile", "logappend", "signal", "mux"] {
        if is_on(take(name).as_deref()) && name != "signal" {
            return Err(refused(&format!("{name} is not done here; leave it out")));
        }
    }
    let place = match backend.as_str() {
        "stdio" => Place::Stdio,
        "null" => Place::Null,
        "pipe" => Place::Pipe(needed(path)?),
        "file" => Place::File {
            path: needed(path)?,
            append: is_on(take("append").as_deref()),
            commands: take("input-path").map(|path| absolute(Path::new(&path))).transpose()?,
        },
        "socket" => {
            let (server, wait) = (take("server"), take("wait"));
            let is_server = is_on(server.as_deref());
            if is_on(wait.as_deref()) {
                return Err(refused("no client is waited for: write server=on,wait=off"));
            }
            if !is_server && wait.is_some() {
                return Err(refused("wait is for a socket that is listened at (server=on)"));
            }
            let endpoint = if is_on(take("abstract").as_deref()) {
                let tight = take("tight").is_none_or(|text| is_on(Some(&text)));
                let name = AbstractName::new(&path.ok_or_else(|| refused("it needs path"))?, tight);
                Endpoint::Abstract(name.map_err(|error| refused(&error.to_string()))?)
            } else {
                // Only an abstract name is filled up.
                take("tight");
                Endpoint::Socket(needed(path)?)
            };
            if is_server { Place::Socket(endpoint) } else { Place::Client(endpoint) }
        }
        _ => {
            return Err(refused(
                "a monitor is at a Unix socket (socket,id=ID,path=PATH[,abstract=on][,server=on,wait=off]), stdio, file, pipe or null",
            ));
        }
    };
    if has_path && matches!(place, Place::Stdio | Place::Null) {
        return Err(refused("path is not known"));
    }
    match given.keys().next() {
        Some(name) => Err(refused(&format!("{name} is not known"))),
        None => Ok(Chardev { id, place }),
    }
}

/// The name of the character device that a monitor is at, and the form of its answers.
///
/// # Errors
/// When an option is unknown.
pub fn monitor(said: &str, mut given: Map<String, Value>) -> Result<(String, Form), Failure> {
    let refused = |why: String| Failure::new(format!("{said}: {why}"));
    let chardev = given.remove("chardev");
    let mode = given.remove("mode");
    if mode.is_some_and(|mode| mode != "control") {
        return Err(refused("only QMP is spoken here: mode=control".to_owned()));
    }
    let pretty = given.remove("pretty");
    let form = if is_on(pretty.as_ref().and_then(Value::as_str)) { Form::Indented } else { Form::Lines };
    // A monitor's own name means nothing here.
    given.remove("id");
    if let Some(name) = given.keys().next() {
        return Err(refused(format!("{name} is not known; allowed: chardev, id, mode, pretty")));
    }
    let named = chardev.as_ref().and_then(Value::as_str).unwrap_or_default();
    Ok((named.to_owned(), form))
}

/// Whether an option's value switches something on.
pub fn is_on(text: Option<&str>) -> bool {
    matches!(text, Some("on" | "yes" | "true" | "y"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::keyval::{parse, parse_with_switches};
    use super::*;

    fn device(text: &str) -> Result<Chardev, Failure> {
        chardev("--chardev", parse_with_switches("--chardev", text, "backend").unwrap())
    }

    #[test]
    fn a_character_device_says_where_the_client_of_a_monitor_is() {
        let file = |append, commands: Option<&str>| Place::File {
            path: "/x".into(),
            append,
            commands: commands.map(PathBuf::from),
        };
        let socket = || Endpoint::Socket("/x".into());
        let abstract_socket = |tight| Endpoint::Abstract(AbstractName::new("x", tight).unwrap());
        for (text, place) in [
            ("socket,id=c,path=/x,server=on,wait=off", Place::Socket(socket())),
            ("socket,id=c,path=/x,server,nowait", Place::Socket(socket())),
            ("socket,id=c,path=/x", Place::Client(socket())),
            ("socket,id=c,path=/x,server=off", Place::Client(socket())),
            ("socket,id=c,path=x,abstract=on", Place::Client(abstract_socket(true))),
            ("socket,id=c,path=x,abstract,tight=off,server,nowait", Place::Socket(abstract_socket(false))),
            ("stdio,id=c", Place::Stdio),
            ("stdio,id=c,signal=off", Place::Stdio),
            ("null,id=c", Place::Null),
            ("pipe,id=c,path=/x", Place::Pipe("/x".into())),
            ("file,id=c,path=/x", file(false, None)),
            ("file,id=c,path=/x,append=on,input-path=/y", file(true, Some("/y"))),
        ] {
            assert_eq!(device(text).unwrap(), Chardev { id: "c".into(), place }, "{text}");
        }
        for text in [
            "stdio",
            "stdio,id=c,path=/x",
            "null,id=c,append=on",
            "file,id=c",
            "pipe,id=c",
            "pty,id=c",
            "socket,id=c,path=/x,wait=off",
            "socket,id=c,path=/x,server=on,wait=on",
            "socket,id=c,server=on,wait=off",
            "socket,id=c,path=/x,server=on,wait=off,port=1",
        ] {
            assert!(device(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_monitor_names_a_device_and_may_write_for_people() {
        let monitor = |text: &str| monitor("--monitor", parse("--monitor", text, "chardev").unwrap());
        for (text, form) in [
            ("c", Form::Lines),
            ("chardev=c,mode=control,pretty=off,id=m", Form::Lines),
            ("c,pretty=on", Form::Indented),
        ] {
            assert_eq!(monitor(text).unwrap(), ("c".to_owned(), form), "{text}");
        }
        for text in ["c,mode=readline", "c,x=y"] {
            assert!(monitor(text).is_err(), "{text}");
        }
    }
}
