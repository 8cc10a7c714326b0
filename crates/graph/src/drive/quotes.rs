//! JSON as people write it between a shell's double quotes.

/// The same JSON where texts stand in single quotes, as people write them between a shell's double ones and QEMU understands them.
pub(super) fn in_double_quotes(text: &str) -> String {
    let (mut plain, mut quote, mut escaped) = (String::with_capacity(text.len()), None, false);
    for letter in text.chars() {
        let is_quote = matches!(letter, '"' | '\'');
        match quote {
            None if is_quote => {
                quote = Some(letter);
                plain.push('"');
                continue;
            }
            None => {}
            Some(_) if escaped => {
                escaped = false;
                // JSON knows no \' .
                if letter == '\'' {
                    plain.pop();
                }
            }
            Some(open) if letter == open => {
                quote = None;
                plain.push('"');
                continue;
            }
            Some(_) if letter == '"' => plain.push('\\'),
            Some(_) => escaped = letter == '\\',
        }
        plain.push(letter);
    }
    plain
}
