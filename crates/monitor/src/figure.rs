//! A figure: what QMP, Prometheus and people call it, and where it comes from, in one line of a table.

/// What a figure counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountsIn {
    /// Look-ups, slices.
    Things,
    /// Bytes.
    Bytes,
}

/// One number of a `T`.
#[derive(Debug)]
pub struct Figure<T> {
    /// Its name in JSON.
    pub name: &'static str,
    /// Its name for Prometheus, without unit.
    pub metric: &'static str,
    /// What stands before the number, for people.
    pub label: &'static str,
    /// What it is.
    pub help: &'static str,
    /// What it counts in.
    pub counts_in: CountsIn,
    /// It only grows.
    pub grows: bool,
    /// Its value.
    pub of: fn(&T) -> u64,
}

impl<T> Figure<T> {
    /// One that only grows.
    pub const fn counter(
        (name, metric): (&'static str, &'static str),
        counts_in: CountsIn,
        of: fn(&T) -> u64,
        help: &'static str,
    ) -> Self {
        Self { name, metric, label: name, help, counts_in, grows: true, of }
    }

    /// One that goes up and down.
    pub const fn gauge(
        names: (&'static str, &'static str),
        counts_in: CountsIn,
        of: fn(&T) -> u64,
        help: &'static str,
    ) -> Self {
        Self { grows: false, ..Self::counter(names, counts_in, of, help) }
    }

    /// The same with another word for people.
    pub const fn called(self, label: &'static str) -> Self {
        Self { label, ..self }
    }
}
