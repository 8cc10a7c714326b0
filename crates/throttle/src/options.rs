//! What was typed.

use crate::{Limits, Parameter, Weight};

/// Throttling options as given on a drive line, in a file or over QMP: nothing is checked yet,
/// and what was not given is known to be not given. [`Options::check`] makes [`Limits`] of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    values: [Option<u64>; 19],
    /// `throttling.group`: disks that name the same group share its buckets.
    pub group: Option<String>,
    /// `throttling.weight`: this disk's part of its group.
    pub weight: Option<Weight>,
}

impl Options {
    /// No option given.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives `parameter` the value `value`, in its own unit (operations, bytes or seconds).
    pub fn set(&mut self, parameter: Parameter, value: u64) -> &mut Self {
        self.values[parameter.index()] = Some(value);
        self
    }

    /// The value that was given.
    pub fn get(&self, parameter: Parameter) -> Option<u64> {
        self.values[parameter.index()]
    }

    /// Lets what `newer` gives replace what stands here, as QMP's `qom-set` on a throttle-group's
    /// `limits` does; the rest stays.
    pub fn update(&mut self, newer: &Self) {
        for (value, replacement) in self.values.iter_mut().zip(newer.values) {
            *value = replacement.or(*value);
        }
        self.group = newer.group.clone().or(self.group.take());
        self.weight = newer.weight.or(self.weight);
    }

    /// The limits that the options ask for.
    ///
    /// # Errors
    /// The first rule that is broken, with the options that break it (docs/reference/throttling.md lists
    /// the rules).
    pub fn check(&self) -> Result<Limits, crate::LimitsError> {
        Limits::from_options(self)
    }
}
