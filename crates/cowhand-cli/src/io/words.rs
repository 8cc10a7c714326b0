//! A line of a script: words, the options among them, and numbers.

use graph::size::parse_size;
use tool::failure::Failure;
use tool::numbers::whole;

/// The longest request: what a signed 32-bit number holds of whole sectors, as in qemu-io.
pub const REQUEST_BYTES_MAX: u64 = i32::MAX as u64 / block::SECTOR_BYTES * block::SECTOR_BYTES;

/// The words of a line: spaces part them, nothing else does.
pub fn split(line: &str) -> Vec<&str> {
    line.split(' ').filter(|word| !word.is_empty()).collect()
}

/// The words behind a command's name, in getopt's ways: options may be joined, may stand behind operands, and end at `--`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Words {
    options: Vec<(char, String)>,
    /// What is no option.
    pub operands: Vec<String>,
}

impl Words {
    /// `known` has the letters of options; a colon follows those that take a value.
    ///
    /// # Errors
    /// When there is another letter, or a value is missing.
    pub fn parse(words: &[&str], known: &str) -> Result<Self, Failure> {
        let mut parsed = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.strip_prefix('-') {
                Some("-") => {
                    parsed.operands.extend(words.by_ref().map(|&word| word.to_owned()));
                }
                Some(letters) if !letters.is_empty() => {
                    parsed.take_letters(letters, known, &mut words)?;
                }
                _ => parsed.operands.push((*word).to_owned()),
            }
        }
        Ok(parsed)
    }

    fn take_letters<'a>(
        &mut self,
        letters: &str,
        known: &str,
        words: &mut impl Iterator<Item = &'a &'a str>,
    ) -> Result<(), Failure> {
        for (at, letter) in letters.char_indices() {
            let Some(place) = known.find(letter).filter(|_| letter != ':') else {
                let letters =
                    known.chars().filter(|letter| *letter != ':').map(|letter| format!("-{letter}"));
                let allowed: Vec<_> = letters.collect();
                return Err(Failure::new(format!(
                    "unknown option -{letter}; allowed: {}",
                    allowed.join(", ")
                )));
            };
            let takes_value = known[place + letter.len_utf8()..].starts_with(':');
            if !takes_value {
                self.options.push((letter, String::new()));
                continue;
            }
            let rest = &letters[at + letter.len_utf8()..];
            let value = if rest.is_empty() { words.next().copied() } else { Some(rest) };
            let value = value.ok_or_else(|| Failure::new(format!("option -{letter} needs a value")))?;
            self.options.push((letter, value.to_owned()));
            return Ok(());
        }
        Ok(())
    }

    /// Whether the option was given.
    pub fn has(&self, letter: char) -> bool {
        self.options.iter().any(|(given, _)| *given == letter)
    }

    /// The value of an option; of several the last.
    pub fn value(&self, letter: char) -> Option<&str> {
        self.values(letter).last()
    }

    /// The values of an option that may be repeated.
    pub fn values(&self, letter: char) -> impl Iterator<Item = &str> {
        self.options.iter().filter(move |(given, _)| *given == letter).map(|(_, value)| value.as_str())
    }

    /// The operand at `place`; `what` says what it is.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn operand(&self, place: usize, what: &str) -> Result<&str, Failure> {
        let operand = self.operands.get(place).map(String::as_str);
        operand.ok_or_else(|| Failure::new(format!("{what} is missing")))
    }

    /// Refuses more operands than `most`.
    pub fn at_most(&self, most: usize) -> Result<(), Failure> {
        match self.operands.get(most) {
            None => Ok(()),
            Some(word) => Err(Failure::new(format!("{word:?} is one operand too many; allowed: {most}"))),
        }
    }
}

/// A number of bytes, below 2^63; `what` says of what.
///
/// # Errors
/// When it is no such number.
pub fn bytes(text: &str, what: &str) -> Result<u64, Failure> {
    let bytes = parse_size(text)
        .map_err(|error| Failure::because(format!("cannot understand the {what}"), &error))?;
    match i64::try_from(bytes) {
        Ok(_) => Ok(bytes),
        Err(_) => Err(Failure::new(format!("the {what} is {bytes}; allowed: less than 2^63"))),
    }
}

/// The length of a request.
///
/// # Errors
/// When it is no number, or more than [`REQUEST_BYTES_MAX`].
pub fn length(text: &str) -> Result<u64, Failure> {
    let length = bytes(text, "length")?;
    match length <= REQUEST_BYTES_MAX {
        true => Ok(length),
        false => Err(Failure::new(format!("the length is {length}; allowed: at most {REQUEST_BYTES_MAX}"))),
    }
}

/// The byte that fills or is expected: decimal, octal with a leading 0, or hexadecimal with 0x.
///
/// # Errors
/// When it is no number from 0 to 255.
pub fn pattern(text: &str) -> Result<u8, Failure> {
    whole(text).map_err(|_| Failure::new(format!("the pattern is {text:?}; allowed: a byte, 0 to 255")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_wherever_they_stand() {
        for line in ["-qP 3 0 512", "0 -P3 512 -q", "0 512 -q -P 3", "-q  -P 3  -- 0   512"] {
            let words = Words::parse(&split(line), "P:qv").unwrap();
            assert_eq!(words.operands, ["0", "512"], "{line}");
            assert_eq!(
                (words.value('P'), words.has('q'), words.has('v')),
                (Some("3"), true, false),
                "{line}"
            );
        }
        assert_eq!(Words::parse(&["--", "-1"], "q").unwrap().operands, ["-1"]);
        let refused = |line| Words::parse(&split(line), "P:q").unwrap_err().to_string();
        assert_eq!(refused("-z"), "unknown option -z; allowed: -P, -q");
        assert_eq!(refused("-:"), "unknown option -:; allowed: -P, -q");
        assert_eq!(refused("-qP"), "option -P needs a value");
    }

    #[test]
    fn numbers_are_what_they_are_in_qemu_io() {
        let number = |text| bytes(text, "offset").ok();
        assert_eq!([number("0x10"), number("1.5k"), number("1b")], [Some(16), Some(1536), Some(1)]);
        assert_eq!([number("x"), number("1kb"), number("-1"), number("8E")], [None; 4]);
        assert_eq!([length("2147483136").ok(), length("2147483137").ok()], [Some(REQUEST_BYTES_MAX), None]);
        let byte = |text| pattern(text).ok();
        assert_eq!(
            [byte("0"), byte("0xab"), byte("010"), byte("255")],
            [Some(0), Some(0xab), Some(8), Some(255)]
        );
        assert_eq!([byte("256"), byte("-1"), byte("x"), byte("0x")], [None; 4]);
    }
}
