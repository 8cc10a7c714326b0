//! Limits that keep the rules.

use crate::{Direction, Flow, LimitsError, Measure, Options, Parameter, Part};

/// The largest average, the largest burst rate, and the largest product of burst rate and length.
pub const RATE_MAX: u64 = 1_000_000_000_000_000;

/// The longest burst, in seconds.
pub const LENGTH_MAX: u64 = u32::MAX as u64;

/// Pieces of a large request are no smaller: each counts as an operation.
const PIECE_BYTES_MIN: u64 = 64 << 10;

/// The numbers of one [`Flow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// What may pass per second in the long run; 0: no limit.
    pub avg: u64,
    /// What may pass per second in a burst; 0: no bursts beyond a tenth of a second's worth.
    pub max: u64,
    /// Seconds that a burst may last; 1 unless set.
    pub length: u32,
}

impl Rate {
    /// No limit.
    pub const UNLIMITED: Self = Self { avg: 0, max: 0, length: 1 };

    /// Nothing is limited.
    pub const fn is_unlimited(self) -> bool {
        self.avg == 0
    }
}

/// Checked limits of a disk or a group: the six rates and the operation size. The default is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    rates: [Rate; 6],
    iops_size: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rates: [Rate::UNLIMITED; 6], iops_size: 0 }
    }
}

impl Limits {
    /// The numbers of `flow`.
    pub const fn rate(&self, flow: Flow) -> Rate {
        self.rates[flow.index()]
    }

    /// Bytes that count as one operation: a larger request counts as its size divided by this. 0:
    /// each request counts once.
    pub const fn iops_size(&self) -> u64 {
        self.iops_size
    }

    /// Bytes that a request in `direction` may have before it had better be charged in pieces: what
    /// passes in a tenth of a second, and no less than `PIECE_BYTES_MIN`. `None` if a request of any
    /// size costs the same.
    ///
    /// A request is charged whole and those after it wait for it: one that zeroes a disk would
    /// otherwise keep its whole group waiting for minutes.
    pub fn piece_bytes(&self, direction: Direction) -> Option<u64> {
        let per_second = |flow: Flow| match (flow.measure(), self.rate(flow).avg) {
            (_, 0) => None,
            (Measure::Bytes, avg) => Some(avg),
            (Measure::Operations, _) if self.iops_size == 0 => None,
            (Measure::Operations, avg) => Some(avg.saturating_mul(self.iops_size)),
        };
        let narrowest = Flow::of(direction).into_iter().filter_map(per_second).min()?;
        Some((narrowest / 10).max(PIECE_BYTES_MIN))
    }

    /// Whether a request of `bytes` bytes counts as one operation.
    pub const fn counts_once(&self, bytes: u64) -> bool {
        self.iops_size == 0 || bytes <= self.iops_size
    }

    /// Nothing is limited: requests need not ask.
    pub fn is_unlimited(&self) -> bool {
        self.rates.iter().all(|rate| rate.is_unlimited())
    }

    /// A limit counts both directions together.
    pub(crate) fn has_total(&self) -> bool {
        self.any(|flow| flow.direction().is_none())
    }

    /// A limit counts one direction only.
    pub(crate) fn has_direction(&self) -> bool {
        self.any(|flow| flow.direction().is_some())
    }

    fn any(&self, matches: impl Fn(Flow) -> bool) -> bool {
        Flow::ALL.into_iter().any(|flow| matches(flow) && !self.rate(flow).is_unlimited())
    }

    /// The options that ask for these limits: those whose value differs from the default.
    pub fn options(&self) -> Options {
        let mut options = Options::new();
        for flow in Flow::ALL {
            let Rate { avg, max, length } = self.rate(flow);
            for (part, value, default) in
                [(Part::Average, avg, 0), (Part::Max, max, 0), (Part::MaxLength, u64::from(length), 1)]
            {
                if value != default {
                    options.set(Parameter::Rate(flow, part), value);
                }
            }
        }
        if self.iops_size != 0 {
            options.set(Parameter::IopsSize, self.iops_size);
        }
        options
    }

