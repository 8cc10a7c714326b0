//! Text of others on its way to a terminal or into JSON: names in images, names of files, what servers say.
//!
//! One definition of what a terminal obeys, for everything that prints: `obeyed`.

use std::borrow::Cow;

/// Whether a terminal obeys a character, or shows the text around it as something else: control characters (C0, DEL, C1), marks that reverse the direction of
/// the text that follows, and separators of lines.
pub fn is_obeyed(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` with what a terminal would obey shown, not sent: `\u{202e}`, `\n`.
pub fn shown(text: &str) -> Cow<'_, str> {
    replaced(text, is_obeyed, |char, out| out.extend(char.escape_default()))
}

/// JSON as it may go to a terminal: the characters that JSON need not escape, and a terminal obeys, are `\uXXXX` then, which means the same. They can
/// stand in strings only.
pub fn shown_json(json: &str) -> Cow<'_, str> {
    let is_left = |char: char| char >= '\u{7f}' && is_obeyed(char);
    replaced(json, is_left, |char, out| out.push_str(&format!("\\u{:04x}", u32::from(char))))
}

/// The same of lines of a log, which have their own ends and colours: sequences that change nothing but a colour remain.
pub fn shown_lines(lines: &str) -> Cow<'_, str> {
    if !lines.contains(|char| is_obeyed(char) && char != '\n') {
        return Cow::Borrowed(lines);
    }
    let mut out = String::with_capacity(lines.len() + 16);
    let mut rest = lines;
    while let Some(char) = rest.chars().next() {
        let len = colour_bytes(rest).unwrap_or(char.len_utf8());
        let (part, after) = rest.split_at(len);
        match char {
            '\n' => out.push('\n'),
            _ if part.len() > char.len_utf8() || !is_obeyed(char) => out.push_str(part),
            _ => out.extend(char.escape_default()),
        }
        rest = after;
    }
    Cow::Owned(out)
}

/// Bytes of the sequence that sets colours (SGR) at the start of `text`, if one stands there.
fn colour_bytes(text: &str) -> Option<usize> {
    let numbers = text.strip_prefix("\u{1b}[")?;
    let end = numbers.find(|char: char| !char.is_ascii_digit() && char != ';')?;
    numbers[end..].starts_with('m').then_some(2 + end + 1)
}

fn replaced(text: &str, is_replaced: impl Fn(char) -> bool, put: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if !text.contains(&is_replaced) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_replaced(char) { put(char, &mut out) } else { out.push(char) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A snapshot called `\u{202e}...` turned the line it stood in around; C1 went through JSON unchanged.
    #[test]
    fn what_a_terminal_obeys_is_shown_and_means_the_same_in_json() {
        let evil = "a\u{1b}[31m\u{9b}31m\u{202e}b\u{2028}c\u{2066}d\u{7f}\u{61c}é 日本 \u{5d0}\n";
        let shown = shown(evil);
        assert!(!shown.contains(is_obeyed), "{shown:?}");
        assert!(shown.contains("é 日本 \u{5d0}") && shown.contains("\\u{202e}b"), "{shown}");
        let json = serde_json::Value::from(evil).to_string();
        let safe = shown_json(&json);
        assert!(!safe.contains(is_obeyed), "{safe:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), serde_json::Value::from(evil));
        let line = shown_lines("\u{1b}[1mINFO\u{1b}[0m \u{202e}x\n\u{1b}]0;title\u{7}\u{1b}[2J");
        assert_eq!(line, "\u{1b}[1mINFO\u{1b}[0m \\u{202e}x\n\\u{1b}]0;title\\u{7}\\u{1b}[2J");
        assert!(matches!(super::shown("plain"), Cow::Borrowed("plain")));
    }
}
