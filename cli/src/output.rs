//! Writing to stdout and stderr: lines, aligned tables, times, and text of others made harmless.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::ops::ControlFlow;
use std::time::Instant;

use serde::Serialize;
use stepwell::identity::Timestamp;

use crate::failure::Failure;

/// Standard output. When its reader has gone (`| head`), the rest is dropped without a word.
pub(crate) struct Output {
    inner: BufWriter<StdoutLock<'static>>,
    closed: bool,
}

impl Output {
    pub(crate) fn stdout() -> Output {
        Output {
            inner: BufWriter::new(io::stdout().lock()),
            closed: false,
        }
    }

    /// Whether nobody reads any more: long commands stop then.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Writes one line.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        if self.closed {
            return Ok(());
        }
        let written = writeln!(self.inner, "{text}");
        self.settle(written)
    }

    /// Writes one JSON object on one line.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.line(&serde_json::to_string(value)?)
    }

    /// Hands everything over.
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        if self.closed {
            return Ok(());
        }
        let flushed = self.inner.flush();
        self.settle(flushed)
    }

    fn settle(&mut self, result: io::Result<()>) -> Result<(), Failure> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            other => other.map_err(Failure::Output),
        }
    }
}

/// One line on stderr. A closed stderr is nobody's fault.
pub(crate) fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "stepwell: {message}");
}

/// A line that is written over again, for a person who watches: only on a terminal.
pub(crate) struct Progress {
    shown: bool,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress {
            shown: io::stderr().is_terminal(),
        }
    }

    pub(crate) fn show(&self, text: &str) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
        }
    }

    pub(crate) fn clear(&self) {
        self.show("");
    }

    /// Who shows the progress of a long reading, as a bar, at most ten times a second.
    pub(crate) fn bar(
        what: String,
    ) -> impl FnMut(stepwell::journal::Progress) -> ControlFlow<()> + Send + 'static {
        const WIDTH: u64 = 30;
        let progress = Progress::new();
        let mut shown: Option<Instant> = None;
        move |now| {
            let due = shown.is_none_or(|shown| shown.elapsed().as_millis() >= 100);
            if progress.shown && due && now.total > 0 {
                shown = Some(Instant::now());
                let share = |whole: u64| now.done.saturating_mul(whole) / now.total;
                let full = usize::try_from(share(WIDTH)).unwrap_or(0);
                let bar = format!("{:-<30}", "#".repeat(full));
                progress.show(&format!("{what} [{bar}] {:3} %", share(100)));
            }
            ControlFlow::Continue(())
        }
    }
}

/// Makes text of others harmless on a terminal: control characters are shown, not obeyed. Tabs and
/// newlines stay.
pub(crate) fn visible(text: &str) -> String {
    if !text.chars().any(is_hostile) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_hostile(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Controls, and the marks that turn the direction of text around.
fn is_hostile(character: char) -> bool {
    let turns = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || character.is_control() && !matches!(character, '\n' | '\t')
}

/// At most `max` characters on one line, with an ellipsis for what is cut.
pub(crate) fn short(text: &str, max: usize) -> String {
    let line = crate::failure::one_line(text);
    if line.chars().count() <= max {
        return line;
    }
    let kept: String = line.chars().take(max.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// A table with aligned columns: numbers to the right, the rest to the left.
pub(crate) struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these headings; one that begins with `>` is a column of numbers.
    pub(crate) fn new(headings: &[&str]) -> Table {
        let names = headings.iter().map(|name| name.trim_start_matches('>'));
        Table {
            right: headings.iter().map(|name| name.starts_with('>')).collect(),
            rows: vec![names.map(str::to_owned).collect()],
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Its lines, without trailing spaces.
    pub(crate) fn lines(&self) -> Vec<String> {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let columns: Vec<(usize, bool)> = self
            .right
            .iter()
            .enumerate()
            .map(|(column, right)| (width(column), *right))
            .collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&columns).map(|(cell, (width, right))| {
                let width = *width;
                if *right {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }

    pub(crate) fn print(&self, out: &mut Output) -> Result<(), Failure> {
        self.lines().iter().try_for_each(|line| out.line(line))
    }
}

/// A time as a person says it: how long ago within the last day, the minute in UTC otherwise.
pub(crate) fn when(at: Option<Timestamp>, now: Timestamp) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    let Some(at) = at else {
        return "-".to_owned();
    };
    match now.secs().saturating_sub(at.secs()) {
        0 => "just now".to_owned(),
        ago @ 1..MINUTE => format!("{ago} s ago"),
        ago @ MINUTE..HOUR => format!("{} min ago", ago / MINUTE),
        ago @ HOUR..DAY => format!("{} h ago", ago / HOUR),
        _ => {
            let text = at.to_string();
            let minute: String = text.chars().take("2026-11-30T10:00".len()).collect();
            format!("{} UTC", minute.replace('T', " "))
        }
    }
}

/// A count with its noun.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {many}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_aligns_text_left_and_numbers_right() {
        let mut table = Table::new(&["NAME", ">N", "NOTE"]);
        table.row(vec!["é".into(), "7".into(), "x".into()]);
        table.row(vec!["longer".into(), "1234".into(), String::new()]);
        assert_eq!(
            table.lines(),
            ["NAME       N  NOTE", "é          7  x", "longer  1234"]
        );
    }

    #[test]
    fn times_are_short() {
        let now = Timestamp::new(1_800_000_000, 0).unwrap();
        let ago = |secs| when(Some(Timestamp::new(now.secs() - secs, 5).unwrap()), now);
        assert_eq!(ago(0), "just now");
        assert_eq!(ago(59), "59 s ago");
        assert_eq!(ago(60), "1 min ago");
        assert_eq!(ago(3_600), "1 h ago");
        assert_eq!(ago(86_400), "2027-01-14 08:00 UTC");
        assert_eq!(ago(-100), "2027-01-15 08:01 UTC");
        assert_eq!(when(None, now), "-");
    }

    #[test]
    fn text_of_others_cannot_command_a_terminal() {
        assert_eq!(
            visible("a\x1b[2J\tb\n\r\u{9b}"),
            "a\\u{1b}[2J\tb\n\\u{d}\\u{9b}"
        );
        assert_eq!(visible("\u{202e}x"), "\\u{202e}x");
        assert_eq!(short("two\nlines\x07", 40), "two lines\\u{7}");
        assert_eq!(short("abcdef", 4), "abc…");
    }
}
