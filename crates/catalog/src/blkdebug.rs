//! `blkdebug`: a file whose requests fail or wait when an image engine does certain things (README.md beside this).

mod bounded;
mod config;
mod over_disk;
mod rules;
mod storage;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::storage::{Step, Storage};

use self::bounded::{Bounded, Bounds};
pub(super) use self::over_disk::OVER_DISK;
use self::rules::{Action, Inject, IoType, Rule, Rules};
use self::storage::Blkdebug;
use graph::drive::{Entry as Given, OptionTree};
use graph::drivers::{Over, StorageDriver, StorageKind, Wrap};
use graph::options::entry::{at, choice_at, first_fixed_of, in_group, read_all};
use graph::options::{Entry, Group, Kind, OptionError, Reader, Spec};

pub(super) const BLKDEBUG: StorageDriver = StorageDriver {
    name: "blkdebug",
    prefixes: &["blkdebug:"],
    kind: StorageKind::Over(Over { child: "image", specs, options_of, read }),
};

/// Rules that one drive can have.
const RULES_MAX: usize = 1000;

/// The largest alignment: a request from above is widened by so much on both sides.
const ALIGN_MAX: u64 = 1 << 20;

/// QEMU's largest bound.
const BOUND_MAX: u64 = i32::MAX as u64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Options {
    /// `config`: a file with rules.
    config: Option<PathBuf>,
    /// `inject-error`, `set-state`.
    rules: Vec<Rule>,
    /// `align` and the like.
    bounds: Bounds,
}

const fn bound(entry: Entry<Options>) -> Entry<Options> {
    entry.at_most(BOUND_MAX).default("0")
}

const OPTIONS: &[Entry<Options>] = &in_group(
    Group::Storage("blkdebug"),
    [
        Entry::part("image", Kind::File, "the file below").needed(),
        Entry::path("config", at!(Options, config), "a file with rules").default_follows("none"),
        bound(Entry::size(
            "align",
            at!(Options, bounds.align),
            "the file gets requests that are multiples of this, a power of two; 0: as they come",
        ))
        .at_most(ALIGN_MAX),
        bound(Entry::size(
            "max-transfer",
            at!(Options, bounds.max_transfer),
            "bytes of one read or write at most",
        )),
        bound(Entry::size(
            "opt-write-zero",
            at!(Options, bounds.opt_write_zero),
            "multiples of this are zeroed, the rest is written",
        )),
        bound(Entry::size(
            "max-write-zero",
            at!(Options, bounds.max_write_zero),
            "bytes that one request zeroes at most",
        )),
        bound(Entry::size(
            "opt-discard",
            at!(Options, bounds.opt_discard),
            "multiples of this are discarded together, what is around them apart",
        )),
        bound(Entry::size(
            "max-discard",
            at!(Options, bounds.max_discard),
            "bytes that one request discards at most",
        )),
        Entry::part("inject-error", Kind::List, "requests that fail, as inject-error.0.event=EVENT")
            .default_follows("none"),
        Entry::part("set-state", Kind::List, "states of the rules, as set-state.0.event=EVENT")
            .default_follows("none"),
    ],
);

/// A rule on its way from options.
#[derive(Clone, Debug, Default)]
struct Draft {
    event: Option<Step>,
    state: u32,
    new_state: Option<u32>,
    errno: Option<u32>,
    sector: Option<u64>,
    io_type: Option<IoType>,
    once: bool,
    immediately: bool,
    delay_ns: u64,
}

const EVENT: Entry<Draft> =
    Entry::choice("event", choice_at!(Draft, Step::NAMED, event), "at which step").needed();
const STATE: Entry<Draft> = Entry::whole("state", at!(Draft, state), "in which state; 0: in any");

/// Of one rule of `inject-error`.
const INJECT_ERROR: &[Entry<Draft>] = &[
    EVENT,
    STATE,
    Entry::whole("errno", at!(Draft, errno), "the system's number of the error").default("5"),
    Entry::size("sector", at!(Draft, sector), "only requests that touch this sector of 512 bytes"),
    Entry::choice("iotype", choice_at!(Draft, IoType::NAMED, io_type), "only requests of this type"),
    Entry::switch("once", at!(Draft, once), "for one request"),
    Entry::size(
        "delay-ns",
        at!(Draft, delay_ns),
        "nanoseconds for which such a request waits first; with errno=0 it does not fail",
    )
    .default("0"),
    Entry::switch("immediately", at!(Draft, immediately), "the error comes before anything else"),
];

/// Of one rule of `set-state`.
const SET_STATE: &[Entry<Draft>] =
    &[EVENT, STATE, Entry::whole("new_state", at!(Draft, new_state), "the state from then on").needed()];

fn specs() -> Vec<&'static Spec> {
    OPTIONS.iter().map(Entry::spec).collect()
}

/// `blkdebug:CONFIG:FILE`, where CONFIG may be empty.
fn options_of(name: &str) -> Result<OptionTree, String> {
    let allowed = || "blkdebug:CONFIG:FILE, or blkdebug::FILE".to_owned();
    let (config, file) =
        name.strip_prefix("blkdebug:").and_then(|rest| rest.split_once(':')).ok_or_else(allowed)?;
    if file.is_empty() {
        return Err(allowed());
    }
    let mut tree = OptionTree::default();
    let given =
        [("config", config), ("image.filename", file)].into_iter().filter(|(_, value)| !value.is_empty());
    for (name, value) in given {
        tree.insert(name, Given::Value(value.into())).map_err(|_| allowed())?;
    }
    Ok(tree)
}

