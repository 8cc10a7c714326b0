//! Dates as servers write them <-> seconds since 1970-01-01 00:00:00 UTC.

/// Days before each month of a year that begins in March.
const DAYS_BEFORE: [u64; 12] = [0, 31, 61, 92, 122, 153, 184, 214, 245, 275, 306, 337];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Reads `Sun, 06 Nov 1994 08:49:37 GMT`, the form that servers must write (RFC 9110, 5.6.7). `None` for anything else.
pub fn of_field(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once(", ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let [day, month, year, time, "GMT"] = words[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    at((number(year, 4)?, month, number(day, 2)?), time)
}

/// Reads `1994-11-06T08:49:37.000Z`, as lists of objects have it (ISO 8601); parts of a second are left out. `None` for anything else.
pub fn of_list(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let date: Vec<&str> = date.split('-').collect();
    let [year, month, day] = date[..] else { return None };
    let time = time.split_once('.').map_or(time, |(whole, _)| whole);
    at((number(year, 4)?, number(month, 2)?, number(day, 2)?), time)
}

/// So many digits.
fn number(text: &str, digits: usize) -> Option<u64> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// Year, month and day, and `08:49:37`. A leap second is the next one.
fn at((year, month, day): (u64, u64, u64), time: &str) -> Option<u64> {
    let time: Vec<&str> = time.split(':').collect();
    let [hour, minute, second] = time[..] else { return None };
    let (hour, minute, second) = (number(hour, 2)?, number(minute, 2)?, number(second, 2)?);
    let is_time = hour < 24 && minute < 60 && second <= 60;
    let is_date = year >= 1970 && (1..=12).contains(&month) && (1..=31).contains(&day);
    // Years that begin in March: the day that only some have is their last one.
    let (year, month) = if month < 3 { (year.checked_sub(1)?, month + 9) } else { (year, month - 3) };
    let before = *DAYS_BEFORE.get(usize::try_from(month).ok()?)?;
    let days = (year * 365 + year / 4 - year / 100 + year / 400 + before + day).checked_sub(719_469)?;
    (is_time && is_date).then_some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Year, month and day of a day since 1970-01-01, in the Gregorian calendar.
    fn day(days: u64) -> (u64, u64, u64) {
        // Years that begin in March, in eras of 400 years: 146,097 days each.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        (era * 400 + year_of_era + u64::from(month <= 2), month, day)
    }

    #[test]
    fn a_date_is_the_same_second_in_both_forms() {
        for (field, list, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", "1970-01-01T00:00:00Z", 0),
            ("Sun, 06 Nov 1994 08:49:37 GMT", "1994-11-06T08:49:37.999Z", 784_111_777),
            ("Mon, 28 Feb 2000 23:59:59 GMT", "2000-02-28T23:59:59.000Z", 951_782_399),
            ("Tue, 29 Feb 2000 00:00:00 GMT", "2000-02-29T00:00:00.000Z", 951_782_400),
            ("Mon, 01 Mar 2100 00:00:00 GMT", "2100-03-01T00:00:00Z", 4_107_542_400),
        ] {
            assert_eq!((of_field(field), of_list(list)), (Some(seconds), Some(seconds)), "{field}");
        }
        for days in 0..60_000 {
            let (year, month, date) = day(days);
            assert_eq!(of_list(&format!("{year:04}-{month:02}-{date:02}T00:00:00Z")), Some(days * 86_400));
        }
    }

    #[test]
    fn what_is_no_date_is_none() {
        for text in [
            "",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Noe 1994 08:49:37 GMT",
            "Sun, 06 Nov 1969 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "1994-11-06T08:49:37",
            "1994-13-06T08:49:37Z",
            "-994-11-06T08:49:37Z",
            "1994-11-06T08:49Z",
        ] {
            assert_eq!((of_field(text), of_list(text)), (None, None), "{text}");
        }
    }
}
