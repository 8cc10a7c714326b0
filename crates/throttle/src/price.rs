//! What a request takes from its group, as one number.

use crate::{Direction, Flow, Limits, Measure, Rate, Request};

/// Fixed point: fractions of a nanosecond.
const FRACTION_BITS: u32 = 16;

/// Sizes above this (a pebibyte) count as this when shares are computed, so that no price overflows.
const BYTES_MAX: u64 = 1 << 50;

/// Prices under some limits: the time for which a request occupies the narrowest of its buckets.
///
/// With limits in operations only, a request costs what it counts as; with limits in bytes only, its
/// bytes; with both, whichever takes longer. Members are served so that the sums stay in proportion
/// to their weights.
#[derive(Clone, Debug)]
pub(crate) struct Prices {
    of: [DirectionPrices; 2],
    iops_size: u64,
}

/// In 2^-16 nanoseconds; at most 10^9 * 2^16, less than 2^46.
#[derive(Clone, Copy, Debug)]
struct DirectionPrices {
    per_operation: u64,
    per_byte: u64,
}

impl Prices {
    /// Prices in all buckets that a request fills.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self::in_buckets(limits, |_| true)
    }

    /// Prices in the buckets that reads and writes fill both.
    pub(crate) fn of_totals(limits: &Limits) -> Self {
        Self::in_buckets(limits, |flow| flow.direction().is_none())
    }

    fn in_buckets(limits: &Limits, counts: fn(&Flow) -> bool) -> Self {
        let narrowest = |direction, measure| {
            Flow::of(direction)
                .into_iter()
                .filter(|flow| counts(flow) && flow.measure() == measure)
                .filter_map(|flow| unit_price(limits.rate(flow)))
                .max()
                .unwrap_or(0)
        };
        let of = Direction::BOTH.map(|direction| DirectionPrices {
            per_operation: narrowest(direction, Measure::Operations),
            per_byte: narrowest(direction, Measure::Bytes),
        });
        Self { of, iops_size: limits.iops_size() }
    }

    /// At least 1, less than 2^97.
    pub(crate) fn of(&self, request: Request) -> u128 {
        let prices = &self.of[request.direction.index()];
        let bytes = u128::from(request.bytes.min(BYTES_MAX));
        let operation = u128::from(prices.per_operation);
        let operations = match u128::from(self.iops_size) {
            size if size == 0 || bytes <= size => operation,
            size => bytes * operation / size,
        };
        operations.max(bytes * u128::from(prices.per_byte)).max(1)
    }
}

/// The time that one unit occupies a bucket, if it is limited.
fn unit_price(rate: Rate) -> Option<u64> {
    (1_000_000_000_u64 << FRACTION_BITS).checked_div(rate.avg).map(|price| price.max(1))
}
