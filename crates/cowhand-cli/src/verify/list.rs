//! Lists of checksums, as sha256sum writes and reads them.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::Chars;

use control::text::{is_obeyed, shown};
use tool::failure::Failure;

/// A list of names is not longer than this.
const LIST_BYTES_MAX: u64 = 64 << 20;
/// Hexadecimal digits of a checksum.
const DIGITS: usize = 64;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// In hexadecimal digits.
    pub digest: String,
    /// Of the file.
    pub name: String,
}

impl fmt::Display for Line {
    /// A name that would end the line, or that has a backslash, is written with backslashes, and the line begins with one. So is a name with characters
    /// that a terminal obeys: as `\u{202e}`, which only this program reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.name.contains(|letter| letter == '\\' || is_obeyed(letter)) {
            return write!(f, "{}  {}", self.digest, self.name);
        }
        let name = shown(&self.name.replace('\\', "\\\\")).into_owned();
        write!(f, "\\{}  {name}", self.digest)
    }
}

/// All lines of a list; `-` is standard input.
///
/// # Errors
/// When it cannot be read, is longer than 64 MiB, or a line is not one; a list without lines is an error too.
pub fn read(path: &Path) -> Result<Vec<Line>, Failure> {
    let failed = |error: &io::Error| Failure::of_system(format!("cannot read {}", path.display()), error);
    let mut text = String::new();
    let source: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(path).map_err(|error| failed(&error))?),
    };
    source.take(LIST_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| failed(&error))?;
    if text.len() as u64 > LIST_BYTES_MAX {
        return Err(Failure::new(format!("{} is longer than 64 MiB", path.display())));
    }
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.is_empty()) {
        lines.push(parse(line).ok_or_else(|| {
            let what = format!("line {number} of {} is no checksum with a name", path.display());
            Failure::new(what).with_hint("a line is 64 hexadecimal digits, two spaces and a name")
        })?);
    }
    match lines.is_empty() {
        true => Err(Failure::new(format!("{} has no checksums", path.display()))),
        false => Ok(lines),
    }
}

fn parse(line: &str) -> Option<Line> {
    let (escaped, line) = line.strip_prefix('\\').map_or((false, line), |rest| (true, rest));
    let (digest, name) = line.split_at_checked(DIGITS)?;
    let name = name.strip_prefix("  ").or_else(|| name.strip_prefix(" *"))?;
    if name.is_empty() || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let name = if escaped { unescape(name)? } else { name.to_owned() };
    Some(Line { digest: digest.to_ascii_lowercase(), name })
}

fn unescape(name: &str) -> Option<String> {
    let mut plain = String::new();
    let mut letters = name.chars();
    while let Some(letter) = letters.next() {
        plain.push(match letter {
            '\\' => match letters.next()? {
                '\\' => '\\',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'u' => code_point(&mut letters)?,
                _ => return None,
            },
            other => other,
        });
    }
    Some(plain)
}

/// What stands behind `\u`: `{202e}`.
fn code_point(letters: &mut Chars<'_>) -> Option<char> {
    let rest = letters.as_str().strip_prefix('{')?;
    let (digits, rest) = rest.split_once('}')?;
    *letters = rest.chars();
    u32::from_str_radix(digits, 16).ok().and_then(char::from_u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_whatever_the_name() {
        for name in
            ["disk.qcow2", " two  words", "a\\b", "new\nline\r", "*star", "tab\t", "\u{202e}evil\u{9b}"]
        {
            let line = Line { digest: "0f".repeat(32), name: name.to_owned() };
            assert_eq!(parse(&line.to_string()), Some(line.clone()), "{line}");
            assert!(!line.to_string().contains(is_obeyed));
        }
        let digest = "ab".repeat(32);
        let binary = parse(&format!("{} *disk", digest.to_uppercase()));
        assert_eq!(binary, Some(Line { digest: digest.clone(), name: "disk".to_owned() }));
        for bad in ["", "ab  disk", &format!("{digest} disk"), &format!("{digest}  "), &"zz".repeat(33)] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
