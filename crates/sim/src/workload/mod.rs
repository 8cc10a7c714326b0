//! What clients do: a list of steps, made from a seed, printable, shrinkable.

mod generate;
mod resizes;
mod shrink;

use std::fmt;

use storage::Zeroing;

use crate::subject::{Durability, Management};

pub use generate::{Mix, Shape};
pub use shrink::shrink;

/// One thing that a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read and compare.
    Read {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// Write stamped bytes.
    Write {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
        /// FUA or not.
        durability: Durability,
    },
    /// Write zeroes.
    Zero {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
        /// May space be given back.
        how: Zeroing,
        /// FUA or not.
        durability: Durability,
    },
    /// Discard.
    Discard {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// Flush.
    Flush,
    /// Change what is only in memory.
    Tidy {
        /// In which of several ways.
        how: u32,
    },
    /// Close and open in another way. Waits for all steps before it, and all after it wait for it.
    Reopen {
        /// In which way.
        variant: u32,
    },
    /// Something on the disk as a whole; waits as [`Op::Reopen`] does.
    Manage(Management),
}

impl Op {
    /// Whether the disk is closed and opened.
    pub fn is_reopen(&self) -> bool {
        matches!(self, Op::Reopen { .. })
    }

    /// Whether the step runs alone.
    pub fn is_barrier(&self) -> bool {
        matches!(self, Op::Reopen { .. } | Op::Manage(_))
    }
}

/// One step of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Steps of one queue run one after the other, queues run beside each other.
    pub queue: u8,
    /// What to do.
    pub op: Op,
    /// The future is dropped when it is still pending after so many turns.
    pub dropped_after: Option<u32>,
}

impl Step {
    /// A step of queue 0 that runs to its end.
    pub fn of(op: Op) -> Self {
        Self { queue: 0, op, dropped_after: None }
    }
}

/// Steps in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// What is done.
    pub steps: Vec<Step>,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            write!(f, "  queue {}: {}", step.queue, step.op)?;
            match step.dropped_after {
                Some(polls) => writeln!(f, ", dropped after {polls} turns")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fua = |durability| if durability == Durability::AtReply { " fua" } else { "" };
        match *self {
            Op::Read { at, len } => write!(f, "read {at:#x}+{len:#x}"),
            Op::Write { at, len, durability } => write!(f, "write {at:#x}+{len:#x}{}", fua(durability)),
            Op::Zero { at, len, how, durability } => {
                write!(f, "zero {at:#x}+{len:#x} {how:?}{}", fua(durability))
            }
            Op::Discard { at, len } => write!(f, "discard {at:#x}+{len:#x}"),
            Op::Flush => write!(f, "flush"),
            Op::Tidy { how } => write!(f, "tidy as {how}"),
            Op::Reopen { variant } => write!(f, "reopen as {variant}"),
            Op::Manage(what) => write!(f, "{what:?}"),
        }
    }
}
