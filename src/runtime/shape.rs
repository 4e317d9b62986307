//! The shape of a tool result's text: bounded, never empty, cut between characters.

/// What stands for a result without text: providers refuse empty ones.
const NOTHING: &str = "[the tool gave no output]";
const PREVIEW_BYTES: usize = 2048;
const PREVIEW_LINES: usize = 20;

pub(super) use crate::store::head;

/// The longest end of at most `max` bytes that begins between characters.
fn tail(text: &str, max: usize) -> &str {
    let mut from = text.len().saturating_sub(max);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text.get(from..).unwrap_or_default()
}

/// A result's text within a limit in bytes: head and tail around a marker that says what is missing.
pub(super) fn result(text: String, limit: Option<usize>) -> String {
    if text.is_empty() {
        return NOTHING.to_owned();
    }
    let Some(limit) = limit.filter(|limit| text.len() > *limit) else {
        return text;
    };
    let total = text.len();
    // The marker counts towards the limit; its numbers are at most as long as that of `total`.
    let longest = marker(total, total).len();
    let Some(room) = limit.checked_sub(longest).filter(|room| *room > 0) else {
        return head(&text, limit).to_owned();
    };
    let head = head(&text, room.div_ceil(2));
    let tail = tail(&text, room / 2);
    let omitted = total - head.len() - tail.len();
    format!("{head}{}{tail}", marker(omitted, total))
}

fn marker(omitted: usize, total: usize) -> String {
    format!("\n[… {omitted} of {total} bytes left out …]\n")
}

/// The beginning of a result for those who watch.
pub(super) fn preview(text: &str) -> String {
    let short = head(text, PREVIEW_BYTES);
    let end = short
        .match_indices('\n')
        .nth(PREVIEW_LINES - 1)
        .map_or(short.len(), |(at, _)| at);
    let short = short.get(..end).unwrap_or(short);
    if short.len() == text.len() {
        text.to_owned()
    } else {
        format!("{short}\n[…]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_head_and_tail_within_the_limit_at_every_limit() {
        let text = "αβγδε".repeat(40) + "end";
        for limit in 0..text.len() + 3 {
            let shaped = result(text.clone(), Some(limit));
            assert!(shaped.len() <= limit.max(1), "{limit}: {}", shaped.len());
            if limit >= text.len() {
                assert_eq!(shaped, text);
            } else if limit > 100 {
                assert!(
                    shaped.starts_with('α') && shaped.ends_with("end"),
                    "{shaped}"
                );
                assert!(shaped.contains(&format!("of {} bytes", text.len())));
            }
        }
        assert_eq!(result(text.clone(), None), text);
        assert_eq!(result(String::new(), Some(0)), NOTHING);
    }

    #[test]
    fn a_marker_tells_exactly_what_is_missing() {
        let text = "0123456789".repeat(100);
        let shaped = result(text, Some(300));
        let omitted: usize = shaped
            .split("[… ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next())
            .unwrap()
            .parse()
            .unwrap();
        let kept = shaped.replace(&marker(omitted, 1000), "").len();
        assert_eq!(omitted + kept, 1000);
    }

    #[test]
    fn previews_are_bounded_in_bytes_and_lines() {
        assert_eq!(preview("a\nb"), "a\nb");
        let lines = "line\n".repeat(50);
        assert_eq!(preview(&lines).lines().count(), PREVIEW_LINES + 1);
        assert!(preview(&"ö".repeat(5000)).len() <= PREVIEW_BYTES + 6);
    }
}
