//! What tests looked at, summed up from what they print.

use std::collections::BTreeMap;

/// Before each line that tells of numbers, in the output of the tests.
const MARK: &str = "looked at in ";

/// Numbers by what was counted.
#[derive(Debug, Default)]
pub struct Figures {
    sums: BTreeMap<String, u64>,
    configurations: u64,
}

impl Figures {
    /// Adds a line `looked at in NAME: N of this, M of that`; says whether it was one.
    pub fn read(&mut self, line: &str) -> bool {
        let Some((_, figures)) = line.split_once(MARK).and_then(|(_, rest)| rest.split_once(": ")) else {
            return false;
        };
        self.configurations += 1;
        for figure in figures.split(", ") {
            if let Some((number, what)) = figure.split_once(' ')
                && let Ok(number) = number.parse::<u64>()
            {
                self.add(what.trim(), number);
            }
        }
        true
    }

    /// Adds `number` to what was counted of `what`.
    pub fn add(&mut self, what: &str, number: u64) {
        *self.sums.entry(what.to_owned()).or_default() += number;
    }

    /// How much of `what` was counted.
    pub fn get(&self, what: &str) -> u64 {
        self.sums.get(what).copied().unwrap_or(0)
    }

    /// Everything else that was counted.
    pub fn others<'a>(&'a self, besides: &'a [&str]) -> impl Iterator<Item = (&'a str, u64)> {
        let sums = self.sums.iter().map(|(what, sum)| (what.as_str(), *sum));
        sums.filter(move |(what, _)| !besides.contains(what))
    }

    /// The sums so far in one line.
    pub fn line(&self) -> String {
        let sums = self.sums.iter().map(|(what, sum)| format!("{} {what}", grouped(*sum)));
        format!("{} configurations: {}", self.configurations, sums.collect::<Vec<_>>().join(", "))
    }

    /// The sums as rows of a table.
    pub fn table(&self) -> String {
        let row = |(what, sum): (&String, &u64)| format!("| {what} | {} |\n", grouped(*sum));
        format!("| looked at | number |\n|---|---|\n{}", self.sums.iter().map(row).collect::<String>())
    }
}

/// 1234567 as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let lead = (digits.len() - 1) % 3 + 1;
    let (first, rest) = digits.split_at(lead);
    rest.as_bytes()
        .chunks(3)
        .fold(first.to_owned(), |text, group| text + "," + &String::from_utf8_lossy(group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_several_tests_add_up() {
        let mut figures = Figures::default();
        assert!(
            figures.read("test crash::c4k ... looked at in c4k: 4000 crash states, 60 states gone on with")
        );
        assert!(figures.read("looked at in c64k: 1000000 crash states"));
        assert!(!figures.read("test result: ok. 3 passed"));
        assert_eq!(figures.line(), "2 configurations: 1,004,000 crash states, 60 states gone on with");
        assert!(figures.table().contains("| crash states | 1,004,000 |\n"));
        assert_eq!(figures.others(&["crash states"]).collect::<Vec<_>>(), [("states gone on with", 60)]);
    }
}