    pub(crate) fn from_options(options: &Options) -> Result<Self, LimitsError> {
        for part in [Part::Average, Part::Max] {
            check_total_alone(options, part, [Flow::IopsTotal, Flow::IopsRead, Flow::IopsWrite])?;
            check_total_alone(options, part, [Flow::BpsTotal, Flow::BpsRead, Flow::BpsWrite])?;
        }
        let mut limits = Self::default();
        for flow in Flow::ALL {
            limits.rates[flow.index()] = check_rate(options, flow)?;
        }
        limits.iops_size = check_size(options, &limits)?;
        Ok(limits)
    }
}

fn check_total_alone(
    options: &Options,
    part: Part,
    [total, read, write]: [Flow; 3],
) -> Result<(), LimitsError> {
    let given = |flow| options.get(Parameter::Rate(flow, part)).unwrap_or(0) != 0;
    match [read, write].into_iter().find(|&flow| given(flow)) {
        Some(direction) if given(total) => Err(LimitsError::TotalAndDirection {
            total: Parameter::Rate(total, part),
            direction: Parameter::Rate(direction, part),
        }),
        _ => Ok(()),
    }
}

fn check_rate(options: &Options, flow: Flow) -> Result<Rate, LimitsError> {
    let average = Parameter::Rate(flow, Part::Average);
    let burst = Parameter::Rate(flow, Part::Max);
    let avg = check_range(options, average)?;
    let max = check_range(options, burst)?;
    let length = check_length(options, flow, max)?;
    if max != 0 && avg == 0 {
        return Err(LimitsError::MaxWithoutAverage { max: burst, average });
    }
    if max != 0 && max < avg {
        return Err(LimitsError::MaxBelowAverage { max: burst, found: max, average, allowed_min: avg });
    }
    Ok(Rate { avg, max, length })
}

fn check_range(options: &Options, parameter: Parameter) -> Result<u64, LimitsError> {
    let found = options.get(parameter).unwrap_or(0);
    if found > RATE_MAX {
        return Err(LimitsError::TooLarge { parameter, found, allowed_max: RATE_MAX });
    }
    Ok(found)
}

fn check_length(options: &Options, flow: Flow, max: u64) -> Result<u32, LimitsError> {
    let parameter = Parameter::Rate(flow, Part::MaxLength);
    let burst = Parameter::Rate(flow, Part::Max);
    let found = options.get(parameter).unwrap_or(1);
    let length = match u32::try_from(found) {
        Ok(0) => return Err(LimitsError::ZeroLength { length: parameter }),
        Ok(length) => length,
        Err(_) => return Err(LimitsError::TooLarge { parameter, found, allowed_max: LENGTH_MAX }),
    };
    if length > 1 && max == 0 {
        return Err(LimitsError::LengthWithoutMax { length: parameter, found, max: burst });
    }
    match RATE_MAX.checked_div(max) {
        Some(allowed_max) if found > allowed_max => {
            Err(LimitsError::BurstTooLarge { length: parameter, found, max: burst, rate: max, allowed_max })
        }
        _ => Ok(length),
    }
}

