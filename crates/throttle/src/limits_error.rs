//! Which rule a set of options breaks.

use std::error::Error;
use std::fmt;

use crate::{Dialect, LENGTH_MAX, Parameter, Part, Weight};

/// Options that no disk can have. Displays with the names of the drive line;
/// [`LimitsError::describe`] speaks the user's dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitsError {
    /// Both directions together and one direction are limited in the same measure.
    TotalAndDirection {
        /// The limit of both.
        total: Parameter,
        /// The limit of one.
        direction: Parameter,
    },
    /// An operation size, but operations are not limited.
    SizeWithoutIops {
        /// The size.
        found: u64,
    },
    /// A number beyond its range.
    TooLarge {
        /// The number's option.
        parameter: Parameter,
        /// Its value.
        found: u64,
        /// The largest value allowed.
        allowed_max: u64,
    },
    /// A burst of no length.
    ZeroLength {
        /// The length's option.
        length: Parameter,
    },
    /// A length for a burst that has no rate.
    LengthWithoutMax {
        /// The length's option.
        length: Parameter,
        /// Its value.
        found: u64,
        /// The option that is missing.
        max: Parameter,
    },
    /// Length times rate is beyond what a bucket holds.
    BurstTooLarge {
        /// The length's option.
        length: Parameter,
        /// Its value.
        found: u64,
        /// The rate's option.
        max: Parameter,
        /// Its value.
        rate: u64,
        /// The longest length allowed at this rate, at least 1.
        allowed_max: u64,
    },
    /// A burst above an average that is not given.
    MaxWithoutAverage {
        /// The burst's option.
        max: Parameter,
        /// The option that is missing.
        average: Parameter,
    },
    /// A burst below its average.
    MaxBelowAverage {
        /// The burst's option.
        max: Parameter,
        /// Its value.
        found: u64,
        /// The average's option.
        average: Parameter,
        /// Its value, the smallest burst allowed.
        allowed_min: u64,
    },
    /// A weight beyond its range.
    Weight {
        /// The weight.
        found: u64,
    },
}

impl LimitsError {
    /// The message with option names of `dialect`.
    pub fn describe(&self, dialect: Dialect) -> String {
        let name = |parameter: Parameter| parameter.name(dialect);
        match *self {
            Self::TotalAndDirection { total, direction } => format!(
                "{} and {} are both given; allowed is either the total or a limit per direction",
                name(total),
                name(direction)
            ),
            Self::SizeWithoutIops { found } => {
                let [total, read, write] = iops_names(dialect);
                format!(
                    "{} is {found}, but no operation limit is given; it needs one of {total}, {read}, {write}",
                    name(Parameter::IopsSize)
                )
            }
            Self::TooLarge { parameter, found, allowed_max } => {
                let allowed_min = u8::from(matches!(parameter, Parameter::Rate(_, Part::MaxLength)));
                format!("{} is {found}; must be {allowed_min} to {allowed_max}", name(parameter))
            }
            Self::ZeroLength { length } => {
                format!("{} is 0; must be 1 to {LENGTH_MAX} seconds", name(length))
            }
            Self::LengthWithoutMax { length, found, max } => format!(
                "{} is {found}, but {} is not given; without it only a length of 1 is allowed",
                name(length),
                name(max)
            ),
            Self::BurstTooLarge { length, found, max, rate, allowed_max } => format!(
                "{} is {found}, too long for {} of {rate}; must be 1 to {allowed_max}",
                name(length),
                name(max)
            ),
            Self::MaxWithoutAverage { max, average } => {
                format!(
                    "{} is given, but {} is not; a burst needs an average of at least 1",
                    name(max),
                    name(average)
                )
            }
            Self::MaxBelowAverage { max, found, average, allowed_min } => format!(
                "{} is {found}, below {} of {allowed_min}; must be {allowed_min} to {}",
                name(max),
                name(average),
                crate::RATE_MAX
            ),
            Self::Weight { found } => format!(
                "throttling.weight is {found}; must be {} to {}",
                Weight::MIN.get(),
                Weight::MAX.get()
            ),
        }
    }
}

fn iops_names(dialect: Dialect) -> [&'static str; 3] {
    [crate::Flow::IopsTotal, crate::Flow::IopsRead, crate::Flow::IopsWrite]
        .map(|flow| Parameter::Rate(flow, Part::Average).name(dialect))
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(Dialect::Drive))
    }
}

impl Error for LimitsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_out_of_range_names_the_range() {
        for found in [0, 10_001, u64::MAX] {
            let error = Weight::new(found).expect_err("out of range");
            assert_eq!(error.to_string(), format!("throttling.weight is {found}; must be 1 to 10000"));
        }
        assert_eq!(Weight::new(10_000), Ok(Weight::MAX));
    }

    #[test]
    fn an_error_speaks_the_dialect_of_the_one_who_asked() {
        let max = Parameter::Rate(crate::Flow::IopsRead, Part::Max);
        let average = Parameter::Rate(crate::Flow::IopsRead, Part::Average);
        let error = LimitsError::MaxWithoutAverage { max, average };
        assert!(error.describe(Dialect::Legacy).starts_with("iops_rd_max is given, but iops_rd is not"));
        assert!(error.describe(Dialect::Virsh).starts_with("read-iops-sec-max is given"));
    }
}
