//! Why a guard refused something.

use std::fmt;

use super::super::shape;

const CODE_BYTES: usize = 64;
const REASON_BYTES: usize = 1024;

/// Why a guard refused an operation, within bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("denied ({code}): {reason}")]
pub struct Denial {
    code: String,
    reason: String,
}

impl Denial {
    /// The code of a guard that panicked.
    pub const PANIC: &'static str = "guard_panic";
    /// The code of a denial whose own code breaks the rule.
    pub const UNSPECIFIED: &'static str = "unspecified";

    /// A denial. The code is for programs: a small letter, then small letters, digits, `_`, `.`, `-`,
    /// 64 bytes at most; one that is not becomes [`Denial::UNSPECIFIED`]. The reason is for people
    /// and cut to 1,024 bytes, between characters.
    pub fn new(code: &str, reason: impl fmt::Display) -> Denial {
        let code = match is_code(code) {
            true => code,
            false => Denial::UNSPECIFIED,
        };
        Denial {
            code: code.to_owned(),
            reason: shape::head(&reason.to_string(), REASON_BYTES).to_owned(),
        }
    }

    /// For programs.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// For people.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

fn is_code(code: &str) -> bool {
    let inside = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'.' | b'-')
    };
    code.len() <= CODE_BYTES
        && code.starts_with(|first: char| first.is_ascii_lowercase())
        && code.bytes().all(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_reasons_are_bounded() {
        for code in ["a", "a.b_c-9", &"x".repeat(64)] {
            assert_eq!(Denial::new(code, "").code(), code);
        }
        for code in ["", "A", "9a", "_a", "a b", "aä", "a\n", &"x".repeat(65)] {
            assert_eq!(
                Denial::new(code, "").code(),
                Denial::UNSPECIFIED,
                "{code:?}"
            );
        }
        let denial = Denial::new("a", "ä".repeat(600));
        assert_eq!(denial.reason(), "ä".repeat(512));
        let denial = Denial::new("a", format!("x{}", "ä".repeat(600)));
        assert_eq!(denial.reason().len(), 1023);
    }
}
