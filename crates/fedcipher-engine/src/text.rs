//! Escaping of other parties' text in logs and errors. The text stays on one line and cannot control a terminal.

/// The most characters that are kept of another process's error.
pub const MAX_TEXT: usize = 4096;

/// Whether a character can begin a line, control a terminal, or change the reading direction.
fn acts(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` with a JSON escape in place of each character that [`acts`].
#[must_use]
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if acts(c) { line.push_str(&format!("\\u{:04x}", u32::from(c))) } else { line.push(c) }
    }
    line
}

/// Like [`one_line`], cut after [`MAX_TEXT`] characters.
#[must_use]
pub fn quoted(text: &str) -> String {
    let mut line: String = text.chars().take(MAX_TEXT).collect();
    if line.len() < text.len() {
        line.push_str("...");
    }
    one_line(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attack_29_what_others_say_stays_on_its_line() {
        let said = "a\nINFO settled\r\x1b[2J\u{9b}31m\u{202e}b\u{2028}c\0d\u{85}";
        let line = one_line(said);
        assert!(!line.chars().any(acts), "{line}");
        assert_eq!(line, "a\\u000aINFO settled\\u000d\\u001b[2J\\u009b31m\\u202eb\\u2028c\\u0000d\\u0085");
        assert_eq!(one_line("Zürich, 東京: \"x\" \\ 1"), "Zürich, 東京: \"x\" \\ 1");
        let cut = quoted(&"é".repeat(MAX_TEXT + 1));
        assert_eq!(cut.chars().count(), MAX_TEXT + 3);
        assert_eq!(quoted("short"), "short");
    }
}
