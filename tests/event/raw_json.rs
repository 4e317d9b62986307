//! Opaque JSON is kept byte for byte, whatever stands in it (P11), and bounded in depth (P14).

use stepwell::content::{JsonError, JsonProblem, RawJson};

fn problem(text: impl AsRef<[u8]>) -> JsonProblem {
    RawJson::parse(text.as_ref())
        .expect_err(&String::from_utf8_lossy(text.as_ref()))
        .problem
}

#[test]
fn valid_json_keeps_its_bytes() {
    for text in [
        r#"{"z":1,"a":{"y":2,"b":3},"A":0,"":null}"#,
        r#"{"path":1,"Path":2,"path":3}"#,
        r#"["\ud83d","\ude00\ud83d","\uD83D\uDE00","\u0041\/"]"#,
        "[9007199254740993,18446744073709551616,1e400,1E+2,1.0e002,-0,-0.0,0.1000000000000000055,1e-400]",
        "{ \"a\" :\r\n\t[ ] }",
        "\"\u{2028}\u{2029}\u{feff}\u{10ffff}\u{7f}\"",
        r#""\u0000""#,
        "true",
        "null",
        "-1",
    ] {
        let raw = RawJson::parse(text).expect(text);
        assert_eq!(raw.get(), text);
        assert_eq!(serde_json::to_string(&raw).unwrap(), text);
        assert_eq!(serde_json::from_str::<RawJson>(text).unwrap(), raw);
    }
    assert_eq!(
        RawJson::parse(" \n{} \t").unwrap().get(),
        "{}",
        "only space around the value is cut"
    );
    assert_ne!(
        RawJson::parse("1.0").unwrap(),
        RawJson::parse("1.00").unwrap()
    );
}

#[test]
fn what_is_no_json_is_refused_where_it_ends() {
    for (text, offset, expected) in [
        ("", 0, JsonProblem::UnexpectedEnd),
        (" \n", 2, JsonProblem::UnexpectedEnd),
        (r#"{"a":"b"#, 7, JsonProblem::UnexpectedEnd),
        ("{", 1, JsonProblem::UnexpectedEnd),
        ("[1,", 3, JsonProblem::UnexpectedEnd),
        ("nul", 3, JsonProblem::UnexpectedEnd),
        ("-", 1, JsonProblem::UnexpectedEnd),
        ("1.", 2, JsonProblem::UnexpectedEnd),
        (r#""\ud8"#, 5, JsonProblem::UnexpectedEnd),
        ("[1,]", 3, JsonProblem::Syntax),
        ("{,}", 1, JsonProblem::Syntax),
        (r#"{"a":1,}"#, 7, JsonProblem::Syntax),
        (r#"{"a" 1}"#, 5, JsonProblem::Syntax),
        ("[1}", 2, JsonProblem::Syntax),
        ("{]", 1, JsonProblem::Syntax),
        ("{1:2}", 1, JsonProblem::Syntax),
        ("'a'", 0, JsonProblem::Syntax),
        ("+1", 0, JsonProblem::Syntax),
        (".5", 0, JsonProblem::Syntax),
        ("NaN", 0, JsonProblem::Syntax),
        ("\"\t\"", 1, JsonProblem::Syntax),
        (r#""\x""#, 2, JsonProblem::Syntax),
        (r#""\u12g4""#, 5, JsonProblem::Syntax),
        ("\u{feff}{}", 0, JsonProblem::Syntax),
        ("01", 1, JsonProblem::TrailingBytes),
        ("{}{}", 2, JsonProblem::TrailingBytes),
        ("1 2", 2, JsonProblem::TrailingBytes),
        ("{}\0", 2, JsonProblem::TrailingBytes),
    ] {
        assert_eq!(
            RawJson::parse(text),
            Err(JsonError {
                offset,
                problem: expected
            }),
            "{text:?}"
        );
    }
    assert_eq!(
        RawJson::parse(b"\"a\xff\""),
        Err(JsonError {
            offset: 2,
            problem: JsonProblem::NotUtf8
        })
    );
}

#[test]
fn depth_is_kept_up_to_the_limit_and_refused_above() {
    let arrays = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let objects = |depth: usize| format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
    for depth in [1, 127, 128, 129, 10_000] {
        assert_eq!(RawJson::parse(arrays(depth)).unwrap().get(), arrays(depth));
        assert_eq!(
            RawJson::parse(objects(depth)).unwrap().get(),
            objects(depth)
        );
    }
    for depth in [10_001, 100_000, 1_000_000] {
        assert_eq!(
            problem(arrays(depth)),
            JsonProblem::TooDeep {
                max: RawJson::MAX_DEPTH
            }
        );
        assert_eq!(
            problem(objects(depth)),
            JsonProblem::TooDeep {
                max: RawJson::MAX_DEPTH
            }
        );
        assert_eq!(
            problem("[".repeat(depth)),
            JsonProblem::TooDeep {
                max: RawJson::MAX_DEPTH
            }
        );
    }
    // Width is not depth.
    assert!(RawJson::parse(format!("[{}[]]", "[],".repeat(50_000))).is_ok());
}

/// The scan and the parser behind it must agree on the grammar, or something could be written that
/// is not read.
#[test]
fn the_scan_agrees_with_the_parser_on_short_texts() {
    let alphabet = [
        b'{', b'}', b'[', b']', b',', b':', b'"', b'1', b'0', b'-', b'.', b'e', b' ', b'\\',
    ];
    let mut texts: Vec<Vec<u8>> = vec![vec![]];
    for _ in 0..4 {
        texts = texts
            .iter()
            .flat_map(|text| {
                alphabet
                    .iter()
                    .map(move |byte| [text.as_slice(), &[*byte]].concat())
            })
            .collect();
        for text in &texts {
            let parser = serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok();
            assert_eq!(
                RawJson::parse(text).is_ok(),
                parser,
                "{}",
                String::from_utf8_lossy(text)
            );
        }
    }
}