fn check_size(options: &Options, limits: &Limits) -> Result<u64, LimitsError> {
    let size = options.get(Parameter::IopsSize).unwrap_or(0);
    let limited = Direction::BOTH
        .into_iter()
        .flat_map(Flow::of)
        .any(|flow| flow.measure() == Measure::Operations && !limits.rate(flow).is_unlimited());
    if size != 0 && !limited {
        return Err(LimitsError::SizeWithoutIops { found: size });
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(given: &[(&str, u64)]) -> Result<Limits, String> {
        let mut options = Options::new();
        for &(name, value) in given {
            let Some(crate::Setting::Limit(parameter)) = crate::Setting::from_name(name) else {
                panic!("{name} is no parameter")
            };
            options.set(parameter, value);
        }
        let checked = options.check().map_err(|error| error.to_string());
        if let Ok(limits) = checked {
            assert_eq!(limits.options().check(), Ok(limits), "limits survive being written down");
        }
        checked
    }

    fn assert_refused(given: &[(&str, u64)], words: &[&str]) {
        let error = check(given).expect_err("a rule is broken");
        for word in words {
            assert!(error.contains(word), "{error:?} does not say {word:?}");
        }
    }

    #[test]
    fn a_total_excludes_the_directions_of_the_same_measure() {
        assert_refused(
            &[("iops-total", 1), ("iops-write", 1)],
            &["throttling.iops-total", "throttling.iops-write"],
        );
        assert_refused(
            &[("bps-total", 1), ("bps-read", 1)],
            &["throttling.bps-total", "throttling.bps-read"],
        );
        assert_refused(
            &[("bps-total-max", 1), ("bps-read-max", 1)],
            &["throttling.bps-total-max", "throttling.bps-read-max"],
        );
        check(&[("iops-total", 1), ("bps-read", 1), ("bps-write", 1)]).unwrap();
        check(&[("iops-total", 1), ("iops-read", 0)]).unwrap();
    }

    #[test]
    fn an_operation_size_needs_an_operation_limit() {
        assert_refused(&[("iops-size", 4096), ("bps-total", 1)], &["iops-size", "4096", "iops-total"]);
        check(&[("iops-size", 4096), ("iops-write", 1)]).unwrap();
    }

    #[test]
    fn rates_end_at_ten_to_the_fifteenth() {
        check(&[("bps-read", RATE_MAX), ("bps-read-max", RATE_MAX)]).unwrap();
        assert_refused(
            &[("bps-read", RATE_MAX + 1)],
            &["bps-read ", "1000000000000001", "0 to 1000000000000000"],
        );
        assert_refused(&[("bps-read", 1), ("bps-read-max", u64::MAX)], &["bps-read-max", "1000000000000000"]);
    }

    #[test]
    fn a_burst_has_a_length_a_rate_and_an_average_below_it() {
        assert_refused(&[("iops-read-max-length", 0)], &["iops-read-max-length", "1 to 4294967295"]);
        assert_refused(&[("iops-read-max-length", 1 << 32)], &["iops-read-max-length", "4294967295"]);
        assert_refused(&[("iops-read", 5), ("iops-read-max-length", 2)], &["max-length", "iops-read-max "]);
        assert_refused(&[("iops-read-max", 2)], &["iops-read-max ", "iops-read "]);
        assert_refused(&[("iops-read", 5), ("iops-read-max", 4)], &["iops-read-max ", "iops-read ", "5"]);
        check(&[("iops-read", 5), ("iops-read-max", 5), ("iops-read-max-length", 2)]).unwrap();
        check(&[("iops-read-max-length", 1)]).unwrap();
    }

    #[test]
    fn a_request_is_charged_in_pieces_where_its_size_costs() {
        let piece = |given: &[(&str, u64)]| check(given).unwrap().piece_bytes(Direction::Write);
        assert_eq!(piece(&[]), None);
        assert_eq!(piece(&[("iops", 10)]), None);
        assert_eq!(piece(&[("bps-read", 10)]), None);
        assert_eq!(piece(&[("bps", 10 << 20)]), Some(1 << 20));
        assert_eq!(piece(&[("bps-write", 1)]), Some(64 << 10));
        assert_eq!(piece(&[("bps-write", 1 << 30), ("iops", 1000), ("iops-size", 4096)]), Some(409_600));
    }

    #[test]
    fn a_burst_holds_at_most_ten_to_the_fifteenth() {
        let third = RATE_MAX / 3;
        check(&[("bps", 1), ("bps_max", third), ("bps_max_length", 3)]).unwrap();
        assert_refused(
            &[("bps", 1), ("bps_max", third), ("bps_max_length", 4)],
            &["bps-total-max-length", "bps-total-max ", "1 to 3"],
        );
    }
}
