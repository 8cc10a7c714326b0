//! Which checkpoints a policy keeps: the newest of each of the last hours, days, weeks, months and years. Pure.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

const HOUR_SECONDS: u64 = 3600;
const DAY_SECONDS: u64 = 86_400;

/// Spans of time, each with how many of them have their newest checkpoint kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Keep(Vec<(Span, u32)>);

/// What is to be kept. A lineage may have one: its servers follow it, and so does who forgets by no other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Policy {
    /// Which checkpoints without a name stay; all of them without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Keep>,
    /// Layers below a disk at most: beyond that the oldest checkpoints without a name are forgotten, whatever `keep` says.
    #[serde(default, rename = "max-depth", skip_serializing_if = "Option::is_none")]
    pub depth_max: Option<usize>,
    /// Layers are merged only where more than so many percent of what they take is not needed; always without.
    #[serde(default, rename = "max-waste", skip_serializing_if = "Option::is_none")]
    pub waste_max: Option<u8>,
}

impl Policy {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What counts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    /// Each checkpoint.
    Last,
    Hourly,
    Daily,
    /// From Monday on.
    Weekly,
    Monthly,
    Yearly,
}

const SPANS: [(&str, Span); 6] = [
    ("last", Span::Last),
    ("hourly", Span::Hourly),
    ("daily", Span::Daily),
    ("weekly", Span::Weekly),
    ("monthly", Span::Monthly),
    ("yearly", Span::Yearly),
];

impl Keep {
    /// Of checkpoints with these times since 1970, the ones that stay: their places in `times`. Days begin at midnight UTC: the same checkpoints stay
    /// on every machine.
    pub fn kept(&self, times: &[Duration]) -> BTreeSet<usize> {
        let mut newest_first: Vec<usize> = (0..times.len()).collect();
        // Of two of one moment the later in the list is the newer.
        newest_first.sort_by_key(|at| std::cmp::Reverse((times[*at], *at)));
        let mut kept = BTreeSet::new();
        for (span, count) in &self.0 {
            let (mut left, mut last) = (*count, None);
            for at in &newest_first {
                if left == 0 {
                    break;
                }
                let number = span.number(times[*at].as_secs());
                if number.is_none() || number != last {
                    (last, left) = (number, left - 1);
                    kept.insert(*at);
                }
            }
        }
        kept
    }
}

impl Span {
    /// Which one a time is in; `None` where each checkpoint counts.
    fn number(self, seconds: u64) -> Option<u64> {
        let days = seconds / DAY_SECONDS;
        match self {
            Self::Last => None,
            Self::Hourly => Some(seconds / HOUR_SECONDS),
            Self::Daily => Some(days),
            // 1970 began on a Thursday.
            Self::Weekly => Some((days + 3) / 7),
            Self::Monthly => Some(month(days)),
            Self::Yearly => Some(month(days) / 12),
        }
    }
}

/// The number of a day's month, twelve a year. Years begin in March in the calculation, so that the leap day is the last of its year, and 400 of them are one
/// era of 146,097 days.
fn month(days: u64) -> u64 {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    // March is the third month of its year.
    (era * 400 + year_of_era) * 12 + month_from_march + 2
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut keep: Vec<(Span, u32)> = Vec::new();
        for part in text.split(',') {
            let names = || SPANS.map(|(name, _)| name).join(", ");
            let refused = || format!("{part:?}: must be SPAN:NUMBER, SPAN one of {}", names());
            let (name, count) = part.split_once(':').ok_or_else(refused)?;
            let (_, span) = SPANS.into_iter().find(|(known, _)| *known == name).ok_or_else(refused)?;
            let count = count.parse().map_err(|_| refused())?;
            if keep.iter().any(|(known, _)| *known == span) {
                return Err(format!("{name} is given twice"));
            }
            keep.push((span, count));
        }
        Ok(Self(keep))
    }
}

impl TryFrom<String> for Keep {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Keep> for String {
    fn from(keep: Keep) -> Self {
        keep.to_string()
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (span, count)) in self.0.iter().enumerate() {
            let name = SPANS.iter().find(|(_, known)| known == span).map_or("", |(name, _)| name);
            write!(f, "{}{name}:{count}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2024-02-28 00:00:00 UTC, a Wednesday.
    const START: u64 = 1_709_078_400;

    fn kept(policy: &str, times: &[u64]) -> Vec<usize> {
        let times: Vec<Duration> = times.iter().copied().map(Duration::from_secs).collect();
        policy.parse::<Keep>().unwrap().kept(&times).into_iter().collect()
    }

    #[test]
    fn the_newest_of_each_span_stays() {
        // Every half hour for three days: 2024 has a 29th of February.
        let times: Vec<u64> = (0..144).map(|half| START + half * HOUR_SECONDS / 2).collect();
        assert_eq!(kept("hourly:3", &times), [139, 141, 143]);
        assert_eq!(kept("daily:7", &times), [47, 95, 143]);
        assert_eq!(kept("daily:2,last:2", &times), [95, 142, 143]);
        assert_eq!(kept("monthly:5", &times), [95, 143]);
        assert_eq!(kept("weekly:5", &times), [143]);
        assert_eq!(kept("yearly:5,hourly:0", &times), [143]);
        // Sunday and Monday are two weeks.
        let monday = START + 5 * DAY_SECONDS;
        assert_eq!(kept("weekly:2", &[monday - 1, monday]), [0, 1]);
        assert_eq!(kept("yearly:9", &[0, START, START - 60 * DAY_SECONDS]), [0, 1, 2]);
        // Whatever order they come in, and where the clock went backwards.
        assert_eq!(kept("last:1", &[5, 9, 7]), [1]);
        assert_eq!(kept("hourly:1", &[7, 7]), [1]);
        assert_eq!(kept("hourly:1", &[]), [0; 0]);
    }

    #[test]
    fn a_policy_names_spans_and_numbers() {
        for text in ["hourly:24,daily:7", "last:1"] {
            assert_eq!(text.parse::<Keep>().unwrap().to_string(), text);
        }
        for text in ["", "hourly", "hourly:", "hourly:-1", "24:hourly", "hourly:1,", "hourly:1,hourly:2"] {
            assert!(text.parse::<Keep>().is_err(), "{text}");
        }
    }
}
