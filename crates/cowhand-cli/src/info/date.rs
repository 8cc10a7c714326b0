//! Seconds since 1970 to a date, in UTC: the same text on every machine.

const SECONDS_PER_DAY: u64 = 86_400;

/// `2026-11-21 00:57:56`.
pub fn utc(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / SECONDS_PER_DAY);
    let time = seconds % SECONDS_PER_DAY;
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Year, month and day of a day counted from 1970-01-01. Years begin in March here, so that the
/// leap day is the last of its year, and 400 of them are one era of 146,097 days.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let table = [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_800, "2000-03-01 00:00:00"),
            (1_795_222_676, "2026-11-21 00:57:56"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (u64::from(u32::MAX), "2106-02-07 06:28:15"),
        ];
        for (seconds, date) in table {
            assert_eq!(utc(seconds), date);
        }
    }
}