fn read(reader: &mut Reader) -> Result<Arc<dyn Wrap>, OptionError> {
    Ok(Arc::new(Options::read(reader)?))
}

/// Refuses bounds that no request could keep to.
fn check_bounds(bounds: &Bounds, reader: &Reader) -> Result<(), OptionError> {
    if bounds.align > ALIGN_MAX || (bounds.align != 0 && !bounds.align.is_power_of_two()) {
        let allowed = format!("0, or a power of two up to {ALIGN_MAX}");
        return Err(reader.value("align", &bounds.align.to_string(), allowed));
    }
    for (name, bytes, multiple_of) in bounds.multiples() {
        if bytes > BOUND_MAX || !bytes.is_multiple_of(multiple_of) {
            let allowed = format!("multiples of {multiple_of} up to {BOUND_MAX}");
            return Err(reader.value(name, &bytes.to_string(), allowed));
        }
    }
    Ok(())
}

/// All rules that stand in `reader`.
fn read_rules(reader: &mut Reader) -> Result<Vec<Rule>, OptionError> {
    let mut rules = Vec::new();
    for (list, entries) in [("inject-error", INJECT_ERROR), ("set-state", SET_STATE)] {
        for mut group in reader.list(list, RULES_MAX)? {
            let mut draft = Draft::default();
            read_all(entries, &mut group, &mut draft)?;
            rules.push(draft.rule(&group)?);
            group.finish(entries.iter().map(|entry| entry.spec().name), &[])?;
        }
    }
    Ok(rules)
}

impl Draft {
    fn rule(self, reader: &Reader) -> Result<Rule, OptionError> {
        let missing = |name| reader.value(name, "", "it must be given");
        let (event, state) = (self.event.ok_or_else(|| missing("event"))?, self.state);
        let action = match self.new_state {
            Some(state) => Action::SetState(state),
            None if reader.is_of("set-state") => return Err(missing("new_state")),
            None => Action::Inject(self.inject(reader)?),
        };
        Ok(Rule { event, state, action })
    }

    fn inject(self, reader: &Reader) -> Result<Inject, OptionError> {
        let Self { errno, sector, io_type, once, immediately, delay_ns, .. } = self;
        let sector_bytes = block::SECTOR_BYTES;
        let offset = sector.map(|sector| {
            let allowed = || reader.value("sector", &sector.to_string(), "less than 2^55");
            sector.checked_mul(sector_bytes).ok_or_else(allowed)
        });
        let errno = errno.unwrap_or(libc::EIO as u32);
        if errno > ERRNO_MAX {
            return Err(reader.value("errno", &errno.to_string(), format!("0 to {ERRNO_MAX}")));
        }
        if delay_ns > DELAY_NS_MAX {
            return Err(reader.value("delay-ns", &delay_ns.to_string(), format!("0 to {DELAY_NS_MAX}")));
        }
        Ok(Inject { errno, offset: offset.transpose()?, io_type, once, immediately, delay_ns })
    }
}

/// A request that is held back longer is better held back by a breakpoint.
const DELAY_NS_MAX: u64 = 3_600_000_000_000;

/// The kernel has no errors beyond.
const ERRNO_MAX: u32 = 4095;

impl Options {
    fn read(reader: &mut Reader) -> Result<Self, OptionError> {
        let mut options = Self::default();
        read_all(OPTIONS, reader, &mut options)?;
        check_bounds(&options.bounds, reader)?;
        options.rules = read_rules(reader)?;
        Ok(options)
    }

    /// The rules of the options and of the file `config`.
    fn all_rules(&self) -> io::Result<Rules> {
        let mut rules = self.configured()?;
        rules.extend(&self.rules);
        Ok(Rules::new(rules))
    }

    /// The rules of the file `config`.
    fn configured(&self) -> io::Result<Vec<Rule>> {
        let Some(path) = &self.config else { return Ok(Vec::new()) };
        let said = |error: io::Error| {
            io::Error::new(error.kind(), format!("the rules of {}: {error}", path.display()))
        };
        let tree = config::read(path).map_err(said)?;
        let mut reader = Reader::new(tree, String::new());
        read_rules(&mut reader).map_err(|error| said(io::Error::new(io::ErrorKind::InvalidData, error)))
    }
}

impl Wrap for Options {
    fn first_difference(&self, other: &dyn Wrap) -> Option<String> {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else {
            return Some("file.driver".to_owned());
        };
        let rules = || (self.rules != other.rules).then(|| "file.inject-error".to_owned());
        first_fixed_of(OPTIONS, self, other).or_else(rules)
    }

    fn name_over(&self, below: &str) -> Option<String> {
        let config = self.config.as_deref().unwrap_or(Path::new("")).display();
        let is_plain = self.rules.is_empty() && !self.bounds.are_given();
        is_plain.then(|| format!("blkdebug:{config}:{below}"))
    }

    fn check(&self) -> io::Result<()> {
        self.configured().map(drop)
    }

    fn wrap(&self, below: Arc<dyn Storage>) -> io::Result<Arc<dyn Storage>> {
        let storage: Arc<dyn Storage> = Arc::new(Blkdebug::new(below, self.all_rules()?));
        match self.bounds.are_given() {
            true => Ok(Arc::new(Bounded::new(storage, self.bounds))),
            false => Ok(storage),
        }
    }
}
